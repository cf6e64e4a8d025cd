"""One attempt to send a frame to one gateway, over HTTP."""

import asyncio
import ssl
from typing import Protocol

import httpx

from lakehead.agent.framed_batch import FramedBatch, Receipt
from lakehead.agent.gateway_answers import Answered, TryAgain, interpret
from lakehead.agent.tls_files import TlsFiles
from lakehead.clock import Clock
from lakehead.errors import Misconfigured

PATH = "/ingest/v1/batch"
ANSWER_BYTES = 1 << 20
"""The most that is read of an answer. A gateway's have less than a thousandth."""

_NOTHING_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Connection(Protocol):
    """The way to one gateway."""

    @property
    def name(self) -> str:
        """What messages call the gateway."""
        ...

    async def post(self, body: bytes, token: str) -> Answered | TryAgain:
        """Send a frame once. Returns the answer, or why there is none."""
        ...

    async def close(self) -> None:
        """Close it. It can be called again."""
        ...


async def send_once(
    connection: Connection, batch: FramedBatch, *, token: str, in_doubt: bool, clock: Clock, authority: str
) -> Receipt | TryAgain:
    """Send a batch once. Returns the receipt, or that the same bytes should be sent again.

    `in_doubt` and `authority` are those of `interpret`; raises what it raises.
    """
    answer = await connection.post(batch.body, token)
    if isinstance(answer, TryAgain):
        return answer
    return interpret(answer, batch, in_doubt=in_doubt, now_ns=clock.now_ns(), authority=authority)


class HttpConnection:
    """The way to one gateway over the network. Proxies and passwords of the environment are not used."""

    def __init__(
        self,
        url: str,
        *,
        attempt_seconds: float,
        tls: TlsFiles | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`url` is that of the ingest listener, as https://gateway:8443. Raises `Misconfigured` if it cannot be.

        `attempt_seconds` is how long one attempt may take, from connecting to the last byte of the answer.
        """
        self._url = checked_url(url)
        self._attempt_seconds = attempt_seconds
        self._http = httpx.AsyncClient(
            headers={"Content-Type": "application/octet-stream", "Accept-Encoding": "identity"},
            timeout=attempt_seconds,  # of each step: `post` bounds all of them
            trust_env=False,
            transport=transport,
            verify=_tls(tls or TlsFiles()) if self._url.scheme == "https" else False,
        )

    @property
    def name(self) -> str:
        """The host and the port."""
        return f"{self._url.host}:{self._url.port or self._url.scheme}"

    async def post(self, body: bytes, token: str) -> Answered | TryAgain:
        """Send a frame once. Returns the answer, or why there is none."""
        try:
            async with asyncio.timeout(self._attempt_seconds):
                return await self._post(body, token)
        except TimeoutError:
            return TryAgain(f"No answer within {self._attempt_seconds:g} s.", in_doubt=True)
        except httpx.TransportError as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            return TryAgain(reason, in_doubt=not isinstance(error, _NOTHING_SENT))

    async def close(self) -> None:
        """Close the connections. It can be called again."""
        await self._http.aclose()

    async def _post(self, body: bytes, token: str) -> Answered:
        headers = {"Authorization": f"Bearer {token}"}
        async with self._http.stream("POST", self._url, content=body, headers=headers) as response:
            found = b""
            async for chunk in response.aiter_raw():
                found += chunk
                if len(found) > ANSWER_BYTES:
                    break
            return Answered(response.status_code, found, response.headers.get("Retry-After", ""))


def checked_token(token: str) -> str:
    """Return a token that can stand in a header. Raises `Misconfigured`."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise Misconfigured(
            "The token is empty, or has characters that no token has. Give it without spaces or quotes."
        )
    return token


def checked_url(url: str) -> httpx.URL:
    """Return where batches are posted, by the URL of a gateway. Raises `Misconfigured` if it cannot be one."""
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


def _tls(files: TlsFiles) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except OSError as error:  # also ssl.SSLError
        raise Misconfigured(f"The certificates in {files.ca_file} cannot be read ({error}). Give a PEM file.") from None
    if files.cert_file is not None:
        try:
            context.load_cert_chain(files.cert_file, files.key_file, password="")  # else it asks a terminal
        except OSError as error:
            raise Misconfigured(
                f"The client's certificate {files.cert_file} cannot be used ({error}). Give PEM files of a certificate "
                "and of its key, without a password."
            ) from None
    return context
