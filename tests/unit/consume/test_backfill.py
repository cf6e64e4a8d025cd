"""A backfill: every file of a listing once, also those that landed long ago, in memory that does not grow."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.consume.backfill_state import BackfillSharedState
from lakehead.consume.coordinator import QueueCoordinator
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.message_reader import MessageReader
from lakehead.consume.objects import MessageFormat
from lakehead.consume.ports import LandingReport, ReadUnit
from lakehead.consume.queue import Message
from lakehead.consume.queues.file_list_queue import FileListQueue
from lakehead.consume.routes import Route
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.shared_state import Opened, QueueSharedState
from lakehead.ids import RandomIds, system_random
from lakehead.lake.landed_units import LandedUnits, PauseLost
from lakehead.lake.landing import Landing, Snapshot, Unit, UnitRemainder
from lakehead.lake.ledger import StoreLedger
from lakehead.state.model import FileOutcome, StoredPointer
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import ListedObject
from tests.support.async_tests import async_test
from tests.support.effort import effort
from tests.support.state_tools import HandClock, removed

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
KEYS = effort(30_000, soak=1_000_000)
"""Several times as many as are held at once."""
SETTINGS = PipelineSettings(
    name="backfill", commit_timeout=timedelta(milliseconds=10), max_messages=2_000, max_held=4_000
)


class KeyStore(MemoryStore):
    """A store that makes up its keys while they are listed."""

    def __init__(self, keys: int) -> None:
        super().__init__(clock=SystemClock())
        self.keys = keys

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        del folder
        first = int(start_after.partition(".")[0] or -1) + 1
        for start in range(first, self.keys, 1_000):
            yield [
                ListedObject(f"{number:07}.json", 1, number) for number in range(start, min(start + 1_000, self.keys))
            ]


def number_of(unit: str) -> int:
    return int(unit.rpartition("/")[2].partition(".")[0])


@dataclass
class CountingState:
    """A shared state that has a byte for each unit: 1 if it is ours, 2 if it has landed."""

    units: bytearray
    released: int = 0

    async def open(self, _table: str, units: Collection[str]) -> Opened:
        done = {unit for unit in units if self.units[number_of(unit)] == 2}
        for unit in units:
            self.units[number_of(unit)] |= 1
        return Opened(dict.fromkeys((unit for unit in units if unit not in done), 0), frozenset(done), frozenset())

    async def extend(self, _table: str, units: Collection[str]) -> set[str]:
        return set(units)

    async def release(self, _table: str, units: Collection[str]) -> None:
        self.released += len(units)

    async def count_try(self, _table: str, tries: Mapping[str, int]) -> Mapping[str, int]:
        return tries

    async def take_back_try(self, _table: str, tries: Mapping[str, int]) -> None: ...

    async def settled(self, _table: str, units: Collection[str]) -> set[str]:
        return set(units) & set()

    async def acknowledge(self, _table: str, units: Collection[str]) -> None: ...

    async def record(self, _table: str, outcomes: Sequence[FileOutcome]) -> None: ...

    async def prune(self, _table: str) -> int | None: ...

    async def remembered(self, _table: str) -> int:
        return len(self.units)


@dataclass
class CountingLandings:
    """Lands units by counting each of them."""

    landed: bytearray
    held: Callable[[], int] = lambda: 0
    most_held: int = 0

    async def uuid(self, _table: str) -> str:
        return TABLE

    async def land(
        self,
        _table: str,
        works: Sequence[Work],
        *,
        is_held: Callable[[UnitKey], bool],
        read: Callable[[Sequence[UnitKey]], None],
    ) -> LandingReport:
        assert all(is_held(work.key) for work in works)
        read([work.key for work in works])
        await asyncio.sleep(0)
        self.most_held = max(self.most_held, self.held())
        for work in works:
            self.landed[number_of(work.key.unit)] += 1
        return LandingReport(landed={work.key: ReadUnit(1, 1) for work in works})


class NoDeadLetters:
    async def give_up(self, work: Work, table: str, reason: str, tries: int) -> bool:
        raise AssertionError((work, table, reason, tries))

    async def give_up_message(self, message: Message, reason: str) -> None:
        raise AssertionError((message, reason))

    async def close_landed(self, table: str, units: Collection[str]) -> None: ...


@pytest.mark.slow
@async_test
async def test_every_file_of_a_long_listing_lands_once_and_little_is_held_at_any_time() -> None:
    queue = FileListQueue.of_store(KeyStore(KEYS), "s3://bucket/in", SystemClock())
    landings = CountingLandings(bytearray(KEYS))
    coordinator = QueueCoordinator(
        SETTINGS,
        queue,
        MessageReader(format=MessageFormat.LISTED, routes=[Route(table="raw.files")]),
        shared=CountingState(bytearray(KEYS)),
        landings=landings,
        dead_letters=NoDeadLetters(),
        clock=SystemClock(),
        random=system_random(),
    )
    landings.held = lambda: coordinator.held_messages + len(queue._table)

    running = asyncio.ensure_future(coordinator.run())
    while not queue.drained and not running.done():  # noqa: ASYNC110 - as the command does it
        await asyncio.sleep(0.05)
    coordinator.stop()
    await running
    await queue.close()

    assert Counter(landings.landed) == {1: KEYS}
    assert landings.most_held <= 2 * SETTINGS.max_held + 2_000


@dataclass
class Backfilled:
    """A backfill's state over a ledger whose units were pruned."""

    state: State
    clock: HandClock
    ledger: StoreLedger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = StoreLedger(MemoryStore(clock=self.clock))

    async def land_and_forget(self, *units: str) -> None:
        landing = Landing("token", tuple(UnitRemainder(Unit(unit)) for unit in units), None)
        await self.ledger.record(TABLE, Snapshot(1, None, 1, landing))
        self.state.landings.rebuild(TABLE, StoredPointer(1, 1), [])

    def opened_by(self, owner: str) -> BackfillSharedState:
        shared = QueueSharedState(self.state, owner, SETTINGS)
        landed = LandedUnits(state=self.state, ledger=self.ledger, owner=owner)
        return BackfillSharedState(shared, landed, "s3://b/in/")


@pytest.fixture
def backfilled(tmp_path: Path) -> Iterator[Backfilled]:
    clock = HandClock()
    with open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds()) as state:
        yield Backfilled(state, clock)


@async_test
async def test_what_landed_and_was_forgotten_is_done_and_what_is_new_is_ours(backfilled: Backfilled) -> None:
    await backfilled.land_and_forget("s3://b/in/old", "s3://b/elsewhere")
    shared = backfilled.opened_by("us")

    opened = await shared.open(TABLE, ["s3://b/in/old", "s3://b/in/new"])

    assert (dict(opened.ours), set(opened.done)) == ({"s3://b/in/new": 0}, {"s3://b/in/old"})
    await shared.close()


@async_test
async def test_nothing_is_pruned_during_a_backfill_and_all_of_it_afterwards(backfilled: Backfilled) -> None:
    await backfilled.land_and_forget("s3://b/in/old")
    shared = backfilled.opened_by("us")
    await shared.open(TABLE, ["s3://b/in/old"])

    backfilled.clock.at += timedelta(minutes=50)
    during = removed(backfilled.state, TABLE, timedelta(minutes=1))
    await shared.close()
    backfilled.clock.at += timedelta(minutes=50)
    after = removed(backfilled.state, TABLE, timedelta(minutes=1))

    assert (during, after) == (0, 1)


@async_test
async def test_a_lost_pause_lets_nothing_be_acquired_until_all_is_restored_again(backfilled: Backfilled) -> None:
    await backfilled.land_and_forget("s3://b/in/old")
    shared = backfilled.opened_by("us")
    await shared.open(TABLE, ["s3://b/in/new"])
    backfilled.clock.at += timedelta(days=30)
    assert removed(backfilled.state, TABLE, timedelta(days=1)) == 1  # the process was asleep, and its pause is over

    with pytest.raises(PauseLost):
        await shared.open(TABLE, ["s3://b/in/old"])
    again = await shared.open(TABLE, ["s3://b/in/old"])

    assert (list(again.ours), set(again.done)) == ([], {"s3://b/in/old"})
    await shared.close()


class Sleeper(QueueSharedState):
    """A shared state whose process is stopped for a month right before it opens units for the first time."""

    def __init__(self, state: State, owner: str, clock: HandClock) -> None:
        super().__init__(state, owner, SETTINGS)
        self.sleeping_state, self.clock = state, clock
        self.forgotten: list[int | None] = []

    async def open(self, table: str, units: Collection[str]) -> Opened:
        if not self.forgotten:
            self.clock.at += timedelta(days=30)
            self.forgotten.append(removed(self.sleeping_state, TABLE, timedelta(days=1)))
        return await super().open(table, units)


@async_test
async def test_a_process_that_sleeps_while_it_opens_units_acquires_none_that_was_forgotten(
    backfilled: Backfilled,
) -> None:
    await backfilled.land_and_forget("s3://b/in/old")
    sleeper = Sleeper(backfilled.state, "us", backfilled.clock)
    landed = LandedUnits(state=backfilled.state, ledger=backfilled.ledger, owner="us")
    shared = BackfillSharedState(sleeper, landed, "s3://b/in/")

    with pytest.raises(PauseLost):
        await shared.open(TABLE, ["s3://b/in/old", "s3://b/in/new"])
    again = await shared.open(TABLE, ["s3://b/in/old", "s3://b/in/new"])

    assert sleeper.forgotten == [1]
    assert (list(again.ours), set(again.done)) == (["s3://b/in/new"], {"s3://b/in/old"})
    await shared.close()
