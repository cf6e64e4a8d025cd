"""What a queue tells of itself: its status, and its metrics."""

from dataclasses import fields

from prometheus_client import CollectorRegistry, generate_latest

from lakehead.buffer.config import CollectorMode
from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.inspection import partition_lags
from lakehead.buffer.metrics import BY_MANIFEST, BY_ROLE, COUNTERS, GAUGES, export_metrics
from lakehead.errors import Unavailable
from lakehead.wire.batch import encode_json
from tests.unit.buffer.support import PAIR, QueueFixture, batches, entries, virtual_time


def exported(counts: BufferCounts) -> dict[str, float]:
    registry = CollectorRegistry()
    export_metrics(counts, registry)
    lines = generate_latest(registry).decode().splitlines()
    found = (line.removeprefix("lakehead_buffer_").rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in found}


def deps(queue: QueueFixture) -> BufferDeps:
    return BufferDeps(store=queue.store, clock=queue.clock, ids=queue.world.ids, random=queue.world.random)


def test_every_count_is_a_metric_and_every_metric_a_count() -> None:
    counted = {each.name for each in fields(BufferCounts)}

    assert counted == {*COUNTERS, *BY_ROLE, *GAUGES, *BY_MANIFEST, "flush_seconds"}


@virtual_time
async def test_the_metrics_move_as_things_happen(queue: QueueFixture) -> None:
    ingestor = queue.ingestor()
    await ingestor.ingest(entries("12345"))
    assert exported(ingestor.counts)["bytes_unflushed"] == 8
    await queue.sleep(1)
    queue.store.fail_calls(batches, Unavailable("down"))
    await ingestor.ingest(entries("lost"))
    await queue.sleep(1)
    queue.store.stop_failing()
    await ingestor.close()
    now = exported(ingestor.counts)
    assert now["batches_flushed_total"] == now["entries_flushed_total"] == now["flushes_failed_total"] == 1
    assert now["bytes_flushed_total"] == 8
    assert now["bytes_unflushed"] == 0
    assert now['manifest_writes_total{role="producer"}'] == 1
    assert now['manifest_conflicts_total{role="producer"}'] == 0
    assert now["flush_seconds_count"] == 1
    assert now['flush_seconds_bucket{le="0.05"}'] == 0
    assert now['flush_seconds_bucket{le="0.2"}'] == now['flush_seconds_bucket{le="+Inf"}'] == 1
    assert 0.1 <= now["flush_seconds_sum"] < 0.2

    async with queue.collector(done_cleanup_threshold=1) as collector:
        await queue.collect_all(collector)
    now = exported(collector.counts)
    assert now["batches_collected_total"] == now["entries_collected_total"] == now["acks_total"] == 1
    assert now["bytes_collected_total"] == len(encode_json(entries("12345")))
    assert now["cleaned_up_total"] == 1
    assert now['queue_length{manifest="ingest/manifest.json"}'] == 0


@virtual_time
async def test_the_lag_is_what_the_manifests_say_and_is_counted(queue: QueueFixture) -> None:
    await queue.fill("a", "b", "c")
    async with queue.collector(mode=CollectorMode.COMPETING, read_ahead=1) as collector:
        first = await collector.next_batch()
        assert first is not None
        await collector.ack(first)
        assert await collector.next_batch() is not None
        await queue.sleep(5)
        looking = deps(queue)
        [now] = await partition_lags(PAIR.producer, looking)
        assert (now.pending, now.waiting, now.claimed, now.done) == (3, 2, 1, 1)
        assert now.oldest_seconds is not None
        assert 5 < now.oldest_seconds < 6
        assert now.waiting_bytes == 2 * len(encode_json(entries("b")))
        assert looking.counts.queue_length == {PAIR.producer: 2}
        assert looking.counts.queue_bytes == {PAIR.producer: now.waiting_bytes}
        assert looking.counts.oldest_seconds == {PAIR.producer: now.oldest_seconds}


@virtual_time
async def test_a_queue_of_foreign_locations_has_a_lag_too(queue: QueueFixture) -> None:
    await queue.store.inner.put(PAIR.producer, b'{"pending": ["../bad", "not/there"]}')
    [now] = await partition_lags(PAIR.producer, deps(queue))
    assert (now.waiting, now.oldest_seconds, now.waiting_bytes) == (2, None, 0)
