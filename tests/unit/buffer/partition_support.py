"""Entries of several partitions, and changing the number of partitions."""

from dataclasses import replace
from typing import Any

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.repartition import Repartition
from lakehead.wire.batch import KeyValueEntry, encode_json
from tests.unit.buffer.support import MANIFEST, PAIR, QueueFixture, entries

KEYS = [str(number).encode() for number in range(8)]


def keyed(*numbers: int) -> list[KeyValueEntry]:
    return [KeyValueEntry(key, str(number).encode()) for number in numbers for key in KEYS]


def repartition(queue: QueueFixture) -> Repartition:
    deps = BufferDeps(store=queue.store, clock=queue.clock, ids=queue.world.ids, random=queue.world.random)
    return Repartition(manifest_path=PAIR.producer, deps=deps)


async def by_key(queue: QueueFixture, **settings: Any) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    async with queue.collector(**settings) as collector:
        while (batch := await collector.next_batch()) is not None:
            for entry in batch.entries:
                found.setdefault(entry.key, []).append(int(entry.value))
            await collector.ack(batch)
        assert await collector.next_batch() is None
    return found


async def ingest(queue: QueueFixture, partitions: int, *numbers: int) -> None:
    async with queue.ingestor(partitions=partitions) as ingestor:
        for number in numbers:
            await (await ingestor.ingest(keyed(number))).await_durable()


async def fill_partition(queue: QueueFixture, number: int, *values: str, partitions: int) -> None:
    """Queue a batch for each value in one partition, by hand."""
    locations = []
    for value in values:
        locations.append(f"ingest/{queue.world.ids.uuid()}.batch")
        await queue.store.inner.put(locations[-1], encode_json(entries(value)))
    for each in range(partitions):
        key = ManifestKeys.of(MANIFEST, each).producer
        now = replace(await queue.producer_manifest(key), partitions=partitions, data_path_prefix="ingest")
        if each == number:
            now = replace(now, pending=(*now.pending, *locations))
        await queue.store.inner.put(key, now.encode())
