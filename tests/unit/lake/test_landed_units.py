"""Units that landed long ago: a source that names them again lands none of them twice."""

import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.lake.documents import ledger_key
from lakehead.lake.landed_units import LandedUnits, PauseLost, RestoredUnits
from lakehead.lake.landing import Landing, Snapshot, Unit, UnitRemainder
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.state_progress import state_landings
from lakehead.state.model import PruneLimits, ShardState, StoredPointer
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire.errors import Unreadable
from tests.support.async_tests import async_test
from tests.support.state_tools import HOUR, HandClock, removed

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
WINDOW = timedelta(days=14)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def state(tmp_path: Path, clock: HandClock) -> Iterator[State]:
    with open_state(f"sqlite:///{tmp_path}/state.db", clock, RandomIds()) as opened:
        yield opened


@pytest.fixture
def landed(state: State, clock: HandClock) -> LandedUnits:
    """Of an empty ledger whose store has the state's clock."""
    return LandedUnits(state=state, ledger=StoreLedger(MemoryStore(clock=clock, page_size=7)), owner="backfill")


async def land(landed: LandedUnits, *units: str, generation: int = 0) -> Snapshot:
    """Land units, settle and acknowledge them."""
    state = landed.state
    pointer = state.landings.pointer(TABLE)
    before = pointer.last_landing if pointer else None
    number = len(await landed.ledger.sequences(TABLE)) + 1
    landing = Landing(f"token-{number}", tuple(UnitRemainder(Unit(unit, generation)) for unit in units), before)
    snapshot = Snapshot(1000 - number, before, number, landing)
    await landed.ledger.record(TABLE, snapshot)
    new = StoredPointer(snapshot.id, snapshot.id)
    assert state.landings.settle(TABLE, pointer, new, state_landings(snapshot))
    state.shards.acknowledge(TABLE, units, generation=generation)
    return snapshot


def completed(state: State, generation: int = 0) -> set[str]:
    return {
        shard.unit
        for shard in state.shards.page(TABLE, state=ShardState.COMPLETED, limit=100_000)
        if shard.generation == generation
    }


async def record_chain(landed: LandedUnits, chain: Sequence[Sequence[str]], *, first: int = 1) -> None:
    """Landings that are in the ledger, and whose shards were pruned long ago."""
    for number, units in enumerate(chain, first):
        before = number - 1 if number > 1 else None
        landing = Landing(f"token-{number}", tuple(UnitRemainder(Unit(unit)) for unit in units), before)
        await landed.ledger.record(TABLE, Snapshot(number, before, number, landing))
    last = first + len(chain) - 1
    landed.state.landings.rebuild(TABLE, StoredPointer(last, last), [])


async def land_many_and_prune(landed: LandedUnits, clock: HandClock) -> set[str]:
    units = [f"s3://bucket/in/{number:03}" for number in range(100)]
    await record_chain(landed, [(unit, f"elsewhere/{unit}") for unit in units])
    clock.at += 2 * WINDOW
    return set(units)


@async_test
async def test_what_landed_below_the_prefix_is_known_again_until_it_is_released(
    landed: LandedUnits, state: State, clock: HandClock
) -> None:
    units = await land_many_and_prune(landed, clock)

    assert await landed.restore(TABLE, "s3://bucket/in/") == RestoredUnits(landings=100, units=100)

    assert completed(state) == units
    opened = state.shards.open(TABLE, ["s3://bucket/in/007", "s3://bucket/in/new"], token="backfill")
    assert [shard.state for shard in opened] == [ShardState.COMPLETED, ShardState.READY]
    await landed.confirm(TABLE)
    assert removed(state, TABLE, WINDOW) == 0, "pruning is paused"
    await landed.release(TABLE)
    assert removed(state, TABLE, WINDOW) == 100


@async_test
async def test_restored_shards_do_not_crowd_out_those_of_the_queue(
    landed: LandedUnits, state: State, clock: HandClock
) -> None:
    await land_many_and_prune(landed, clock)
    await land(landed, "of the queue")
    await landed.restore(TABLE)
    await landed.release(TABLE)

    state.pruning.prune(TABLE, owner="us", pipeline="us", limits=PruneLimits(100 * WINDOW, 1), every=timedelta(0))

    assert completed(state) == {"of the queue"}


@async_test
async def test_what_a_dead_backfill_restored_does_not_stay(landed: LandedUnits, state: State, clock: HandClock) -> None:
    units = await land_many_and_prune(landed, clock)
    await landed.restore(TABLE, "s3://")
    assert removed(state, TABLE, WINDOW) == 0

    clock.at += 2 * HOUR
    assert removed(state, TABLE, WINDOW) == 100

    with pytest.raises(PauseLost, match="run it again"):
        await landed.confirm(TABLE)
    again = replace(landed, owner="another start")
    assert await again.restore(TABLE, "s3://") == RestoredUnits(100, 100)
    assert completed(state) == units


@async_test
async def test_restoring_twice_or_at_once_changes_nothing(landed: LandedUnits, state: State, clock: HandClock) -> None:
    await land_many_and_prune(landed, clock)
    await landed.restore(TABLE)
    before = state.shards.page(TABLE)

    await replace(landed, owner="another").restore(TABLE)

    assert state.shards.page(TABLE) == before
    await landed.release(TABLE)
    assert removed(state, TABLE, WINDOW) == 0, "the other one's pause lasts"


@async_test
async def test_a_unit_that_was_pruned_and_came_again_is_completed(
    landed: LandedUnits, state: State, clock: HandClock
) -> None:
    await land_many_and_prune(landed, clock)
    unit = "s3://bucket/in/007"
    state.shards.open(TABLE, [unit], token="queue")
    state.shards.acquire(TABLE, [unit], owner="queue", lease_until=state.now() + HOUR)

    await landed.restore(TABLE)

    [shard] = state.shards.read(TABLE, [unit])
    assert (shard.state, shard.acknowledged_at) == (ShardState.COMPLETED, None)


@async_test
async def test_generations_are_kept_apart(landed: LandedUnits, state: State, clock: HandClock) -> None:
    await land(landed, "a", generation=1)
    clock.at += 2 * WINDOW
    assert removed(state, TABLE, WINDOW) == 1

    await landed.restore(TABLE)

    assert (completed(state, 0), completed(state, 1)) == (set(), {"a"})


@async_test
async def test_a_landing_that_was_rolled_back_does_not_count(landed: LandedUnits, state: State) -> None:
    first = await land(landed, "kept")
    await land(landed, "rolled back")
    state.landings.rebuild(TABLE, StoredPointer(first.id, first.id), state_landings(first))
    await land(landed, "after it")

    assert (await landed.restore(TABLE)).units == 2

    assert completed(state) == {"kept", "after it"}


@async_test
async def test_a_landing_that_is_missing_in_the_ledger_stops_it(landed: LandedUnits) -> None:
    missing = await land(landed, "a")
    await land(landed, "b")
    await landed.ledger.store.delete(ledger_key(TABLE, missing.id, missing.sequence))

    with pytest.raises(Unreadable, match=f"lacks landing {missing.id}"):
        await landed.restore(TABLE)


@pytest.mark.slow
@async_test
async def test_a_rebuild_in_the_middle_stops_it_before_it_marks_what_was_rolled_back(
    landed: LandedUnits, state: State, clock: HandClock
) -> None:
    await land_many_and_prune(landed, clock)
    read = landed.ledger.store.get

    class Rolling(MemoryStore):
        async def get(self, key: str, *, start: int = 0, end: int | None = None):  # type: ignore[no-untyped-def]
            state.landings.rebuild(TABLE, None, [])
            return await read(key, start=start, end=end)

    rolling = Rolling(clock=SystemClock())
    rolling.list = landed.ledger.store.list  # type: ignore[method-assign]

    with pytest.raises(PauseLost):
        await replace(landed, ledger=StoreLedger(rolling)).restore(TABLE)

    assert completed(state) == set()


@async_test
async def test_a_table_without_landings_has_none(landed: LandedUnits, state: State) -> None:
    assert await landed.restore(TABLE) == RestoredUnits(0, 0)
    await landed.confirm(TABLE)
    assert state.shards.counts(TABLE) == {}


@pytest.mark.slow
@async_test
async def test_a_landing_of_more_units_than_one_transaction_takes_is_restored_in_parts(
    landed: LandedUnits, state: State, clock: HandClock
) -> None:
    await land(landed, *(f"unit {number}" for number in range(5_001)))
    clock.at += 2 * WINDOW
    assert removed(state, TABLE, WINDOW) == 5_001

    assert (await landed.restore(TABLE)).units == 5_001

    assert state.shards.counts(TABLE) == {ShardState.COMPLETED: 5_001}


@pytest.mark.slow
@async_test
async def test_pruning_stays_paused_while_a_long_ledger_without_a_unit_below_the_prefix_is_read(
    landed: LandedUnits, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record_chain(landed, [(f"elsewhere/{number}",) for number in range(200)])
    read = StoreLedger.read

    async def slowly(self: StoreLedger, table: str, snapshot: int, sequence: int) -> Snapshot | None:
        clock.at += timedelta(minutes=1)
        removed(landed.state, TABLE, WINDOW)
        return await read(self, table, snapshot, sequence)

    monkeypatch.setattr(StoreLedger, "read", slowly)
    await landed.restore(TABLE, "s3://bucket/in/")

    await landed.confirm(TABLE)


@pytest.mark.slow
@async_test
async def test_memory_does_not_grow_with_the_ledger(landed: LandedUnits) -> None:
    recorded = 0

    async def peak(landings: int) -> int:
        nonlocal recorded
        chain = [[f"{number}/{unit:0200}" for unit in range(50)] for number in range(recorded, recorded + landings)]
        await record_chain(landed, chain, first=recorded + 1)
        recorded += landings
        tracemalloc.start()
        await landed.restore(TABLE)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    await peak(10)  # loads what is loaded once
    small = await peak(90)
    assert await peak(200) < 1.3 * small
