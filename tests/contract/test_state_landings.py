"""The landing protocol's transactions, on every server."""

from datetime import UTC, date, datetime, timedelta

import pytest

from lakehead.errors import Misconfigured
from lakehead.state.model import (
    DayState,
    DayStatus,
    Mark,
    Planned,
    PointerMoved,
    ReadBy,
    ShardState,
    SlicePlan,
    StoredPointer,
    StoredSlice,
    Watermark,
)
from lakehead.state.state import State
from tests.support.state_tools import FIRST, HOUR, SECOND, THIRD, HandClock, hold, landing, removed, statements

pytest_plugins = ["tests.support.state_fixtures"]


def test_a_table_has_no_pointer_before_its_first_landing_is_settled(state: State, table: str) -> None:
    assert state.landings.pointer(table) is None


def test_settling_completes_the_units_moves_watermark_and_pointer_and_writes_the_events(
    state: State, table: str
) -> None:
    hold(state, table, "a", "b")
    landed = state.history.event("landed", table=table, payload={"rows": 7})
    reached = datetime(2026, 2, 28, 23, 59, 59, 999999, tzinfo=UTC)

    what = landing(
        FIRST, "a", "b", watermark=reached, slice=3, load_date=date(2026, 3, 1), read_by=ReadBy("at"), events=(landed,)
    )

    assert state.landings.settle(table, None, FIRST, [what])
    assert state.landings.pointer(table) == FIRST
    assert [(s.state, s.snapshot, s.owner) for s in state.shards.read(table, ["a", "b"])] == [
        (ShardState.COMPLETED, FIRST.snapshot, None)
    ] * 2
    assert state.progress.watermark(table) == Watermark(
        table=table,
        value=reached,
        slice=3,
        snapshot=FIRST.snapshot,
        last_loaded=date(2026, 3, 1),
        read_by=ReadBy("at"),
    )
    assert state.history.events(table=table) == [landed]


@pytest.mark.parametrize("expected", [None, FIRST, THIRD], ids=["none", "older", "other"])
def test_settling_from_a_pointer_that_has_moved_writes_nothing(state: State, table: str, expected: object) -> None:
    assert state.landings.settle(table, None, FIRST, [landing(FIRST, "a")])
    assert state.landings.settle(table, FIRST, SECOND, [landing(SECOND, "b")])
    hold(state, table, "c")
    lost = state.history.event("landed", table=table)

    third = landing(THIRD, "c", "d", watermark=9, events=(lost,))
    assert not state.landings.settle(table, expected, THIRD, [third])  # type: ignore[arg-type]  # a parameter of any kind

    assert state.landings.pointer(table) == SECOND
    assert [s.state for s in state.shards.read(table, ["c", "d"])] == [ShardState.IN_PROGRESS]
    assert state.progress.watermark(table) is None
    assert state.history.events(table=table) == []


def test_the_pointer_keeps_the_last_landing_when_snapshots_follow_that_are_none(state: State, table: str) -> None:
    swept, compacted = StoredPointer(1, None), StoredPointer(43, 42)

    assert state.landings.settle(table, None, swept, [])
    assert state.landings.pointer(table) == swept
    assert state.landings.settle(table, swept, compacted, [landing(SECOND, "a")])
    assert state.landings.pointer(table) == compacted


def test_the_snapshot_alone_is_where_the_pointer_is(state: State, table: str) -> None:
    state.landings.settle(table, None, FIRST, [])

    assert not state.landings.settle(table, StoredPointer(SECOND.snapshot, FIRST.last_landing), SECOND, [])
    assert state.landings.settle(table, StoredPointer(FIRST.snapshot, None), SECOND, [])


def test_a_landing_of_units_that_nobody_opened_here_is_settled_all_the_same(state: State, table: str) -> None:
    state.landings.settle(table, None, FIRST, [landing(FIRST, "theirs")])

    [shard] = state.shards.read(table, ["theirs"])
    assert (shard.state, shard.snapshot, shard.acknowledged_at) == (ShardState.COMPLETED, FIRST.snapshot, None)


def test_settling_many_landings_at_once_keeps_each_units_own_snapshot(state: State, table: str) -> None:
    chain = [landing(FIRST, "a", watermark=1), landing(SECOND, "b", watermark=3), landing(THIRD, "c", watermark=2)]

    state.landings.settle(table, None, THIRD, chain)

    found = {shard.unit: shard.snapshot for shard in state.shards.read(table, ["a", "b", "c"])}
    assert found == {"a": FIRST.snapshot, "b": SECOND.snapshot, "c": THIRD.snapshot}
    watermark = state.progress.watermark(table)
    assert watermark is not None
    assert (watermark.value, watermark.snapshot) == (3, SECOND.snapshot)


def test_settling_ten_thousand_units_of_one_landing_completes_them_all(state: State, table: str) -> None:
    units = [f"s3://bucket/date=2026-03-01/{number:08d}.parquet" for number in range(10_000)]
    hold(state, table, *units[:5_000])

    assert state.landings.settle(table, None, FIRST, [landing(FIRST, *units)])

    assert state.shards.counts(table) == {ShardState.COMPLETED: 10_000}


def test_thousands_of_small_landings_are_settled_in_few_statements(state: State, table: str) -> None:
    chain = [landing(StoredPointer(1_000 + n, None), f"unit {n}", watermark=n) for n in range(3_000)]
    state.shards.open(table, ["unit 7"], token="us")

    with statements(state) as sent:
        assert state.landings.settle(table, None, FIRST, chain)

    assert len(sent) < 20
    assert state.shards.counts(table) == {ShardState.COMPLETED: 3_000}
    assert [shard.snapshot for shard in state.shards.read(table, ["unit 7"])] == [1_007]


def test_a_unit_that_landed_twice_keeps_its_first_snapshot(state: State, table: str) -> None:
    state.landings.settle(table, None, FIRST, [landing(FIRST, "a")])
    state.landings.settle(table, FIRST, THIRD, [landing(SECOND, "a", "b"), landing(THIRD, "b")])

    found = {shard.unit: shard.snapshot for shard in state.shards.read(table, ["a", "b"])}
    assert found == {"a": FIRST.snapshot, "b": SECOND.snapshot}


def test_a_dead_letter_that_landed_after_all_has_landed(state: State, table: str) -> None:
    hold(state, table, "a")
    state.history.bury(table, "a", "given up too early", owner="us")

    state.landings.settle(table, None, FIRST, [landing(FIRST, "a")])

    [shard] = state.shards.read(table, ["a"])
    assert shard.snapshot == FIRST.snapshot


def test_a_watermark_never_goes_back_within_its_generation(state: State, table: str) -> None:
    state.landings.settle(table, None, FIRST, [landing(FIRST, "a", watermark=10)])
    state.landings.settle(table, FIRST, SECOND, [landing(SECOND, "b", watermark=9)])

    watermark = state.progress.watermark(table)
    assert watermark is not None
    assert (watermark.value, watermark.snapshot) == (10, FIRST.snapshot)


def test_a_reload_is_a_new_generation_which_may_start_lower_and_is_not_undone_by_the_older(
    state: State, table: str
) -> None:
    state.landings.settle(table, None, FIRST, [landing(FIRST, "a", watermark=10)])
    state.landings.settle(table, FIRST, SECOND, [landing(SECOND, "a", generation=1, watermark=5)])
    state.landings.settle(table, SECOND, THIRD, [landing(THIRD, "b", watermark=11)])

    watermark = state.progress.watermark(table)
    assert watermark is not None
    assert (watermark.generation, watermark.value) == (1, 5)


class TestPlan:
    def test_it_takes_units_whose_lease_we_extended_after_the_fence_and_no_others(
        self, state: State, table: str
    ) -> None:
        hold(state, table, "ours", "old lease")
        hold(state, table, "theirs", owner="them")
        state.shards.open(table, ["ready"], token="us")
        hold(state, table, "done")
        state.landings.settle(table, None, FIRST, [landing(FIRST, "done")])
        fenced_at = state.now()
        state.shards.extend(table, ["ours"], owner="us", lease_until=state.now() + HOUR)
        state.shards.extend(table, ["theirs"], owner="them", lease_until=state.now() + HOUR)

        candidates = ["ready", "theirs", "ours", "old lease", "done", "never opened", "ours"]
        planned = state.landings.plan(table, FIRST.snapshot, candidates, owner="us", fenced_at=fenced_at)

        assert planned == Planned(
            taken=("ours",), landed=("done",), lost=("ready", "theirs", "old lease"), gone=("never opened",)
        )
        [shard] = state.shards.read(table, ["ours"])
        assert shard.state is ShardState.AWAITING_COMMIT

    def test_a_lease_extended_before_the_fence_is_old_even_if_the_clock_was_set_back(
        self, state: State, table: str, clock: HandClock
    ) -> None:
        hold(state, table, "a")
        clock.at -= HOUR
        fenced_at = state.now()

        planned = state.landings.plan(table, None, ["a"], owner="us", fenced_at=fenced_at)

        assert planned == Planned(taken=(), landed=(), lost=("a",), gone=())

    def test_it_is_refused_when_the_pointer_is_elsewhere_and_says_where(self, state: State, table: str) -> None:
        state.landings.settle(table, None, FIRST, [])
        fenced_at = state.now()
        hold(state, table, "a")

        assert state.landings.plan(table, None, ["a"], owner="us", fenced_at=fenced_at) == PointerMoved(FIRST)
        assert state.landings.plan(table, SECOND.snapshot, ["a"], owner="us", fenced_at=fenced_at) == PointerMoved(
            FIRST
        )
        assert [s.state for s in state.shards.read(table, ["a"])] == [ShardState.IN_PROGRESS]

    def test_a_table_without_a_landing_is_planned_from_no_pointer(self, state: State, table: str) -> None:
        fenced_at = state.now()
        hold(state, table, "a")

        planned = state.landings.plan(table, None, ["a"], owner="us", fenced_at=fenced_at)

        assert planned == Planned(taken=("a",), landed=(), lost=(), gone=())

    def test_what_landed_in_an_older_generation_lands_again_in_a_newer(self, state: State, table: str) -> None:
        state.landings.settle(table, None, FIRST, [landing(FIRST, "a")])
        fenced_at = state.now()
        hold(state, table, "a", generation=1)

        planned = state.landings.plan(table, FIRST.snapshot, ["a"], owner="us", fenced_at=fenced_at, generation=1)

        assert planned == Planned(taken=("a",), landed=(), lost=(), gone=())

    def test_a_plan_can_be_made_again_after_the_head_has_moved(self, state: State, table: str) -> None:
        fenced_at = state.now()
        hold(state, table, "a", "b")
        state.landings.plan(table, None, ["a", "b"], owner="us", fenced_at=fenced_at)
        state.landings.settle(table, None, FIRST, [landing(FIRST, "b")])

        fenced_at = state.now()
        state.shards.extend(table, ["a"], owner="us", lease_until=state.now() + HOUR)

        planned = state.landings.plan(table, FIRST.snapshot, ["a", "b"], owner="us", fenced_at=fenced_at)
        assert planned == Planned(taken=("a",), landed=("b",), lost=(), gone=())


class TestRebuild:
    def test_it_gives_back_the_shards_watermarks_and_pointer_that_were_lost(self, state: State, table: str) -> None:
        chain = [landing(FIRST, "a", "b", watermark=5, slice=1), landing(SECOND, "c", watermark=8, slice=2)]
        pointer = StoredPointer(THIRD.snapshot, SECOND.snapshot)
        state.landings.settle(table, None, pointer, chain)
        before = {(s.unit, s.generation, s.state, s.snapshot) for s in state.shards.read(table, ["a", "b", "c"])}
        watermark = state.progress.watermark(table)
        state.landings.rebuild(table, None, [])
        assert state.shards.counts(table) == {}
        assert state.landings.pointer(table) is None

        state.landings.rebuild(table, pointer, chain)

        after = {(s.unit, s.generation, s.state, s.snapshot) for s in state.shards.read(table, ["a", "b", "c"])}
        assert after == before
        assert state.progress.watermark(table) == watermark
        assert state.landings.pointer(table) == pointer

    def test_it_replaces_what_was_known_and_leaves_other_tables_and_history_alone(
        self, state: State, table: str
    ) -> None:
        other = f"{table[:-1]}x"
        day = date(2026, 3, 1)
        for each in (table, other):
            hold(state, each, "under way")
            state.landings.settle(each, None, FIRST, [landing(FIRST, "rolled back", watermark=99)])
            state.progress.mark_days([DayStatus(table=each, load_date=day, phase="raw", state=DayState.DONE)])
            state.slices.save(SlicePlan(id="p", table=each, slices=(StoredSlice(unit="s", bounds={}),)))
        told = state.history.event("told", table=table)
        state.history.add_events([told])

        state.landings.rebuild(table, SECOND, [landing(SECOND, "in the ledger", watermark=7)])

        assert [s.unit for s in state.shards.read(table, ["under way", "rolled back", "in the ledger"])] == [
            "in the ledger"
        ]
        watermark = state.progress.watermark(table, Mark.LANDED)
        assert watermark is not None
        assert watermark.value == 7
        assert state.progress.days([table], day) == []
        assert state.slices.load(table) is None
        assert state.history.events(table=table) == [told]
        assert state.landings.pointer(other) == FIRST
        assert len(state.progress.days([other], day)) == 1
        assert state.slices.load(other) is not None

    def test_a_unit_under_way_fails_closed_after_it(self, state: State, table: str) -> None:
        hold(state, table, "a")
        state.landings.rebuild(table, FIRST, [])
        fenced_at = state.now()

        assert state.shards.extend(table, ["a"], owner="us", lease_until=state.now() + HOUR) == set()
        planned = state.landings.plan(table, FIRST.snapshot, ["a"], owner="us", fenced_at=fenced_at)
        assert planned == Planned(taken=(), landed=(), lost=(), gone=("a",))

    def test_a_settle_under_way_from_the_older_pointer_fails_after_it(self, state: State, table: str) -> None:
        state.landings.settle(table, None, FIRST, [])
        state.landings.rebuild(table, SECOND, [])

        assert not state.landings.settle(table, FIRST, THIRD, [landing(THIRD, "a")])

    def test_the_window_of_rebuilt_shards_starts_with_it(self, state: State, table: str, clock: HandClock) -> None:
        state.landings.rebuild(table, FIRST, [landing(FIRST, "a")])
        window, every = timedelta(days=14), timedelta(0)

        clock.at += timedelta(days=13)
        assert removed(state, table, window, every=every) == 0
        clock.at += timedelta(days=2)
        assert removed(state, table, window, every=every) == 1


@pytest.mark.parametrize("name", ["", "x" * 65, " a", "a ", "a\nb"])
def test_a_table_name_that_servers_would_compare_differently_is_refused(state: State, name: str) -> None:
    with pytest.raises(Misconfigured, match="cannot be a key"):
        state.landings.settle(name, None, FIRST, [])
