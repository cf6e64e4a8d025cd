"""What may stand in a key, so that every server compares it byte by byte."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from lakehead.errors import Misconfigured

T = TypeVar("T")

CHUNK = 1000
"""Keys in one statement: far below every server's limit on parameters and on a statement's length."""


def unit_key(unit: str) -> str:
    """The key of a unit of work, whose id may be longer than any index takes: the SHA-256 of its UTF-8 bytes."""
    return _hashed("unit", unit)


def stream_key(stream: str) -> str:
    """The key of a stream of numbered records, made as a unit's is."""
    return _hashed("stream", stream)


def _hashed(what: str, text: str) -> str:
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise Misconfigured(f"The {what} {text!r} cannot be written as UTF-8.") from None
    if not text or "\0" in text:
        raise Misconfigured(f"The {what} {text!r} is empty or holds a NUL, which PostgreSQL cannot store.")
    return hashlib.sha256(encoded).hexdigest()


def word(what: str, value: str, limit: int = 64) -> str:
    """A word that is itself a key. MariaDB ignores trailing spaces in comparisons, so there are none."""
    if not value or len(value) > limit or value != value.strip() or not value.isprintable():
        raise Misconfigured(
            f"The {what} {value!r} cannot be a key. Use 1 to {limit} printable characters without spaces at the ends."
        )
    return value


def by_key(units: Iterable[str]) -> dict[str, str]:
    """Units by their keys, each once, in the order of the keys: whoever locks many locks them in the same order."""
    return dict(sorted((unit_key(unit), unit) for unit in set(units)))


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """The items in pieces that one statement can take."""
    whole = list(items)
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
