"""The buffer without asyncio, on a real store and real threads."""

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehead import (
    BlockingCollector,
    BlockingIngestor,
    CollectorConfig,
    CollectorMode,
    Durable,
    IngestorConfig,
    InvalidCall,
    KeyValueEntry,
    ObjectStoreConfig,
    Unavailable,
)


@pytest.fixture
def where(tmp_path: Path) -> Iterator[ObjectStoreConfig]:
    yield ObjectStoreConfig(url=f"file://{tmp_path}/store")
    assert not loop_threads(), "one is left"


def loop_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name in ("lakehead-ingestor", "lakehead-collector")]


def ingestor(where: ObjectStoreConfig, **settings: Any) -> BlockingIngestor:
    return BlockingIngestor(IngestorConfig(object_store_config=where, **settings))


def collector(where: ObjectStoreConfig, **settings: Any) -> BlockingCollector:
    return BlockingCollector(CollectorConfig(object_store_config=where, **settings))


def entries(*values: str) -> list[KeyValueEntry]:
    return [KeyValueEntry(b"key", value.encode()) for value in values]


def fill(where: ObjectStoreConfig, *values: str) -> None:
    with ingestor(where) as filling:
        for value in values:
            filling.ingest(entries(value)).wait_durable()


def test_what_goes_in_comes_out(where: ObjectStoreConfig) -> None:
    with ingestor(where, flush_interval=timedelta(hours=1)) as filling:
        watcher = filling.ingest(entries("a"))
        assert watcher.result() is None
        filling.flush()
        assert isinstance(watcher.result(), Durable)
        last = filling.ingest(entries("b"))
    assert isinstance(last.result(), Durable)
    last.wait_durable()
    assert filling.counts.batches_flushed == 2
    with collector(where) as collecting:
        found = []
        while (batch := collecting.next_batch()) is not None:
            found += [entry.value for entry in batch.entries]
            collecting.ack(batch)
    assert found == [b"a", b"b"]


def test_a_loop_waits_for_what_other_threads_ingest(where: ObjectStoreConfig) -> None:
    values = [str(number) for number in range(8)]
    threads = [threading.Thread(target=fill, args=(where, value)) for value in values]
    found = []
    with collector(where) as collecting:
        for thread in threads:
            thread.start()
        for batch in collecting:
            found += [entry.value.decode() for entry in batch.entries]
            collecting.ack(batch)
            if len(found) == len(values):
                break
    for thread in threads:
        thread.join()
    assert sorted(found) == values


@pytest.mark.slow
def test_what_is_released_or_left_goes_to_the_next_collector_at_once(where: ObjectStoreConfig) -> None:
    fill(where, "a", "b", "bad")
    with (
        collector(where, mode=CollectorMode.COMPETING, read_ahead=1) as first,
        collector(where, mode=CollectorMode.COMPETING) as other,
    ):
        batch = first.next_batch()
        assert batch is not None
        assert first.held == (batch.location,)
        first.release(batch)
        again = other.next_batch()
        assert again is not None
        assert (again.location, again.deliveries) == (batch.location, 2)
        with pytest.raises(InvalidCall):
            first.ack(batch)
    with collector(where) as last:
        rest = [last.next_batch() for _ in range(3)]
        assert [each.entries[0].value for each in rest if each is not None] == [b"a", b"b", b"bad"]
        first_two, bad = rest[:2], rest[2]
        last.ack(*(each for each in first_two if each is not None))
        assert bad is not None
        last.quarantine(bad.location, "nobody wants it")
        assert last.held == ()
        assert last.next_batch() is None


def test_errors_come_out_as_they_are(tmp_path: Path) -> None:
    where = ObjectStoreConfig(url=f"file://{tmp_path}/no/such/folder")
    with pytest.raises(Exception, match="Cannot use the folder"), ingestor(where):
        raise AssertionError("it must not open")
    closed = ingestor(ObjectStoreConfig(url=f"file://{tmp_path}/store"))
    with pytest.raises(InvalidCall, match="not a KeyValueEntry"):
        closed.ingest(["x"])  # type: ignore[list-item]  # on purpose
    closed.close()
    closed.close()
    with pytest.raises(InvalidCall, match="closed"):
        closed.ingest(entries("a"))


def test_one_that_is_never_used_starts_no_thread(where: ObjectStoreConfig) -> None:
    unused = ingestor(where)
    assert loop_threads() == []
    unused.close()
    assert loop_threads() == []


def in_the_child(filling: BlockingIngestor, messages: "multiprocessing.Queue[str]") -> None:
    try:
        filling.ingest(entries("child"))
    except InvalidCall as error:
        messages.put(str(error))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # that is what is shown
def test_after_a_fork_it_says_so_instead_of_waiting_for_ever(where: ObjectStoreConfig) -> None:
    forking = multiprocessing.get_context("fork")
    messages: Any = forking.Queue()
    with ingestor(where) as filling:
        filling.ingest(entries("parent")).wait_durable()
        child = forking.Process(target=in_the_child, args=(filling, messages))
        child.start()
        assert "before a fork" in messages.get(timeout=60)
        child.join()


def test_a_watcher_tells_of_a_failure_to_whoever_waits(tmp_path: Path) -> None:
    store = tmp_path / "store"
    filling = ingestor(ObjectStoreConfig(url=f"file://{store}"), flush_interval=timedelta(hours=1))
    filling.ingest(entries("a"))
    filling.flush()
    watcher = filling.ingest(entries("b"))
    (store / "ingest").rename(store / "elsewhere")
    (store / "ingest").write_text("no folder any more")
    with pytest.raises(Exception, match="ingest"):
        filling.flush()
    assert not isinstance(watcher.result(), Durable | Unavailable | None)
    with pytest.raises(Exception, match="ingest"):
        watcher.wait_durable()
    filling.close()


def test_closing_ends_the_calls_of_other_threads(where: ObjectStoreConfig) -> None:
    for _ in range(10):
        filling = ingestor(where, flush_interval=timedelta(milliseconds=1))
        reading = collector(where)
        reading.next_batch()
        seen: list[str] = []

        def flush_all_along(filling: BlockingIngestor = filling) -> None:
            with suppress(InvalidCall):
                while True:
                    filling.ingest(entries("a"))
                    filling.flush()

        def read_all(reading: BlockingCollector = reading, seen: list[str] = seen) -> None:
            seen += [batch.location for batch in reading]

        threads = [threading.Thread(target=work, daemon=True) for work in (flush_all_along, flush_all_along, read_all)]
        for thread in threads:
            thread.start()
        closing = [threading.Thread(target=each.close, daemon=True) for each in (filling, filling, reading, reading)]
        for thread in closing:
            thread.start()
        for thread in (*closing, *threads):
            thread.join(timeout=60)
            assert not thread.is_alive(), "it waits for ever"


@pytest.mark.slow
def test_one_that_nobody_holds_any_more_is_closed(where: ObjectStoreConfig) -> None:
    watcher = ingestor(where, flush_interval=timedelta(milliseconds=300)).ingest(entries("a"))
    watcher.wait_durable()
    del watcher
    ingestor(where, flush_interval=timedelta(hours=1)).ingest(entries("b"))
    abandoned = collector(where)
    assert abandoned.next_batch(timeout=60) is not None
    del abandoned
    threads = [thread for thread in threading.enumerate() if thread.name in loop_threads()]
    for thread in threads:
        thread.join(timeout=60)
    with collector(where) as reading:
        found = [reading.next_batch(timeout=60), reading.next_batch(timeout=60)]
    assert [entry.value for batch in found if batch for entry in batch.entries] == [b"a", b"b"]


def leave_in_the_child(filling: BlockingIngestor, messages: "multiprocessing.Queue[str]") -> None:
    filling.close()
    messages.put("closed")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # that is what is shown
def test_a_child_that_leaves_the_block_of_its_parent_has_nothing_to_close(where: ObjectStoreConfig) -> None:
    forking = multiprocessing.get_context("fork")
    messages: Any = forking.Queue()
    with ingestor(where) as filling:
        filling.ingest(entries("parent")).wait_durable()
        child = forking.Process(target=leave_in_the_child, args=(filling, messages))
        child.start()
        assert messages.get(timeout=60) == "closed"
        child.join()
