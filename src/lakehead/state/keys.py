"""Keys that every database server compares byte by byte."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from lakehead.errors import Misconfigured

T = TypeVar("T")

CHUNK = 1000
"""Keys in one statement: far below every server's limits on parameters and statement length."""


def unit_key(unit: str) -> str:
    """The key of a unit of work, whose id may be too long for an index: the SHA-256 of its UTF-8 bytes."""
    return _hashed("unit", unit)


def stream_key(stream: str) -> str:
    """The key of a stream of numbered records, hashed like a unit's."""
    return _hashed("stream", stream)


def pipeline_key(pipeline: str) -> str:
    """The key of a pipeline's name, hashed like a unit's."""
    return _hashed("pipeline", pipeline)


def _hashed(what: str, text: str) -> str:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise Misconfigured(f"The {what} {text!r} cannot be written as UTF-8.") from None
    if not text or "\0" in text:
        raise Misconfigured(f"The {what} {text!r} is empty or holds a NUL, which PostgreSQL cannot store.")
    return hashlib.sha256(encoded).hexdigest()


def checked_key(what: str, value: str, limit: int = 64) -> str:
    """Return the value if it can be a key itself, else raise `Misconfigured`.

    It must not end with spaces, because MariaDB ignores trailing spaces in comparisons.
    """
    if not value or len(value) > limit or value != value.strip() or not value.isprintable():
        raise Misconfigured(
            f"The {what} {value!r} cannot be a key. Use 1 to {limit} printable characters without spaces at the ends."
        )
    return value


def storable(value: str, limit: int | None = None) -> str:
    """The text as every server can store it, cut to so many characters."""
    replaced = value.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    return replaced if limit is None or len(replaced) <= limit else replaced[: limit - 1] + "…"


def by_key(units: Iterable[str]) -> dict[str, str]:
    """Units by their keys, each once, sorted by key, so that every transaction locks them in the same order."""
    return dict(sorted((unit_key(unit), unit) for unit in set(units)))


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """The items in chunks that fit into one statement."""
    whole = list(items)
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
