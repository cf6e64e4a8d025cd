"""Nobody stores a manifest that nobody can read: appends stop first, and what shrinks a manifest still works."""

import pytest

from lakehead.buffer import manifests, producer
from lakehead.buffer.errors import QueueFull
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.watcher import Durable
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.wire import queue_manifests
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest
from tests.unit.buffer.support import LOST, PAIR, QueueFixture, entries, virtual_time, writes

MOST_READ = 4_000
MOST_APPENDED = 3_000


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_manifests, "MAX_BYTES", MOST_READ)
    monkeypatch.setattr(manifests, "MAX_BYTES", MOST_READ)
    monkeypatch.setattr(producer, "MAX_APPEND_BYTES", MOST_APPENDED)


def test_writers_write_less_than_readers_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert queue_manifests.MAX_APPEND_BYTES < queue_manifests.MAX_BYTES


async def fill_up(queue: QueueFixture) -> int:
    """Ingest until the queue takes no more; how many batches it took."""
    ingestor = queue.ingestor()
    for number in range(1_000):
        watcher = await ingestor.ingest(entries(str(number)))
        await queue.sleep(1)
        if isinstance(watcher.result(), QueueFull):
            await ingestor.close()
            return number
        assert isinstance(watcher.result(), Durable)
    raise AssertionError("it is never full")


@virtual_time
async def test_an_append_that_would_make_the_manifest_too_large_is_refused_and_everything_before_it_can_be_read(
    queue: QueueFixture,
) -> None:
    count = await fill_up(queue)
    there = await queue.store.inner.get(PAIR.producer)
    assert there is not None
    assert MOST_APPENDED - 100 < len(there.body) <= MOST_APPENDED
    collector = queue.collector(done_cleanup_threshold=5, read_ahead=4)
    assert await queue.collect_all(collector) == [str(number) for number in range(count)]
    await collector.close()


@virtual_time
async def test_a_full_queue_says_what_to_do_and_takes_entries_again_once_it_was_cleaned_up(queue: QueueFixture) -> None:
    await fill_up(queue)
    writes_before = queue.store.count(writes(PAIR.producer))
    async with queue.ingestor() as ingestor:
        watcher = await ingestor.ingest(entries("too much"))
        with pytest.raises(QueueFull, match=r"collector is running.*partitions"):
            await watcher.await_durable()
        assert isinstance(watcher.result(), Unavailable), "it is not queued and never will be"
        assert queue.store.count(writes(PAIR.producer)) == writes_before
        async with queue.collector(done_cleanup_threshold=1) as collector:
            await queue.collect_all(collector)
        await (await ingestor.ingest(entries("again"))).await_durable()
    async with queue.collector() as collector:
        assert await queue.collect_all(collector) == ["again"]


@virtual_time
async def test_a_manifest_between_the_two_limits_is_read_and_cleaned_up(queue: QueueFixture) -> None:
    await queue.fill(*"abc")
    now = await queue.producer_manifest()
    larger = ProducerManifest(
        pending=now.pending, version=now.version, data_path_prefix="ingest", partitions=1,
        producers={f"producer-{number:04}": 1 for number in range(170)},
    )  # fmt: skip
    assert MOST_APPENDED < len(larger.encode()) < MOST_READ
    await queue.store.inner.put(PAIR.producer, larger.encode())
    async with queue.collector(done_cleanup_threshold=1) as collector:
        assert await queue.collect_all(collector) == ["a", "b", "c"]
    assert (await queue.producer_manifest()).pending == ()


@virtual_time
async def test_no_manifest_is_written_that_could_not_be_read(queue: QueueFixture) -> None:
    file = ManifestPair.of(PAIR, queue.deps()).consumer
    seen = await file.read()
    with pytest.raises(QueueFull, match=r"manifest\.consumer\.json"):
        await file.write(seen, ConsumerManifest(done=("x" * MOST_READ,)))
    assert await queue.keys() == []
    assert await file.write(seen, ConsumerManifest(done=("x",)))


@virtual_time
async def test_an_append_in_doubt_that_no_longer_fits_is_not_told_as_refused(
    queue: QueueFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer, "MAX_APPEND_BYTES", MOST_APPENDED)
    await queue.fill("a")
    queue.store.fail_calls(writes(PAIR.producer), LOST, times=1)
    ingestor = queue.ingestor()
    watcher = await ingestor.ingest(entries("b"))
    await queue.sleep(0.1)
    while queue.store.count(writes(PAIR.producer)) != 2:
        await queue.sleep(0)
    monkeypatch.setattr(producer, "MAX_APPEND_BYTES", 0)
    await queue.sleep(60)
    assert isinstance(watcher.result(), OutcomeUnknown), "the first try may land yet"
    await ingestor.close()
