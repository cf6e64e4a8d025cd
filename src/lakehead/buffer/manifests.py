"""Reading and conditionally writing the manifests of a queue."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

from lakehead.buffer.compare_and_set import until_written
from lakehead.buffer.counts import CONSUMER, PRODUCER
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import QueueFull
from lakehead.buffer.layout import ManifestKeys
from lakehead.retry import Backoff
from lakehead.storage.port import Created, Exists, Replaced, Stale, Version
from lakehead.wire.queue_manifests import MAX_BYTES, ConsumerManifest, Manifest, ProducerManifest


@dataclass(frozen=True, slots=True)
class StoredManifest(Generic[Manifest]):
    """One state of a manifest in the store."""

    manifest: Manifest
    object_version: Version | None
    """None if there is no manifest yet."""


class ManifestFile(Generic[Manifest]):
    """One manifest of one queue. An absent one is read as empty; an unreadable one is never overwritten."""

    def __init__(self, key: str, role: str, decode: Callable[[bytes, str], Manifest], deps: BufferDeps) -> None:
        self.key = key
        self.latest: StoredManifest[Manifest] | None = None
        """The state that we last read or wrote. Others may have replaced it since."""
        self._role = role
        self._decode: Callable[[bytes, str], Manifest] = decode
        self._deps = deps

    async def read(self) -> StoredManifest[Manifest]:
        """Return the current state. Raises `Unavailable`, or `Unreadable` if the object is not a valid manifest."""
        found = await self._deps.store.get(self.key, end=MAX_BYTES + 1)
        body, version = (found.body, found.meta.version) if found else (b"{}", None)
        self.latest = StoredManifest(self._decode(body, self.key), version)
        return self.latest

    async def write(
        self, current: StoredManifest[Manifest], manifest: Manifest, *, max_bytes: int | None = None
    ) -> bool:
        """Replace exactly the state `current` (compare-and-set); return whether that succeeded.

        Raises `Unavailable` if nothing was written; `OutcomeUnknown` if it may have been, or may be later; `QueueFull`,
        before anything is written, if the manifest would exceed `max_bytes`, or the limit that readers have.
        """
        store, counts = self._deps.store, self._deps.counts
        written = replace(manifest, version=current.manifest.version + 1, nonce=self._deps.ids.uuid())
        body = written.encode()
        if len(body) > (MAX_BYTES if max_bytes is None else max_bytes):
            raise QueueFull(
                f"{self.key} would grow to {len(body):,} bytes, which is too large. Nothing was queued or changed. "
                "Check that a collector is running. If collectors cannot keep up, use more partitions."
            )
        counts.manifest_writes[self._role] += 1
        self.latest = None
        result: Created | Exists | Replaced | Stale
        if current.object_version is None:
            result = await store.create(self.key, body)
        else:
            result = await store.replace(self.key, body, current.object_version)
        if isinstance(result, Created | Replaced):
            self.latest = StoredManifest(written, result.version)
            return True
        counts.manifest_conflicts[self._role] += 1
        return False

    async def update(self, change: Callable[[Manifest], Manifest], backoff: Backoff, *, action: str) -> Manifest:
        """Replace the current manifest by what `change` makes of it, as often as necessary; return the new manifest.

        `change` may be applied twice, if the outcome of an attempt is unknown. If it returns its argument itself,
        nothing is written. Raises `Unavailable`, or `QueueContended` after the last attempt; `OutcomeUnknown` if an
        attempt may have been applied. `action` is for the messages.
        """

        async def attempt() -> Manifest | None:
            current = await self.read()
            changed = change(current.manifest)
            if changed is current.manifest or await self.write(current, changed):
                return changed
            return None

        return await until_written(attempt, self._deps, backoff, action=f"{action} {self.key}")


@dataclass(frozen=True, slots=True)
class ManifestPair:
    """Both manifests of one partition."""

    producer: ManifestFile[ProducerManifest]
    consumer: ManifestFile[ConsumerManifest]

    @classmethod
    def of(cls, keys: ManifestKeys, deps: BufferDeps) -> "ManifestPair":
        """Return the manifests at these keys. Nothing is read yet."""
        return cls(
            ManifestFile(keys.producer, PRODUCER, ProducerManifest.decode, deps),
            ManifestFile(keys.consumer, CONSUMER, ConsumerManifest.decode, deps),
        )


async def all_pairs(manifest_path: str, deps: BufferDeps) -> list[ManifestPair]:
    """Return the manifests of every partition. Reads the first one, which has the number of partitions."""
    first = ManifestPair.of(ManifestKeys.of(manifest_path), deps)
    partitions = (await first.producer.read()).manifest.partitions or 1
    return [first, *(ManifestPair.of(ManifestKeys.of(manifest_path, number), deps) for number in range(1, partitions))]
