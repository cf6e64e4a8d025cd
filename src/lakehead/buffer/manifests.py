"""A manifest in a store: read it, and replace exactly what was read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

from lakehead.buffer.counts import CONSUMER, PRODUCER
from lakehead.buffer.errors import QueueFull
from lakehead.buffer.layout import Pair
from lakehead.buffer.means import Means
from lakehead.storage.port import Created, Exists, Replaced, Stale, Version
from lakehead.wire.queue_manifests import MAX_BYTES, ConsumerManifest, Manifest, ProducerManifest


@dataclass(frozen=True, slots=True)
class Stored(Generic[Manifest]):
    """One state of a manifest."""

    manifest: Manifest
    at: Version | None
    """None where there is none yet."""


class ManifestFile(Generic[Manifest]):
    """One manifest of one queue. Absent means empty; what cannot be read is never written over."""

    def __init__(self, key: str, role: str, decode: Callable[[bytes, str], Manifest], means: Means) -> None:
        self.key = key
        self.latest: Stored[Manifest] | None = None
        """What we last read or wrote. Others may have replaced it since."""
        self._role = role
        self._decode: Callable[[bytes, str], Manifest] = decode
        self._means = means

    async def read(self) -> Stored[Manifest]:
        """What is there now. Raises `Unavailable`, or `Unreadable` for what is no such manifest."""
        there = await self._means.store.get(self.key, end=MAX_BYTES + 1)
        body, at = (there.body, there.meta.version) if there else (b"{}", None)
        self.latest = Stored(self._decode(body, self.key), at)
        return self.latest

    async def write(self, seen: Stored[Manifest], manifest: Manifest, *, most_bytes: int | None = None) -> bool:
        """Whether the manifest took the place of exactly the state that was seen.

        Raises `Unavailable` if it did not, and `OutcomeUnknown` if that is not known, nor whether it will yet;
        `QueueFull`, before anything is written, if it would have more bytes than that, or than are ever read.
        """
        store, counts = self._means.store, self._means.counts
        written = replace(manifest, version=seen.manifest.version + 1, nonce=self._means.ids.uuid())
        body = written.encode()
        if len(body) > (MAX_BYTES if most_bytes is None else most_bytes):
            raise QueueFull(
                f"{self.key} would grow to {len(body):,} bytes, which is too many. Nothing was queued or changed. "
                "Is a collector running? If collectors cannot keep up, use more partitions."
            )
        counts.manifest_writes[self._role] += 1
        self.latest = None
        answer: Created | Exists | Replaced | Stale
        if seen.at is None:
            answer = await store.create(self.key, body)
        else:
            answer = await store.replace(self.key, body, seen.at)
        if isinstance(answer, Created | Replaced):
            self.latest = Stored(written, answer.version)
            return True
        counts.manifest_conflicts[self._role] += 1
        return False


@dataclass(frozen=True, slots=True)
class PairFiles:
    """Both manifests of one partition."""

    producer: ManifestFile[ProducerManifest]
    consumer: ManifestFile[ConsumerManifest]

    @classmethod
    def of(cls, pair: Pair, means: Means) -> "PairFiles":
        """The pair as it lies in a store, with nothing known of it yet."""
        return cls(
            ManifestFile(pair.producer, PRODUCER, ProducerManifest.decode, means),
            ManifestFile(pair.consumer, CONSUMER, ConsumerManifest.decode, means),
        )


async def all_pairs(manifest_path: str, means: Means) -> list[PairFiles]:
    """Every pair of a queue: how many there are stands in the first."""
    first = PairFiles.of(Pair.of(manifest_path), means)
    partitions = (await first.producer.read()).manifest.partitions or 1
    return [first, *(PairFiles.of(Pair.of(manifest_path, number), means) for number in range(1, partitions))]
