"""The `Store` protocol: what every object store can do, and every outcome a call can have."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

Version = NewType("Version", str)
"""Identifies one state of one object. Opaque: pass it back to `replace` or compare it for equality, nothing else.

A store may derive it from the content alone (an ETag), so a body that returns to earlier content may look unchanged.
Put something that only grows, such as a version number, into every body that you replace.
"""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object's metadata."""

    key: str
    size: int
    version: Version
    modified_ns: int
    """When this version was stored, by the store's clock, in nanoseconds since the Unix epoch."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in a listing. It has no version, because not every store lists versions."""

    key: str
    size: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Object:
    """An object's metadata and body. The body belongs to exactly this version."""

    meta: ObjectMeta
    body: bytes


@dataclass(frozen=True, slots=True)
class Created:
    """The object was created. The key was absent before."""

    version: Version


@dataclass(frozen=True, slots=True)
class Exists:
    """The key already holds another object. Nothing was written.

    One exception: if the network sent our request twice and another writer then replaced our object, this is returned
    although our write was applied. To be sure after `Exists` or `Stale`, look for a nonce of your own in the body.
    """

    version: Version


@dataclass(frozen=True, slots=True)
class Replaced:
    """The object was replaced. Before, it was exactly the expected version."""

    version: Version


@dataclass(frozen=True, slots=True)
class Stale:
    """The object is no longer the expected version. Nothing was written."""

    version: Version | None
    """The version found instead; None if the object is gone."""


class Store(Protocol):
    """An object store with conditional writes.

    Every method may raise `InvalidKey`; `Misconfigured` if an operator has to act (bucket, credentials); `Unavailable`
    if nothing was changed and a later attempt may succeed. A method that writes may also raise `OutcomeUnknown`. Once
    a write has returned it is durable, and every later read and list sees it.

    A key must not also be the folder of another key, because some stores keep folders as files.
    """

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent. Of concurrent writers exactly one gets `Created`.

        If a response is lost and the object is deleted before we check for it, it may be created a second time.
        """
        ...

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version. Of concurrent writers exactly one gets `Replaced`."""
        ...

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object unconditionally. Only for keys that have a single writer."""
        ...

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        """Return the object, or its bytes from `start` up to but not including `end`; None if it is absent.

        A range that goes past the end of the object is cut there, so the body may be empty.
        """
        ...

    async def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata, or None if it is absent."""
        ...

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        """Yield pages of the objects in a folder and its subfolders, in the order of their keys' UTF-8 bytes.

        The default is the whole store. Only keys greater than `start_after` are listed. An object that is created,
        changed or deleted during the listing may be missing; every other object is listed exactly once.
        """
        ...

    async def delete(self, key: str) -> None:
        """Delete the object. It is no error if it is absent."""
        ...
