"""How a queue lies in its store, for operators. It only reads, and goes on where a manifest cannot be read."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from lakehead.buffer.layout import Pair, is_batch, object_key
from lakehead.buffer.manifests import ManifestFile, PairFiles, Stored
from lakehead.buffer.means import Means
from lakehead.buffer.quarantine import Quarantine, SetAside
from lakehead.errors import Misconfigured
from lakehead.storage.keys import is_legal
from lakehead.storage.port import Entry
from lakehead.wire.errors import Unreadable
from lakehead.wire.queue_manifests import ConsumerManifest, Manifest, ProducerManifest

READS_AT_ONCE = 16

A = TypeVar("A")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition as it was when it was looked at."""

    number: int
    pair: Pair
    producer: ProducerManifest | None
    consumer: ConsumerManifest | None
    """Either is None where it cannot be read, and empty where there is none yet."""

    is_stored: bool
    """Whether at least one of the two is in the store."""

    unreadable: Mapping[str, str]
    """Why a manifest cannot be read, a sentence each, by its key."""

    @property
    def pending(self) -> tuple[str, ...]:
        """What is queued, acknowledged or not, as the producer manifest has it."""
        return self.producer.pending if self.producer else ()

    @property
    def done(self) -> tuple[str, ...]:
        """What is acknowledged and waits for a clean-up."""
        return self.consumer.done if self.consumer else ()

    @property
    def claimed(self) -> Mapping[str, int]:
        """Claims, and when each was last refreshed, in milliseconds since the Unix epoch."""
        return self.consumer.claimed if self.consumer else {}

    @property
    def waiting(self) -> tuple[str, ...]:
        """What is not acknowledged yet, claimed or not, in the order of the queue."""
        done = set(self.done)
        return tuple(location for location in dict.fromkeys(self.pending) if location not in done)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far the readers of one partition are behind its writers."""

    partition: int
    manifest: str
    pending: int
    """Locations in the producer manifest, acknowledged ones that wait for a clean-up among them."""

    waiting: int
    """Of those, the ones that are not acknowledged yet."""

    claimed: int
    done: int
    waiting_bytes: int
    """Bytes of the queue's own batches that are not acknowledged yet."""

    oldest_seconds: float | None
    """How long ago the first that waits was stored, by the store's clock; None where nothing waits, or it is gone."""


@dataclass(frozen=True, slots=True)
class Notes:
    """What a queue has set aside, by the keys of its notes."""

    read: Mapping[str, SetAside]
    unreadable: Mapping[str, str]
    """Why a note cannot be read, a sentence each."""

    there: frozenset[str]
    """Every key in the quarantine folder."""


async def look(manifest_path: str, means: Means, *, search: bool = False) -> list[Partition]:
    """Every partition of a queue. Raises `Misconfigured` where there is none.

    How many there are stands in the first. With `search`, and where the first cannot be read, the store is asked
    for the manifests of others too, such as those that were left when there were more.
    """
    first = await _partition(manifest_path, 0, means)
    numbers = set(range(1, (first.producer.partitions or 1) if first.producer else 1))
    if search or first.producer is None:
        numbers |= await partitions_found(manifest_path, means)
    others = await _side_by_side(lambda number: _partition(manifest_path, number, means), sorted(numbers))
    if not any(each.is_stored for each in (first, *others)):
        raise Misconfigured(
            f"There is no queue at {manifest_path}: neither of its manifests is in the store. "
            "Name the store and the key of the producer manifest."
        )
    return [first, *others]


async def lags(manifest_path: str, means: Means) -> list[Lag]:
    """How far behind each partition is. Raises `Unreadable` with all that cannot be read.

    Length, bytes and age are noted in the counts, for metrics that only a look at the store can tell.
    """
    partitions = await look(manifest_path, means)
    if unreadable := [why for each in partitions for why in each.unreadable.values()]:
        raise Unreadable(" ".join(unreadable))
    stored = await stored_batches(partitions, means)
    found = [await _lag(each, stored, means) for each in partitions]
    for lag in found:
        means.counts.queue_length[lag.manifest] = lag.waiting
        means.counts.queue_bytes[lag.manifest] = lag.waiting_bytes
        means.counts.oldest_seconds[lag.manifest] = lag.oldest_seconds or 0.0
    return found


async def stored_batches(partitions: Collection[Partition], means: Means) -> dict[str, Entry]:
    """The queue's own batches that are in the store, by their locations, in one listing of each prefix."""
    prefixes = {each.producer.data_path_prefix: None for each in partitions if each.producer}
    found: dict[str, Entry] = {}
    for prefix in prefixes:
        if prefix is not None and is_legal(prefix):
            found.update({each.key: each async for each in _listed(prefix, "", means) if is_batch(each.key, prefix)})
    return found


async def missing_objects(locations: Collection[str], means: Means) -> set[str]:
    """Those whose object is not in the store."""
    legal = [location for location in locations if is_legal(object_key(location))]
    heads = await _side_by_side(lambda location: means.store.head(object_key(location)), legal)
    there = {location for location, head in zip(legal, heads, strict=True) if head is not None}
    return set(locations) - there


async def notes(manifest_path: str, means: Means) -> Notes:
    """All that a queue has set aside; a note that cannot be read does not hide the others."""
    folder = Quarantine(manifest_path, means).folder
    there = [each.key async for each in _listed(folder, "", means)]
    keys = [key for key in there if key.endswith(".json")]
    read: dict[str, SetAside] = {}
    unreadable: dict[str, str] = {}
    for key, found in zip(keys, await _side_by_side(means.store.get, keys), strict=True):
        if found is None:
            continue
        try:
            read[key] = msgspec.json.decode(found.body, type=SetAside)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            unreadable[key] = f"The note {key} of what was set aside cannot be read ({error}). Repair it by hand."
    return Notes(read, unreadable, frozenset(there))


async def _lag(partition: Partition, stored: Mapping[str, Entry], means: Means) -> Lag:
    waiting = partition.waiting
    return Lag(
        partition=partition.number,
        manifest=partition.pair.producer,
        pending=len(partition.pending),
        waiting=len(waiting),
        claimed=len(partition.claimed),
        done=len(partition.done),
        waiting_bytes=sum(stored[location].size for location in waiting if location in stored),
        oldest_seconds=await _age(waiting[0], stored, means) if waiting else None,
    )


async def _age(location: str, stored: Mapping[str, Entry], means: Means) -> float | None:
    """A store tells its time only of what it stores, so `now` is ours, unless the store is known to be ahead of it."""
    key = object_key(location)
    found = stored.get(location) or (await means.store.head(key) if is_legal(key) else None)
    if found is None:
        return None
    now = max([means.clock.now_ns(), *(each.modified_ns for each in stored.values())])
    return (now - found.modified_ns) / 1e9


async def _partition(manifest_path: str, number: int, means: Means) -> Partition:
    pair = Pair.of(manifest_path, number)
    files = PairFiles.of(pair, means)
    # In this order, as for a claim: what is done in the first was pending before the second was read.
    consumer, no_consumer = await _read(files.consumer)
    producer, no_producer = await _read(files.producer)
    return Partition(
        number=number,
        pair=pair,
        producer=producer.manifest if producer else None,
        consumer=consumer.manifest if consumer else None,
        is_stored=any(each is None or each.at is not None for each in (producer, consumer)),
        unreadable={
            key: why for key, why in ((pair.producer, no_producer), (pair.consumer, no_consumer)) if why is not None
        },
    )


async def _read(file: ManifestFile[Manifest]) -> tuple[Stored[Manifest] | None, str | None]:
    try:
        return await file.read(), None
    except Unreadable as error:
        return None, str(error)


async def partitions_found(manifest_path: str, means: Means) -> set[int]:
    """The numbers of the partitions whose producer manifest is in the store, without the first."""
    start = Pair.of(manifest_path, 1).producer[:-1]  # before all of them in the order of keys
    found = set()
    async for each in _listed(manifest_path.rpartition("/")[0], start, means):
        for number in map(int, re.findall(r"\.p(\d{1,4})", each.key)):
            if number and each.key == Pair.of(manifest_path, number).producer:
                found.add(number)
    return found


async def _listed(folder: str, start_after: str, means: Means) -> AsyncIterator[Entry]:
    async for page in means.store.list(folder, start_after=start_after):
        for each in page:
            yield each


async def _side_by_side(read: Callable[[A], Awaitable[T]], given: Sequence[A]) -> list[T]:
    """What is read for each, some at a time."""
    found: list[T] = []
    for start in range(0, len(given), READS_AT_ONCE):
        found += await asyncio.gather(*map(read, given[start : start + READS_AT_ONCE]))
    return found
