"""The state of a queue, for operators. Nothing is written, and an unreadable manifest does not hide the others."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import ManifestKeys, is_batch_key, object_key
from lakehead.buffer.manifests import ManifestFile, ManifestPair, StoredManifest
from lakehead.buffer.quarantine import Quarantine
from lakehead.errors import Misconfigured
from lakehead.storage.object_keys import is_valid_key
from lakehead.storage.port import ListedObject
from lakehead.wire.errors import Unreadable
from lakehead.wire.queue_manifests import ConsumerManifest, Manifest, ProducerManifest
from lakehead.wire.queue_records import QuarantineNote

READS_AT_ONCE = 16

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The state of one partition when it was read."""

    number: int
    keys: ManifestKeys
    producer: ProducerManifest | None
    consumer: ConsumerManifest | None
    """Either manifest is None if it cannot be read, and empty if it does not exist yet."""

    is_stored: bool
    """Whether at least one of the two manifests is in the store."""

    unreadable: Mapping[str, str]
    """Why a manifest cannot be read, by its key."""

    @property
    def pending(self) -> tuple[str, ...]:
        """The locations in the producer manifest, acknowledged or not."""
        return self.producer.pending if self.producer else ()

    @property
    def done(self) -> tuple[str, ...]:
        """The locations that are acknowledged and wait for a cleanup."""
        return self.consumer.done if self.consumer else ()

    @property
    def claimed(self) -> Mapping[str, int]:
        """The claimed locations, and when each claim was last refreshed, in milliseconds since the Unix epoch."""
        return self.consumer.claimed if self.consumer else {}

    @property
    def waiting(self) -> tuple[str, ...]:
        """The locations that are not acknowledged yet, claimed or not, in the order of the queue."""
        done = set(self.done)
        return tuple(location for location in dict.fromkeys(self.pending) if location not in done)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """How far the collectors of one partition are behind its ingestors."""

    partition: int
    manifest: str
    pending: int
    """Locations in the producer manifest, including acknowledged ones that wait for a cleanup."""

    waiting: int
    """Of those, the ones that are not acknowledged yet."""

    claimed: int
    done: int
    waiting_bytes: int
    """Bytes of the queue's own batches that are not acknowledged yet."""

    oldest_seconds: float | None
    """Age of the first location that is not acknowledged, by the store's clock; None if there is none, or no object."""


@dataclass(frozen=True, slots=True)
class QuarantineNotes:
    """The notes in a queue's quarantine."""

    readable: Mapping[str, QuarantineNote]
    """The notes, by their keys."""

    unreadable: Mapping[str, str]
    """Why a note cannot be read, by its key."""

    stored_keys: frozenset[str]
    """Every key in the quarantine folder."""


async def inspect_partitions(manifest_path: str, deps: BufferDeps, *, search: bool = False) -> list[PartitionStatus]:
    """Return every partition of a queue. Raises `Misconfigured` if the queue does not exist.

    The first partition's manifest has their number. With `search`, or if that manifest cannot be read, the store is
    also searched for manifests of further partitions, such as those left from a larger number of partitions.
    """
    first = await _partition(manifest_path, 0, deps)
    numbers = set(range(1, (first.producer.partitions or 1) if first.producer else 1))
    if search or first.producer is None:
        numbers |= await partitions_found(manifest_path, deps)
    others = await _concurrently(lambda number: _partition(manifest_path, number, deps), sorted(numbers))
    if not any(each.is_stored for each in (first, *others)):
        raise Misconfigured(
            f"There is no queue at {manifest_path}: neither of its manifests is in the store. "
            "Check the store URL and the key of the producer manifest."
        )
    return [first, *others]


async def partition_lags(manifest_path: str, deps: BufferDeps) -> list[PartitionLag]:
    """Return how far behind each partition is. Raises `Unreadable` with everything that cannot be read.

    It also updates the gauges `queue_length`, `queue_bytes` and `oldest_seconds` of the counts.
    """
    partitions = await inspect_partitions(manifest_path, deps)
    if unreadable := [error for each in partitions for error in each.unreadable.values()]:
        raise Unreadable(" ".join(unreadable))
    stored = await stored_batches(partitions, deps)
    found = [await _lag(each, stored, deps) for each in partitions]
    for lag in found:
        deps.counts.queue_length[lag.manifest] = lag.waiting
        deps.counts.queue_bytes[lag.manifest] = lag.waiting_bytes
        deps.counts.oldest_seconds[lag.manifest] = lag.oldest_seconds or 0.0
    return found


async def stored_batches(partitions: Collection[PartitionStatus], deps: BufferDeps) -> dict[str, ListedObject]:
    """Return the queue's own batches that are in the store, by location. Lists each prefix once."""
    prefixes = {each.producer.data_path_prefix: None for each in partitions if each.producer}
    found: dict[str, ListedObject] = {}
    for prefix in prefixes:
        if prefix is not None and is_valid_key(prefix):
            found.update({each.key: each async for each in _listed(prefix, "", deps) if is_batch_key(each.key, prefix)})
    return found


async def missing_objects(locations: Collection[str], deps: BufferDeps) -> set[str]:
    """Return the locations whose object is not in the store."""
    valid = [location for location in locations if is_valid_key(object_key(location))]
    heads = await _concurrently(lambda location: deps.store.head(object_key(location)), valid)
    found = {location for location, head in zip(valid, heads, strict=True) if head is not None}
    return set(locations) - found


async def quarantine_notes(manifest_path: str, deps: BufferDeps) -> QuarantineNotes:
    """Return all notes in a queue's quarantine. An unreadable note does not hide the others."""
    folder = Quarantine(manifest_path, deps).folder
    stored_keys = [each.key async for each in _listed(folder, "", deps)]
    keys = [key for key in stored_keys if key.endswith(".json")]
    readable: dict[str, QuarantineNote] = {}
    unreadable: dict[str, str] = {}
    for key, found in zip(keys, await _concurrently(deps.store.get, keys), strict=True):
        if found is None:
            continue
        try:
            readable[key] = QuarantineNote.decode(found.body, key)
        except Unreadable as error:
            unreadable[key] = str(error)
    return QuarantineNotes(readable, unreadable, frozenset(stored_keys))


async def _lag(partition: PartitionStatus, stored: Mapping[str, ListedObject], deps: BufferDeps) -> PartitionLag:
    waiting = partition.waiting
    return PartitionLag(
        partition=partition.number,
        manifest=partition.keys.producer,
        pending=len(partition.pending),
        waiting=len(waiting),
        claimed=len(partition.claimed),
        done=len(partition.done),
        waiting_bytes=sum(stored[location].size for location in waiting if location in stored),
        oldest_seconds=await _age(waiting[0], stored, deps) if waiting else None,
    )


async def _age(location: str, stored: Mapping[str, ListedObject], deps: BufferDeps) -> float | None:
    """Return the age of an object: the store's modification time against our clock, or the store's if that is ahead."""
    key = object_key(location)
    found = stored.get(location) or (await deps.store.head(key) if is_valid_key(key) else None)
    if found is None:
        return None
    now = max([deps.clock.now_ns(), *(each.modified_ns for each in stored.values())])
    return (now - found.modified_ns) / 1e9


async def _partition(manifest_path: str, number: int, deps: BufferDeps) -> PartitionStatus:
    keys = ManifestKeys.of(manifest_path, number)
    pair = ManifestPair.of(keys, deps)
    # In this order, as for a claim: what is done in the first was pending before the second was read.
    consumer, consumer_error = await _read(pair.consumer)
    producer, producer_error = await _read(pair.producer)
    return PartitionStatus(
        number=number,
        keys=keys,
        producer=producer.manifest if producer else None,
        consumer=consumer.manifest if consumer else None,
        is_stored=any(each is None or each.object_version is not None for each in (producer, consumer)),
        unreadable={
            key: error
            for key, error in ((keys.producer, producer_error), (keys.consumer, consumer_error))
            if error is not None
        },
    )


async def _read(file: ManifestFile[Manifest]) -> tuple[StoredManifest[Manifest] | None, str | None]:
    try:
        return await file.read(), None
    except Unreadable as error:
        return None, str(error)


async def partitions_found(manifest_path: str, deps: BufferDeps) -> set[int]:
    """Return the numbers of the partitions whose producer manifest is in the store, without the first."""
    start = ManifestKeys.of(manifest_path, 1).producer[:-1]  # sorts before all of them
    found = set()
    async for each in _listed(manifest_path.rpartition("/")[0], start, deps):
        for number in map(int, re.findall(r"\.p(\d{1,4})", each.key)):
            if number and each.key == ManifestKeys.of(manifest_path, number).producer:
                found.add(number)
    return found


async def _listed(folder: str, start_after: str, deps: BufferDeps) -> AsyncIterator[ListedObject]:
    async for page in deps.store.list(folder, start_after=start_after):
        for each in page:
            yield each


async def _concurrently(read: Callable[[A], Awaitable[T]], arguments: Sequence[A]) -> list[T]:
    """Call `read` for each argument, some at a time; return the results in order."""
    results: list[T] = []
    for start in range(0, len(arguments), READS_AT_ONCE):
        results += await asyncio.gather(*map(read, arguments[start : start + READS_AT_ONCE]))
    return results
