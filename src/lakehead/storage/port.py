"""What every store can do, and everything it may answer."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

Version = NewType("Version", str)
"""Names one state of one object. Opaque: pass it back to `replace`, compare it for equality, nothing else.

A store may derive it from the content alone, so a body that returns to an earlier content may look unchanged.
Whoever replaces an object puts something into its body that only grows.
"""


@dataclass(frozen=True, slots=True)
class Meta:
    """What a store tells about an object without its body."""

    key: str
    size: int
    version: Version
    modified_ns: int
    """When this version was stored, by the store's clock, in nanoseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a listing tells about an object: no version, for not every store has it at hand there."""

    key: str
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Object:
    """One state of an object: the body belongs to exactly this version."""

    meta: Meta
    body: bytes


@dataclass(frozen=True, slots=True)
class Created:
    """Our body is what the key holds, and nothing was there before."""

    version: Version


@dataclass(frozen=True, slots=True)
class Exists:
    """Somebody else's object was seen at the key; ours was not stored.

    Unless something between us and the store sent our request twice and somebody then replaced ours: whoever must be
    sure after `Exists` or `Stale` looks for a mark of its own in the body.
    """

    version: Version


@dataclass(frozen=True, slots=True)
class Replaced:
    """Our body took the place of exactly the version we named."""

    version: Version


@dataclass(frozen=True, slots=True)
class Stale:
    """The object is no longer the version we named; ours was not stored."""

    version: Version | None
    """What was seen instead; None if the object is gone."""


class Store(Protocol):
    """A place for objects, shared by everyone who has its address.

    Every method may raise `InvalidKey`; `Misconfigured` where an operator has to act (bucket, credentials);
    `Unavailable` when nothing was changed and a later try may succeed. A method that writes may also raise
    `OutcomeUnknown`. What a write has answered is durable and seen by every later read and list.

    A key must not also be the folder of another key: some stores keep folders as files.
    """

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent. Of many writers at once exactly one gets `Created`.

        If an answer is lost and somebody deletes the object before we look, it may be created a second time.
        """
        ...

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version. Of many writers at once exactly one gets `Replaced`."""
        ...

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object whatever is there: for keys that nobody else writes."""
        ...

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """The object, or its bytes from `start` up to but not including `end`, or None where it is absent.

        A range past the end of the object is cut there, so it may come back empty.
        """
        ...

    async def head(self, key: str) -> Meta | None:
        """What is known of the object without its body, or None where it is absent."""
        ...

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[Entry]]:
        """Pages of the objects below a folder (the whole store by default), in the order of their keys' UTF-8 bytes.

        Only keys greater than `start_after` are listed. An object that comes, changes or goes during the listing
        may be listed or not; every other object is listed exactly once.
        """
        ...

    async def delete(self, key: str) -> None:
        """Make the object absent. That it already was is no error."""
        ...
