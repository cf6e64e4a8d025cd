"""Decompressing bodies, with every size checked before the bytes are there."""

import zlib
from collections.abc import Callable
from enum import StrEnum

import cramjam

from lakehead.agent.receive.decoded import BadBody
from lakehead.agent.receive.request_body import too_large

_STEP_BYTES = 1 << 20
"""How much is decompressed before more memory is asked for."""

_GZIP = 31
"""zlib's word for a member of a gzip file with the largest window."""

_MOST_MEMBERS = 16
_SNAPPY_RATIO = 22
"""A body of snappy cannot become more times as large: three bytes are 64 at most."""


class Encoding(StrEnum):
    """A content encoding, by the name that HTTP has for it."""

    IDENTITY = "identity"
    GZIP = "gzip"
    SNAPPY = "snappy"
    """Its block format, as remote write has it."""


def decompressed_at_once(encoding: Encoding, body: bytes, most: int) -> bytes | None:
    """Return the content if it has no more than so many bytes, and None if it has more.

    Raises `BadBody` if it is known already that the body is not what its encoding says.
    """
    match encoding:
        case Encoding.IDENTITY:
            return body if len(body) <= most else None
        case Encoding.SNAPPY:
            return _unsnapped(body) if _snappy_length(body) <= most else None
        case Encoding.GZIP:
            if len(body) > most:
                return None
            member = zlib.decompressobj(_GZIP)
            content = _inflated(member, body, most)
            return content if member.eof and not member.unused_data else None


def decompressed(encoding: Encoding, body: bytes, limit: int, reserve: Callable[[int], None]) -> bytes:
    """Return the content of a body. Raises `BadBody`, and `Refusal` if it has more bytes than the limit.

    `reserve` is called with the number of bytes before they are there, and may raise what it likes.
    """
    match encoding:
        case Encoding.IDENTITY:
            return body
        case Encoding.SNAPPY:
            if (length := _snappy_length(body)) > limit:
                raise too_large(limit)
            reserve(length)
            return _unsnapped(body)
        case Encoding.GZIP:
            return _gunzipped(body, limit, reserve)


def _snappy_length(body: bytes) -> int:
    """How many bytes a body says that it becomes."""
    try:
        length: int = cramjam.snappy.decompress_raw_len(body)
    except cramjam.DecompressionError:
        raise _not_snappy() from None
    if length > _SNAPPY_RATIO * len(body):
        raise _not_snappy()
    return length


def _unsnapped(body: bytes) -> bytes:
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError:
        raise _not_snappy() from None


def _not_snappy() -> BadBody:
    return BadBody("The body cannot be decompressed. It must be in snappy's block format, not in its framing format.")


def _gunzipped(body: bytes, limit: int, reserve: Callable[[int], None]) -> bytes:
    parts: list[bytes] = []
    size = members = 0
    while body or not members:
        if (members := members + 1) > _MOST_MEMBERS:  # the rest is copied for each
            raise BadBody(f"The body has more than {_MOST_MEMBERS} parts that gzip compressed.")
        member = zlib.decompressobj(_GZIP)
        rest = body
        while not member.eof:
            reserve(size + _STEP_BYTES)
            part = _inflated(member, rest, _STEP_BYTES)
            rest = member.unconsumed_tail
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
            if not part and not rest and not member.eof:
                raise BadBody("The body ends in the middle of what gzip compressed.")
        body = member.unused_data
    return b"".join(parts)


def _inflated(member: "zlib._Decompress", data: bytes, most: int) -> bytes:
    try:
        return member.decompress(data, most)
    except zlib.error as error:
        raise BadBody(f"The body is not compressed by gzip ({error}).") from None
