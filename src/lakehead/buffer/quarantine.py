"""Moving batches that cannot be read to quarantine with the reason, so that the queue goes on and nothing is lost."""

from dataclasses import dataclass

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import entry_location, quarantine_folder, quarantine_name
from lakehead.buffer.producer import Producer
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire.queue_records import QuarantineNote

PART_BYTES = 64 << 20
"""A larger object is copied in parts of this size."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The quarantine of one queue."""

    manifest_path: str
    deps: BufferDeps

    @property
    def folder(self) -> str:
        """The folder of the copies and notes."""
        return quarantine_folder(self.manifest_path)

    async def add(self, location: str, key: str | None, reason: str) -> None:
        """Copy the object at `key`, if there is one, and write a note with the reason. Safe to repeat."""
        name = quarantine_name(location)
        keys = [] if key is None else await self._copy(key, f"{self.folder}/{name}.batch")
        note = QuarantineNote(location, reason, self.deps.clock.now_ns() // 1_000_000, keys)
        await self._create(f"{self.folder}/{name}.json", note.encode())
        self.deps.counts.quarantined += 1

    async def replay(self, location: str, producer: Producer) -> str:
        """Queue a quarantined batch once more, under a new location, which is returned. The copy stays."""
        note = f"{self.folder}/{quarantine_name(location)}.json"
        found = await self.deps.store.get(note)
        keys = QuarantineNote.decode(found.body, note).keys if found else []
        if len(keys) != 1:
            why = "is not in quarantine" if not keys else "was copied in several parts, which readers do not support"
            raise LakeheadError(f"Cannot queue {location} again: it {why}.")
        return await producer.append(entry_location(keys[0], self.deps.ids))

    async def _copy(self, key: str, target: str) -> list[str]:
        """Copy an object part by part; return the keys of the parts. A single part gets the target's own name."""
        keys: list[str] = []
        start = 0
        while True:
            found = await self.deps.store.get(key, start=start, end=start + PART_BYTES)
            if found is None or (start and not found.body):
                return keys
            part = target if found.meta.size <= PART_BYTES else f"{target}.{len(keys):04d}"
            await self._create(part, found.body)
            keys.append(part)
            start += len(found.body)
            if start >= found.meta.size:
                return keys

    async def _create(self, key: str, body: bytes) -> None:
        """Create an object whose content is the same for every writer."""
        try:
            await self.deps.retry_create(key, body)
        except (Unavailable, OutcomeUnknown) as error:
            raise Unavailable(f"Could not move a batch to quarantine ({error}). Try again later.") from error
