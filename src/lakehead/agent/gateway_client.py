"""A client of a gateway for tests and scripts: it frames records and sends them, and keeps nothing on disk."""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httpx
import pyarrow as pa

from lakehead.agent.errors import BatchInDoubt, GatewayUnavailable
from lakehead.agent.framed_batch import FramedBatch, Receipt
from lakehead.agent.gateway_answers import Answered, TryAgain, interpret
from lakehead.agent.plain_records import KINDS, PlainRecord, RecordKind, record_batch
from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random, RandomIds, system_random
from lakehead.retry import TimedBackoff
from lakehead.wire.batch_identity import BatchIdentity, check_id
from lakehead.wire.frame import encode_frame
from lakehead.wire.record_schemas import FrameKind

PATH = "/ingest/v1/batch"
ANSWER_BYTES = 1 << 20
"""The most that is read of an answer. A gateway's have less than a thousandth."""

_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """How batches are sent."""

    attempt_seconds: float = 30.0
    """How long one attempt may take, from connecting to the last byte of the answer."""

    retry: TimedBackoff = field(
        default_factory=lambda: TimedBackoff(seconds=120.0, first_seconds=0.2, cap_seconds=10.0)
    )
    """For how long a batch is sent again while the gateway cannot take it, and the pauses. A Retry-After is added."""

    ca_file: str | None = None
    """A PEM file of the authorities that the gateway's certificate may be of. None: those of the system."""

    compress: bool = True
    """Whether frames are compressed."""

    authority: str = ""
    """The acceptance authority whose receipts count, as an earlier receipt names it; that of another one is an
    `UnexpectedAnswer`. Empty: that of the first receipt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDeps:
    """What a client takes from its surroundings."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    random: Random = field(default_factory=system_random)
    transport: httpx.AsyncBaseTransport | None = None
    """None: HTTP over the network. Proxies and passwords of the environment are not used."""


class Gateway:
    """Sends samples, or log records, of one boot of one agent. Use it in an `async with` block.

    Each record gets the next sequence number. Several tasks may send at once. There is no spool: a batch whose `send`
    has not returned is yours to send again, and lost with the process. Raises `Misconfigured` and `InvalidIdentity`
    for arguments that cannot be right.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        agent_id: str,
        kind: RecordKind = "samples",
        boot_id: str | None = None,
        next_sequence: int = 0,
        settings: SendSettings | None = None,
        deps: SendDeps | None = None,
    ) -> None:
        """`url` is that of the ingest listener, as https://gateway:8443. `boot_id` is a new one unless it is given.

        Give the boot id and the next sequence number of an earlier client to continue it.
        """
        self._deps = deps or SendDeps()
        self._settings = settings or SendSettings()
        self._kind = _frame_kind(kind)
        self.agent_id = agent_id
        self.boot_id = self._deps.ids.uuid() if boot_id is None else boot_id
        self.next_sequence = next_sequence
        """The sequence number of the next record."""

        self.authority = self._settings.authority
        """The acceptance authority whose receipts count; empty before the first receipt."""

        check_id("agent_id", self.agent_id)
        check_id("boot_id", self.boot_id)
        self._url = _checked_url(url)
        self._http = httpx.AsyncClient(
            headers={
                "Authorization": f"Bearer {_checked_token(token)}",
                "Content-Type": "application/octet-stream",
                "Accept-Encoding": "identity",
            },
            timeout=self._settings.attempt_seconds,  # of each step: `_attempt` bounds all of them
            trust_env=False,
            transport=self._deps.transport,
            verify=_tls(self._settings.ca_file) if self._url.scheme == "https" else False,
        )

    async def send(self, records: Sequence[PlainRecord] | pa.RecordBatch | pa.Table) -> Receipt:
        """Frame records as one batch, and return when a gateway has accepted it.

        The forms of records are those of `record_batch`; Arrow must have the schema of its kind. Raises what `frame`
        and `send_batch` do.
        """
        return await self.send_batch(self.frame(records))

    def frame(self, records: Sequence[PlainRecord] | pa.RecordBatch | pa.Table) -> FramedBatch:
        """Give records the next sequence numbers, and frame them. Nothing is sent.

        Raises `BadRecord` for a plain record, `BadFrame` for Arrow that is not of the kind, `InvalidIdentity` after the
        last sequence number, and `Misconfigured` if there are no records. No sequence number is used then.
        """
        if not len(records):
            raise Misconfigured("There are no records to send. Send at least one.")
        if not isinstance(records, pa.RecordBatch | pa.Table):
            records = record_batch(self._kind, records)
        start = self.next_sequence
        identity = BatchIdentity(self.agent_id, self.boot_id, start, start + len(records) - 1)
        body = encode_frame(identity, self._kind, records, compress=self._settings.compress)
        self.next_sequence = identity.seq_end + 1
        return FramedBatch(identity, body)

    async def send_batch(self, batch: FramedBatch) -> Receipt:
        """Send a batch, the same bytes again while the gateway cannot take it, and return the receipt.

        Raises a `BatchRefused` if it is refused, `GatewayUnavailable` if no gateway took it in time, and `BatchInDoubt`
        if nobody can tell. Sending the batch again is safe after all of them.
        """
        ends = self._deps.clock.monotonic() + self._settings.retry.seconds
        pauses = self._settings.retry.pauses(self._deps.random, self._deps.clock)
        in_doubt = False
        while True:
            outcome = await self._attempt(batch, in_doubt=in_doubt)
            if isinstance(outcome, Receipt):
                self.authority = outcome.authority
                return outcome
            in_doubt = in_doubt or outcome.in_doubt
            pause = next(pauses, 0.0) + outcome.after_seconds
            if self._deps.clock.monotonic() + pause >= ends:
                raise self._gave_up(batch, outcome.reason, in_doubt=in_doubt)
            await self._deps.clock.sleep(pause)

    async def close(self) -> None:
        """Close the connections. It can be called again."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _attempt(self, batch: FramedBatch, *, in_doubt: bool) -> Receipt | TryAgain:
        try:
            async with asyncio.timeout(self._settings.attempt_seconds):
                answer = await self._post(batch)
        except TimeoutError:
            return TryAgain(f"No answer within {self._settings.attempt_seconds:g} s.", in_doubt=True)
        except httpx.TransportError as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return TryAgain(reason, in_doubt=not isinstance(error, _NOTHING_SENT))
        return interpret(answer, batch, in_doubt=in_doubt, now_ns=self._deps.clock.now_ns(), authority=self.authority)

    async def _post(self, batch: FramedBatch) -> Answered:
        async with self._http.stream("POST", self._url, content=batch.body) as response:
            body = b""
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > ANSWER_BYTES:
                    break
            return Answered(response.status_code, body, response.headers.get("Retry-After", ""))

    def _gave_up(self, batch: FramedBatch, reason: str, *, in_doubt: bool) -> GatewayUnavailable | BatchInDoubt:
        where = f"The gateway at {self._url.host}:{self._url.port or self._url.scheme}"
        for_long = f"within {self._settings.retry.seconds:g} s"
        if in_doubt:
            return BatchInDoubt(
                batch,
                f"{where} did not confirm the batch {for_long}, and it may have been accepted: {reason} Send the same "
                "batch again.",
            )
        return GatewayUnavailable(
            batch, f"{where} did not take the batch {for_long}: {reason} Send the same batch again later."
        )


def _frame_kind(kind: RecordKind) -> FrameKind:
    if kind not in KINDS:
        raise Misconfigured(f"The kind of records is {kind!r}. It must be one of {', '.join(KINDS)}.")
    return KINDS[kind]


def _checked_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, UnicodeError) as error:
        raise Misconfigured(f"The gateway's URL {url!r} cannot be read ({error}).") from None
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo or parsed.query or parsed.fragment:
        raise Misconfigured(
            f"The gateway's URL {parsed.copy_with(userinfo=b'')!s} must be like https://gateway:8443, without a user, "
            "a query or a fragment."
        )
    return parsed.copy_with(path=parsed.path.rstrip("/").removesuffix(PATH) + PATH)


def _checked_token(token: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Misconfigured(
            "The token is empty, or has characters that no token has. Give it without spaces or quotes."
        )
    return token


def _tls(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # also ssl.SSLError
        raise Misconfigured(f"The certificates in {ca_file} cannot be read ({error}). Give a PEM file.") from None
