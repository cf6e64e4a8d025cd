"""Watched folders: when a file is delivered, and how often."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehead.clock import SystemClock
from lakehead.consume.queue import Message
from lakehead.consume.queues.file_list_queue import FileListQueue
from lakehead.consume.queues.folder_pass import FolderSettings
from lakehead.consume.queues.folder_queue import FolderQueue
from lakehead.consume.queues.listed_files import base_uri, is_temporary
from lakehead.consume.uris import normalise
from lakehead.errors import Misconfigured, Unavailable
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.open_store import open_store
from lakehead.storage.port import ListedObject, ObjectMeta
from tests.support.async_tests import async_test
from tests.support.effort import effort
from tests.support.queue_kinds import OutageStore
from tests.support.simulation import START_NS, World

URL = "memory://inbox"
SETTINGS = FolderSettings(url=URL)
MINUTE = timedelta(minutes=1)


class Setup:
    """A watched folder in virtual time."""

    def __init__(self, page_size: int = 1_000, **changes: Any) -> None:
        self.world = World(3)
        self.clock = self.world.clock
        self.inner = MemoryStore(clock=self.clock, page_size=page_size)
        self.store = OutageStore(self.inner)
        self.queue = FolderQueue(self.store, replace(SETTINGS, **changes), self.clock)

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self.world.loop.simulate(test)

    async def received(self, seconds: float = 10, *, acknowledged: bool = True) -> list[str]:
        """The names of files that come within some seconds."""
        found: list[Message] = []
        ends = self.clock.monotonic() + seconds
        while (left := ends - self.clock.monotonic()) > 0:
            came = await self.queue.receive(10, visibility=MINUTE, wait=timedelta(seconds=left))
            assert not acknowledged or not await self.queue.acknowledge(came)
            found += came
        return sorted(message.body.decode().removeprefix(f"{URL}/") for message in found)


def test_a_file_comes_when_it_has_rested_and_once() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.store.put("a.json", b"1")
        assert await setup.received(1.9) == []
        assert await setup.received(5) == ["a.json"]
        assert await setup.received(7_200) == []

    setup.run(test())


def test_a_file_that_grows_comes_when_it_no_longer_does() -> None:
    setup = Setup()

    async def test() -> None:
        for size in range(1, 10):
            await setup.store.put("log", b"x" * size)
            assert await setup.received(1.5) == []
        assert await setup.received() == ["log"]

    setup.run(test())


def test_a_file_with_an_old_time_must_look_the_same_twice() -> None:
    setup = Setup()
    setup.inner._clock = _Past(setup.clock)  # type: ignore[assignment]  # as `cp -p` and `mv` do it

    async def test() -> None:
        for size in range(1, 5):
            await setup.store.put("moved", b"x" * size)
            assert await setup.received(1.9) == []
        assert await setup.received() == ["moved"]

    setup.run(test())


def test_a_file_that_changes_after_it_was_acknowledged_comes_again() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.store.put("a", b"1")
        assert await setup.received() == ["a"]
        await setup.store.put("a", b"22")
        assert await setup.received() == ["a"]

    setup.run(test())


def test_an_acknowledged_file_comes_again_if_that_is_asked_for_and_once_for_each_time() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.store.put("a", b"1")
        await setup.store.put("b", b"1")
        assert await setup.received() == ["a", "b"]
        setup.queue.deliver_again([f"{URL}/a", f"{URL}/gone"])
        assert await setup.received() == ["a"]
        assert await setup.received(60) == []
        setup.queue.deliver_again([f"{URL}/a"])
        setup.queue.deliver_again([f"{URL}/b"])
        assert await setup.received(60) == ["b"]

    setup.run(test())


def test_a_file_that_is_held_does_not_come_again_though_that_is_asked_for() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.store.put("a", b"1")
        [held] = await setup.queue.receive(1, visibility=MINUTE, wait=MINUTE)
        setup.queue.deliver_again([held.id])
        assert not await setup.queue.acknowledge([held])
        assert await setup.received(60) == []

    setup.run(test())


def test_a_file_that_changes_while_it_is_held_comes_again_after_its_acknowledgement() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.store.put("a", b"1")
        held = await setup.queue.receive(1, visibility=timedelta(hours=1), wait=MINUTE)
        await setup.store.put("a", b"22")
        assert await setup.received() == []
        assert not await setup.queue.acknowledge(held)
        assert await setup.received() == ["a"]

    setup.run(test())


@pytest.mark.parametrize(
    ("key", "hidden"),
    [
        ("a.json", False),
        ("day=1/a.json", False),
        ("_day=1/a.json", False),
        ("a.partial", False),
        (".a.json", True),
        ("_SUCCESS", True),
        ("_temporary/0/a.json", True),
        (".spool/a.json", True),
        ("a.json.tmp", True),
        ("a.PART", True),
    ],
)
def test_hidden_and_temporary_names(key: str, hidden: bool) -> None:  # noqa: FBT001 - a column of the table
    assert is_temporary(key) is hidden


def test_hidden_files_are_left_out_and_counted() -> None:
    setup = Setup()

    async def test() -> None:
        for key in ("a", ".b", "_c/d", "e.tmp"):
            await setup.store.put(key, b"1")
        assert await setup.received() == ["a"]
        assert setup.queue.skipped == 3

    setup.run(test())


def test_a_file_that_is_not_acknowledged_comes_again() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.store.put("a", b"1")
        assert await setup.received(acknowledged=False) == ["a"]
        assert await setup.received(acknowledged=False) == []
        assert await setup.received(60) == ["a"]

    setup.run(test())


@pytest.mark.slow
def test_more_files_than_a_window_or_the_memory_holds_come_again_once_in_a_rescan() -> None:
    setup = Setup(page_size=7, window=20, remembered=30, rescan=timedelta(minutes=10))

    async def test() -> None:
        names = [f"f{number:03d}" for number in range(100)]
        for name in names:
            await setup.store.put(name, b"1")
        await setup.clock.sleep(60)
        assert await setup.received(100) == names
        assert setup.queue._acknowledged.has_forgotten
        assert len(setup.queue._acknowledged) == 30
        await setup.store.put("new", b"1")
        assert await setup.received(430) == ["new"]
        again = await setup.received(120)
        assert len(again) == len(set(again)), "at most once"
        assert 70 <= len(again) <= 101
        assert await setup.received(400) == []

    setup.run(test())


def test_acknowledged_files_are_forgotten_when_they_are_gone() -> None:
    setup = Setup()

    async def test() -> None:
        for number in range(20):
            await setup.store.put(f"f{number}", b"1")
        assert len(await setup.received()) == 20
        for number in range(15):
            await setup.store.delete(f"f{number}")
        assert await setup.received() == []
        assert len(setup.queue._acknowledged) == 5

    setup.run(test())


def test_the_last_complete_listing_and_what_is_gone() -> None:
    setup = Setup()

    async def test() -> None:
        never: datetime | None = setup.queue.last_complete_listing
        assert never is None
        for name in ("a", "b", "c"):
            await setup.store.put(name, b"1")
        await setup.received()
        began = setup.queue.last_complete_listing
        assert began is not None
        start = datetime.fromtimestamp(START_NS / 1e9, UTC)
        assert start <= began <= start + timedelta(seconds=10)
        await setup.store.delete("b")
        asked = [f"{URL}/{name}" for name in ("a", "b", "c", "never")]
        assert await setup.queue.not_listed(asked) == {f"{URL}/b", f"{URL}/never"}
        await setup.received()
        assert setup.queue.last_complete_listing is not None
        assert setup.queue.last_complete_listing > began

    setup.run(test())


def test_a_file_that_a_listing_misses_while_it_is_replaced_is_not_gone() -> None:
    setup = Setup()

    class Misses(OutageStore):
        async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
            async for page in super().list(folder, start_after=start_after):
                yield [file for file in page if file.key != "b"]

    async def test() -> None:
        for name in ("a", "b"):
            await setup.store.put(name, b"1")
        queue = FolderQueue(Misses(setup.inner), SETTINGS, setup.clock)
        assert await queue.not_listed([f"{URL}/a", f"{URL}/b", f"{URL}/c"]) == {f"{URL}/c"}

    setup.run(test())


def test_an_outage_in_the_middle_of_a_pass_loses_nothing() -> None:
    setup = Setup(page_size=3, window=5)

    async def test() -> None:
        for number in range(12):
            await setup.store.put(f"f{number:02d}", b"1")
        await setup.clock.sleep(5)
        assert not await setup.queue.receive(10, visibility=MINUTE, wait=timedelta(0))
        setup.store.is_down = True
        with pytest.raises(Unavailable):
            await setup.queue.receive(10, visibility=MINUTE, wait=MINUTE)
        setup.store.is_down = False
        assert len(await setup.received(60)) == 12

    setup.run(test())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_folder() -> None:
    world = World(1)
    files = effort(20_000, soak=200_000)
    queue = FolderQueue(
        _ManyFiles(files),  # type: ignore[arg-type]  # it only lists
        replace(SETTINGS, window=2_000, remembered=2_000),
        world.clock,
    )

    async def test() -> None:
        came = 0
        while came < files:
            found = await queue.receive(1_000, visibility=MINUTE, wait=MINUTE)
            came += len(found)
            await queue.acknowledge(found)
        assert came == files

    tracemalloc.start()
    try:
        world.loop.simulate(test())
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


def test_a_file_whose_key_cannot_be_looked_up_is_not_known_to_be_gone() -> None:
    setup = Setup()

    async def test() -> None:
        await setup.store.put("there", b"1")
        long, gone = f"{URL}/{'n' * 300}", f"{URL}/gone"
        assert await setup.queue.not_listed([long, gone, f"{URL}/there"]) == {gone}

    setup.run(test())


class MarkedStore(OutageStore):
    """Lists the markers of folders as buckets do: without their slashes, and nothing is there."""

    heads = 0

    async def head(self, key: str) -> ObjectMeta | None:
        self.heads += 1
        return None if key == "folder" else await super().head(key)


def test_the_marker_of_a_folder_is_not_delivered_and_not_looked_for_again() -> None:
    setup = Setup()
    store = setup.store = MarkedStore(setup.inner)
    setup.queue = FolderQueue(store, SETTINGS, setup.clock)

    async def test() -> None:
        for key, body in (("folder", b""), ("empty", b""), ("folder/a", b"1")):
            await store.put(key, body)
        assert await setup.received(60) == ["empty", "folder/a"]
        assert store.heads == 2
        listed = FileListQueue.of_store(store, URL, setup.clock)
        found = await listed.receive(10, visibility=MINUTE, wait=timedelta(0))
        assert sorted(message.id for message in found) == [f"{URL}/empty", f"{URL}/folder/a"]
        await listed.close()

    setup.run(test())


@async_test
async def test_a_real_folder(tmp_path: Path) -> None:
    file = tmp_path / "with space" / "ä%20#1.json"
    file.parent.mkdir()
    file.write_text("{}")
    (tmp_path / ".hidden").write_text("{}")
    url = f"file://{tmp_path}"
    fast = timedelta(milliseconds=20)
    queue = FolderQueue(open_store(url), FolderSettings(url=url, rest=fast, poll_interval=fast), SystemClock())
    waiting = asyncio.create_task(queue.receive(1, visibility=MINUTE, wait=timedelta(seconds=20)))

    [message] = await waiting
    assert message.body.decode() == normalise(str(file)) == file.as_uri()
    assert await queue.not_listed([file.as_uri()]) == set()
    assert message.sent_at is not None
    assert not await queue.acknowledge([message])
    await queue.close()


@pytest.mark.parametrize(
    ("url", "uri"),
    [
        ("s3://bucket/a%20prefix?region=eu-west-1", "s3://bucket/a prefix/"),
        ("s3://bucket", "s3://bucket/"),
        ("file:///in%20box/", "file:///in box/"),
        ("memory://name", "memory://name/"),
    ],
)
def test_the_uri_of_a_folder(url: str, uri: str) -> None:
    assert base_uri(url) == uri


def test_invalid_settings_are_told_at_once() -> None:
    with pytest.raises(Misconfigured, match=r"rest is .* window is 0"):
        FolderSettings(url=URL, rest=-MINUTE, window=0)


class _Past:
    """A clock an hour behind."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock

    def now_ns(self) -> int:
        return int(START_NS - 3_600 * 10**9)


class _ManyFiles:
    """A store that lists many old files, without holding them."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def list(self, *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        first = int(start_after.rpartition("/")[2]) + 1 if start_after else 0
        for start in range(first, self._count, 1_000):
            stop = min(start + 1_000, self._count)
            yield [
                ListedObject(f"a folder of many/{number:012d}", 1, START_NS - 10**12) for number in range(start, stop)
            ]
