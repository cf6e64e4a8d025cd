"""Reading the body of a request, within limits of size and time."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from starlette.datastructures import Headers

from lakehead.agent.receive.refusals import ErrorCode, Refusal

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]


class SenderGone(Exception):
    """The sender closed the connection before its request was complete: nobody waits for an answer."""


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
    """The body of one request. Raises `Refusal` if it is known to be too large."""

    receive: Receive
    declared: int | None
    """Its Content-Length; None if it is chunked."""

    limit: int
    """The largest body that is read, in bytes."""

    hold: Callable[[int], None] = lambda _: None
    """Called before a part of a chunked body is kept, with the bytes of it that have come so far. May raise `Refusal`.

    Its sender may be slow, so no more is reserved for it.
    """

    _is_complete: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.declared is not None and self.declared > self.limit:
            raise too_large(self.limit)

    @property
    def most(self) -> int:
        """How many bytes it may have."""
        return self.limit if self.declared is None else self.declared

    async def read(self, *, within: float) -> bytes:
        """Read all of it, in so many seconds.

        Raises `Refusal` if it is too large, too slow, or not as long as was declared, and `SenderGone`.
        """
        try:
            async with asyncio.timeout(within):
                return await self._read()
        except TimeoutError:
            raise Refusal(
                ErrorCode.BODY_TIMEOUT, f"The body did not come within {within:g} s. Send the same again."
            ) from None

    async def _read(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while not self._is_complete:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise SenderGone
            self._is_complete = not message.get("more_body", False)
            if part := message.get("body", b""):
                size += len(part)
                if size > self.most:
                    raise too_large(self.limit) if self.declared is None else self._another_length("more")
                if self.declared is None:
                    self.hold(size)
                parts.append(part)
        if self.declared is not None and size != self.declared:
            raise self._another_length(f"{size:,}")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _another_length(self, came: str) -> Refusal:
        return Refusal(ErrorCode.BAD_REQUEST, f"Content-Length says {self.declared:,} bytes, and {came} came.")


def too_large(limit: int) -> Refusal:
    """Return the answer to a body that has more bytes than the limit, as sent or decompressed."""
    return Refusal(
        ErrorCode.TOO_LARGE,
        f"The body may have {limit:,} bytes, as sent and decompressed, and has more. Send less in one request.",
    )
