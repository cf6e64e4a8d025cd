"""Setting aside what cannot be read, with the reason, so that the queue moves on and nothing is lost."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec

from lakehead.buffer.layout import entry_for, quarantine_folder, quarantine_name
from lakehead.buffer.means import Means
from lakehead.buffer.producer import Producer
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire.errors import Unreadable

TRIES = 3
PART_BYTES = 64 << 20
"""An object that is too large to be read is set aside in parts of this size."""

T = TypeVar("T")


class SetAside(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of something that was set aside."""

    location: str
    reason: str
    at_ms: int
    """When, by the clock of the collector, in milliseconds since the Unix epoch."""

    keys: list[str] = []
    """Where its bytes are now: nowhere if they were gone, one after the other if there were too many."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What one queue has set aside."""

    manifest_path: str
    means: Means

    @property
    def folder(self) -> str:
        """Where it lies."""
        return quarantine_folder(self.manifest_path)

    async def set_aside(self, location: str, key: str | None, reason: str) -> None:
        """Copy the object at a key, if it is there, and note why. Doing it twice does no harm."""
        name = quarantine_name(location)
        keys = [] if key is None else await self._copy(key, f"{self.folder}/{name}.batch")
        note = SetAside(location, reason, self.means.clock.now_ns() // 1_000_000, keys)
        await self._surely(lambda: self.means.store.create(f"{self.folder}/{name}.json", msgspec.json.encode(note)))
        self.means.counts.quarantined += 1

    async def replay(self, location: str, producer: Producer) -> str:
        """Queue what was set aside once more, as an entry of its own; the entry's location. The copy stays."""
        note = f"{self.folder}/{quarantine_name(location)}.json"
        there = await self.means.store.get(note)
        keys = _decoded(there.body, note).keys if there else []
        if len(keys) != 1:
            why = "is not there" if not keys else "is in several parts, which no reader takes"
            raise LakeheadError(f"What was set aside of {location} cannot be queued again: it {why}.")
        return await producer.append(entry_for(keys[0], self.means.ids))

    async def _copy(self, key: str, target: str) -> list[str]:
        """Copy an object part by part; the keys of the parts. A single part has the target's own name."""
        keys: list[str] = []
        start = 0
        while True:
            there = await self.means.store.get(key, start=start, end=start + PART_BYTES)
            if there is None or (start and not there.body):
                return keys
            part = target if there.meta.size <= PART_BYTES else f"{target}.{len(keys):04d}"
            await self._surely(partial(self.means.store.create, part, there.body))
            keys.append(part)
            start += len(there.body)
            if start >= there.meta.size:
                return keys

    async def _surely(self, write: Callable[[], Awaitable[T]]) -> None:
        """Write what nobody else writes otherwise, so that it may be tried again when it is in doubt."""
        failure: Exception | None = None
        for _ in range(TRIES):
            try:
                await write()
            except (Unavailable, OutcomeUnknown) as error:
                failure = error
            else:
                return
        raise Unavailable(f"A batch that cannot be read could not be set aside ({failure}). Try again later.")


def _decoded(body: bytes, key: str) -> SetAside:
    try:
        return msgspec.json.decode(body, type=SetAside)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"The note {key} of what was set aside cannot be read ({error}).") from None
