"""Reading the body of a request, within limits of size and time."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers

from lakehead.gateway.error_codes import ErrorCode, Refusal

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client closed the connection before its request was complete: nobody waits for an answer."""


def declared_length(headers: Headers) -> int | None:
    """Return the Content-Length; None for a chunked body. Raises `Refusal` if it is no number."""
    if "transfer-encoding" in headers:
        return None
    lengths = set(headers.getlist("content-length"))
    if not lengths:
        return 0  # a request with neither has no body
    text = lengths.pop()
    if lengths or not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Refusal(ErrorCode.BAD_REQUEST, "Content-Length is not one number of bytes.")
    return int(text)


@dataclass(slots=True)
class RequestBody:
    """The body of one request."""

    receive: Receive
    declared: int | None
    """Its Content-Length; None if it is chunked."""

    limit: int
    """The largest body that is read, in bytes."""

    is_complete: bool = field(default=False, init=False)
    """Whether nothing of it is unread."""

    @property
    def most(self) -> int:
        """How many bytes it may have."""
        return self.limit if self.declared is None else min(self.declared, self.limit)

    async def read(self, *, within: float) -> bytes:
        """Read all of it, in so many seconds.

        Raises `Refusal` if it is too large, too slow, or not as long as was declared, and `ClientGone`.
        """
        if self.declared is not None and self.declared > self.limit:
            raise self._too_large()
        try:
            async with asyncio.timeout(within):
                return await self._read()
        except TimeoutError:
            raise Refusal(
                ErrorCode.BODY_TIMEOUT,
                f"The body did not come within {within:g} s. Nothing was accepted; send the same bytes again.",
            ) from None

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while not self.is_complete:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            self.is_complete = not message.get("more_body", False)
            if part := message.get("body", b""):
                size += len(part)
                self._check(size)
                parts.append(part)
        if self.declared is not None and size != self.declared:
            raise Refusal(ErrorCode.BAD_REQUEST, f"Content-Length says {self.declared:,} bytes, and {size:,} came.")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _check(self, size: int) -> None:
        if self.declared is None and size > self.limit:
            raise self._too_large()
        if self.declared is not None and size > self.declared:
            raise Refusal(ErrorCode.BAD_REQUEST, f"Content-Length says {self.declared:,} bytes, and more came.")

    def _too_large(self) -> Refusal:
        return Refusal(
            ErrorCode.TOO_LARGE, f"The body may have {self.limit:,} bytes, and has more. Send smaller batches."
        )
