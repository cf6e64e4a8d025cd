"""Locations that are appended together, and what is known of earlier attempts. Nothing here does I/O."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from lakehead.buffer.manifests import StoredManifest
from lakehead.errors import LakeheadError
from lakehead.wire.queue_manifests import ProducerManifest

StoreAgain = Callable[[], Awaitable[str]]
"""Stores a batch under a new key; returns the new location."""


@dataclass(slots=True)
class WaitingAppend:
    """A location that is to be appended to the manifest."""

    location: str
    gc: int | None
    """The `gc` number that was known before the batch was stored; None for objects that orphan GC never deletes."""

    store_again: StoreAgain | None
    outcome: asyncio.Future[str] = field(repr=False)
    """Resolves to the location that was appended, or to the error."""


@dataclass(slots=True)
class AppendGroup:
    """Locations that are appended in one write, and what is known of earlier attempts. It may grow between attempts."""

    waiting: list[WaitingAppend]
    number: int
    base: StoredManifest[ProducerManifest] | None = None
    """The state that the last attempt was to replace."""

    doubt: Exception | None = None
    """Why it is unknown whether an attempt was, or will be, applied. All such attempts were to replace `base`."""

    conflicts: int = 0
    failures: list[Exception] = field(default_factory=list)


def keeps_newer(base: ProducerManifest, now: ProducerManifest) -> bool:
    """Return whether a producer that replaced `base` is certainly still listed in `now`.

    A manifest drops its oldest producers first: while one is listed that has not written since `base`, none that has
    was dropped. A version that did not grow, or a producer that is missing though none was dropped, proves nothing: a
    writer that does not know our keys has written the manifest.
    """
    if now.version <= base.version:
        return False
    if now.forgotten == base.forgotten:
        return base.producers.keys() <= now.producers.keys()
    return any(now.producers.get(name) == number for name, number in base.producers.items())


def succeed(group: Sequence[WaitingAppend]) -> None:
    """Resolve the futures of locations that are in the manifest."""
    for each in group:
        if not each.outcome.done():
            each.outcome.set_result(each.location)


def fail(group: Sequence[WaitingAppend], error: LakeheadError) -> None:
    """Resolve the futures that are still open with an error."""
    for each in group:
        if not each.outcome.done():
            each.outcome.set_exception(error)
            each.outcome.exception()  # the caller may be gone: do not log it as never retrieved
