"""Reaches the spools of gateways over HTTP, at their private listeners, for garbage collection."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import msgspec

from lakehead.accept.spooled_batch import IdentityInSpool
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.gateway.batch_ids import batch_id
from lakehead.gateway.error_codes import ErrorCode
from lakehead.maintain.garbage_orphans import SpoolOutOfReach
from lakehead.wire.authority_records import OpenSpool
from lakehead.wire.batch_identity import BatchIdentity

ANSWER_BYTES = 1 << 20
"""The most that is read of an answer. A gateway's have less than a tenth."""

_NOTHING_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes

    @property
    def code(self) -> str:
        """The code of a refusal; empty if it has none."""
        try:
            return msgspec.json.decode(self.body, type=_Refusal).error.code
        except (msgspec.MsgspecError, UnicodeError):
            return ""

    @property
    def voided(self) -> str:
        """The id of the batch whose identity is void now; empty if it says nothing of one."""
        try:
            return msgspec.json.decode(self.body, type=_Voided).id
        except (msgspec.MsgspecError, UnicodeError):
            return ""


class _Voided(msgspec.Struct):
    id: str


class _Error(msgspec.Struct):
    code: str


class _Refusal(msgspec.Struct):
    error: _Error


class _Page(msgspec.Struct):
    spool_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSpools:
    """The spools of gateways, by the addresses that the authority record has of them."""

    http: httpx.AsyncClient
    token: str | None
    seconds: float
    """How long one answer may take."""

    async def check(self, spool: OpenSpool) -> None:
        """Raises `SpoolOutOfReach` if a spool does not answer, and `Misconfigured` if the token is missing or wrong."""
        try:
            answer = await self._ask("GET", spool, "/v1/spool?limit=1")
        except LakeheadError as error:
            if isinstance(error, Misconfigured):
                raise
            raise _out_of_reach(spool, str(error)) from error
        if answer.status != httpx.codes.OK:
            raise _out_of_reach(spool, f"it answers {answer.status} {answer.code}")
        try:
            found = msgspec.json.decode(answer.body, type=_Page).spool_id
        except (msgspec.MsgspecError, UnicodeError):
            raise _out_of_reach(spool, "what answers there is no gateway with a spool") from None
        if found != spool.spool_id:
            raise _out_of_reach(spool, f"the spool {found} answers there")

    async def holds(self, spool: OpenSpool, identity: BatchIdentity) -> bool:
        """Return whether a spool has a batch. Changes nothing. Raises `Unavailable`."""
        await self.check(spool)
        answer = await self._ask("GET", spool, f"/v1/spool/batches/{batch_id(identity)}", reads_body=False)
        if answer.status == httpx.codes.OK:
            return True
        if answer.status == httpx.codes.NOT_FOUND:
            return False
        raise Unavailable(f"The spool {spool.spool_id} at {spool.address} answers {answer.status} {answer.code}.")

    async def void(self, spool: OpenSpool, identity: BatchIdentity) -> None:
        """Accept nothing more under an identity in a spool, for good.

        Raises `IdentityInSpool` if it has the batch; `Unavailable` and `OutcomeUnknown` if it is not known to be void.
        """
        name = httpx.QueryParams({"spool": spool.spool_id})
        answer = await self._ask("POST", spool, f"/v1/spool/voids/{batch_id(identity)}?{name}")
        if answer.status == httpx.codes.OK:
            if answer.voided != batch_id(identity):  # a page of a proxy, say: the gateway may have moved since `check`
                raise _out_of_reach(spool, "what answers there is no gateway with a spool")
            return
        if answer.code == ErrorCode.IN_SPOOL:
            raise IdentityInSpool(f"The spool {spool.spool_id} of {spool.collector_id} holds a batch of {identity}.")
        if answer.code == ErrorCode.ANOTHER_SPOOL:
            raise _out_of_reach(spool, "another spool answers there")
        raise Unavailable(f"The spool {spool.spool_id} at {spool.address} answers {answer.status} {answer.code}.")

    async def _ask(self, method: str, spool: OpenSpool, path: str, *, reads_body: bool = True) -> _Answer:
        if self.token is None:
            raise Misconfigured(
                f"The spool {spool.spool_id} of {spool.collector_id} is open, and gc.token is not set: nothing may be "
                "deleted before it was asked. Make one: lakehead gateway token add CONFIG --role admin"
            )
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            async with (
                asyncio.timeout(self.seconds),
                self.http.stream(method, f"{spool.address.rstrip('/')}{path}", headers=headers) as response,
            ):
                body = b""
                if reads_body or response.is_error:
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        if len(body) > ANSWER_BYTES:
                            break
                answer = _Answer(response.status_code, body)
        except TimeoutError:
            raise OutcomeUnknown(f"{spool.address} did not answer within {self.seconds:g} s.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            kind = Unavailable if isinstance(error, _NOTHING_SENT) else OutcomeUnknown
            raise kind(f"{spool.address} does not answer ({type(error).__name__} {error}).") from error
        if answer.status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise Misconfigured(
                f"The gateway {spool.collector_id} does not take gc.token: it must be an admin's. Make one: lakehead "
                "gateway token add CONFIG --role admin"
            )
        return answer


@asynccontextmanager
async def http_spools(
    token: str | None,
    *,
    seconds: float = 10.0,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
) -> AsyncIterator[HttpSpools]:
    """Open the way to spools. Proxies and passwords of the environment are not used. Raises `Misconfigured`."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:  # also ssl.SSLError
        raise Misconfigured(f"The certificates of gc cannot be read ({error}). Give PEM files.") from None
    headers = {"Accept-Encoding": "identity"}
    async with httpx.AsyncClient(timeout=seconds, trust_env=False, verify=context, headers=headers) as http:
        yield HttpSpools(http=http, token=token, seconds=seconds)


def _out_of_reach(spool: OpenSpool, why: str) -> SpoolOutOfReach:
    return SpoolOutOfReach(
        f"The spool {spool.spool_id} of {spool.collector_id} is out of reach at {spool.address or 'no address'}: "
        f"{why}. It may hold batches that nobody else knows of, so nothing is deleted. Start the gateway, or drain it: "
        "lakehead gateway drain CONFIG"
    )
