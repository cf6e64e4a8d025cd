"""Pruning for several pipelines of one table, on every server."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection

from lakehead.ids import RandomIds
from lakehead.state.keys import CHUNK, unit_key
from lakehead.state.model import LandedShard, Pruned, PruneLimits, ShardState
from lakehead.state.opening import open_state
from lakehead.state.state import State
from tests.support.state_tools import FIRST, HOUR, MINUTE, NOON, PATIENT, SECOND, HandClock, hold, landing, removed

pytest_plugins = ["tests.support.state_fixtures"]

DAY = timedelta(days=1)
SHORT, LONG = PruneLimits(DAY), PruneLimits(14 * DAY)
NOT_DEBOUNCED = timedelta(0)


def pruned(state: State, table: str, limits: PruneLimits, pipeline: str = "pipeline") -> Pruned:
    answer = state.pruning.prune(table, owner="us", pipeline=pipeline, limits=limits, every=NOT_DEBOUNCED)
    assert answer is not None
    return answer


def land(state: State, table: str, *units: str) -> None:
    """Land units and acknowledge them."""
    state.landings.rebuild(table, None, [])
    add(state, table, *units)


def add(state: State, table: str, *units: str) -> None:
    pointer = state.landings.pointer(table)
    next_pointer = FIRST if pointer == SECOND else SECOND
    assert state.landings.settle(table, pointer, next_pointer, [landing(next_pointer, *units)])
    assert state.shards.acknowledge(table, units) == len(units)


def left(state: State, table: str) -> set[str]:
    return {shard.unit for shard in state.shards.page(table, limit=10_000)}


def test_the_largest_window_of_the_tables_pipelines_counts(state: State, table: str, clock: HandClock) -> None:
    state.pruning.record(table, "long", LONG)
    land(state, table, "a")
    clock.at += 2 * DAY

    assert pruned(state, table, SHORT, "short") == Pruned(expired=0, over_limit=0, paused=False, limits=LONG)
    assert pruned(state, f"{table[:-1]}-", SHORT).limits == SHORT, "another table has pipelines of its own"


def test_a_pipeline_that_was_not_seen_for_its_own_window_no_longer_counts(
    state: State, table: str, clock: HandClock
) -> None:
    state.pruning.record(table, "long", LONG)
    clock.at += 13 * DAY
    land(state, table, "a")
    clock.at = NOON + 14 * DAY - HOUR
    assert pruned(state, table, SHORT, "short").limits == LONG
    clock.at += 2 * HOUR

    assert pruned(state, table, SHORT, "short") == Pruned(expired=1, over_limit=0, paused=False, limits=SHORT)


def test_a_debounced_call_records_that_its_pipeline_is_alive(state: State, table: str, clock: HandClock) -> None:
    state.pruning.prune(table, owner="other", pipeline="other", limits=SHORT, every=1000 * DAY)
    clock.at += 13 * DAY

    assert state.pruning.prune(table, owner="us", pipeline="long", limits=LONG, every=HOUR) is None

    assert state.pruning.limits(table) == LONG


@pytest.mark.parametrize(
    ("others", "ours", "largest"), [(None, 3, None), (3, None, None), (3, 5, 5), (5, 3, 5), (None, None, None)]
)
def test_the_largest_number_of_shards_counts_and_none_is_larger_than_any(
    state: State, table: str, others: int | None, ours: int | None, largest: int | None
) -> None:
    state.pruning.record(table, "other", PruneLimits(DAY, others))
    state.pruning.record(table, "ours", PruneLimits(DAY, ours))

    assert state.pruning.limits(table) == PruneLimits(DAY, largest)


def test_a_pipelines_new_limits_replace_its_old_ones(state: State, table: str) -> None:
    state.pruning.record(table, "p" * 300, LONG)
    state.pruning.record(table, "p" * 300, SHORT)

    assert state.pruning.limits(table) == SHORT


def test_beyond_the_limit_the_oldest_acknowledgements_go_first(state: State, table: str, clock: HandClock) -> None:
    land(state, table, "first")
    for unit in ("second", "third", "fourth"):
        clock.at += MINUTE
        add(state, table, unit)
    hold(state, table, "in progress")
    state.shards.open(table, ["ready"], token="us")

    answer = pruned(state, table, PruneLimits(14 * DAY, 2))

    assert (answer.expired, answer.over_limit) == (0, 2)
    assert left(state, table) == {"third", "fourth", "in progress", "ready"}


def test_more_than_one_statement_deletes_goes_and_exactly_the_limit_stays(state: State, table: str) -> None:
    land(state, table, *(f"unit {number}" for number in range(3_507)))

    assert pruned(state, table, PruneLimits(14 * DAY, 1_003)).over_limit == 2_504

    assert state.shards.counts(table) == {ShardState.COMPLETED: 1_003}


def test_what_was_not_acknowledged_or_is_a_dead_letter_neither_counts_nor_goes(
    state: State, table: str, clock: HandClock
) -> None:
    land(state, table, "landed")
    hold(state, table, "bad")
    state.history.bury(table, "bad", "no", owner="us")
    assert state.shards.acknowledge(table, ["bad"]) == 1
    assert state.landings.settle(table, SECOND, FIRST, [landing(FIRST, "unacknowledged")])

    assert pruned(state, table, PruneLimits(DAY, 1)).over_limit == 0
    clock.at += 1000 * DAY
    assert pruned(state, table, PruneLimits(DAY, 0)).expired == 1

    assert left(state, table) == {"unacknowledged", "bad"}


def test_after_a_rebuild_the_limit_leaves_the_newest_landings(state: State, table: str) -> None:
    units = [f"unit {number}" for number in range(10)]
    chain = [landing(type(FIRST)(number, number), unit) for number, unit in enumerate(units, 1)]
    state.landings.rebuild(table, type(FIRST)(10, 10), chain)

    assert pruned(state, table, PruneLimits(DAY, 3)).over_limit == 7

    assert left(state, table) == set(units[-3:])


class TestPauses:
    def test_nothing_is_deleted_while_one_lasts_and_all_of_it_after_its_end(
        self, state: State, table: str, clock: HandClock
    ) -> None:
        land(state, table, "a", "b")
        clock.at += 20 * DAY
        state.pruning.pause(table, "backfill", clock.at + HOUR)
        state.pruning.pause(table, "another", clock.at + HOUR)

        assert pruned(state, table, PruneLimits(DAY, 0)) == Pruned(
            expired=0, over_limit=0, paused=True, limits=PruneLimits(DAY, 0)
        )
        state.pruning.end_pause(table, "backfill")
        assert pruned(state, table, SHORT).paused
        state.pruning.end_pause(table, "another")
        assert pruned(state, table, SHORT).expired == 2

    def test_the_pause_of_a_dead_owner_ends_by_time_and_its_owner_sees_that_it_was_over(
        self, state: State, table: str, clock: HandClock
    ) -> None:
        land(state, table, "a")
        state.pruning.pause(table, "slow", clock.at + HOUR)
        clock.at += 20 * DAY
        assert state.pruning.extend_pause(table, "slow", clock.at + HOUR), "nobody has pruned since it was over"
        clock.at += 2 * HOUR

        assert pruned(state, table, SHORT).expired == 1

        assert not state.pruning.extend_pause(table, "slow", clock.at + HOUR)

    def test_a_rebuild_ends_it(self, state: State, table: str) -> None:
        state.pruning.pause(table, "backfill", NOON + HOUR)
        state.landings.rebuild(table, None, [])

        assert not state.pruning.extend_pause(table, "backfill", NOON + HOUR)

    def test_one_does_not_begin_while_a_deletion_is_under_way(
        self, state_url: str, state: State, table: str, clock: HandClock
    ) -> None:
        land(state, table, "a")
        clock.at += 20 * DAY
        removing, remove = threading.Event(), state.pruning._remove
        seen: list[bool] = []

        def slowly(*arguments: Any) -> int | None:
            removed = remove(*arguments)
            if not removing.is_set():
                removing.set()
                seen.append(begun.wait(0.5))  # within the transaction that has deleted
            return removed

        def begin() -> None:
            removing.wait(60)
            with open_state(state_url, clock, RandomIds(), settings=PATIENT) as backfill:
                backfill.pruning.pause(table, "backfill", clock.at + HOUR)
            begun.set()

        begun, beginning = threading.Event(), threading.Thread(target=begin)
        beginning.start()
        state.pruning._remove = slowly  # type: ignore[assignment,method-assign]
        pruned(state, table, SHORT)
        beginning.join()

        assert seen == [False]

    def test_one_that_begins_in_the_middle_of_a_pruning_stops_it(
        self, state_url: str, state: State, table: str, clock: HandClock
    ) -> None:
        land(state, table, *(f"unit {number}" for number in range(2_500)))
        clock.at += 20 * DAY
        write = state.database.write

        def then_pause(work: Callable[[Connection], object]) -> object:
            answer = write(work)
            if answer == 1_000:
                backfill.pruning.pause(table, "backfill", clock.at + HOUR)
            return answer

        with open_state(state_url, clock, RandomIds(), settings=PATIENT) as backfill:
            state.database.write = then_pause  # type: ignore[assignment,method-assign]
            answer = pruned(state, table, SHORT)

        assert (answer.expired, answer.paused) == (1_000, True)
        assert state.shards.counts(table) == {ShardState.COMPLETED: 1_500}


class TestRestore:
    def restore(self, state: State, table: str, *units: str) -> bool:
        return state.landings.restore(
            table,
            [landing(FIRST, *units)],
            [NOON - 300 * DAY],
            paused_by="backfill",
            paused_until=state.now() + HOUR,
        )

    def test_pruned_units_are_completed_again_with_their_old_acknowledgement(self, state: State, table: str) -> None:
        state.pruning.pause(table, "backfill", NOON + HOUR)
        hold(state, table, "opened again")

        assert self.restore(state, table, "pruned", "opened again")
        assert self.restore(state, table, "pruned", "opened again"), "again changes nothing"

        shards = {shard.unit: shard for shard in state.shards.page(table)}
        assert {shard.state for shard in shards.values()} == {ShardState.COMPLETED}
        assert {shard.snapshot for shard in shards.values()} == {FIRST.snapshot}
        assert shards["pruned"].acknowledged_at == NOON - 300 * DAY
        assert shards["opened again"].acknowledged_at is None, "its message waits for its acknowledgement"

    def test_they_stay_during_the_pause_and_go_with_the_first_pruning_after_it(self, state: State, table: str) -> None:
        state.pruning.pause(table, "backfill", NOON + HOUR)
        self.restore(state, table, "pruned")
        assert pruned(state, table, SHORT).expired == 0

        state.pruning.end_pause(table, "backfill")

        assert pruned(state, table, SHORT).expired == 1

    def test_without_a_pause_nothing_is_restored(self, state: State, table: str, clock: HandClock) -> None:
        assert not self.restore(state, table, "a")
        state.pruning.pause(table, "backfill", NOON + HOUR)
        clock.at += 2 * HOUR
        removed(state, table, DAY)
        assert not self.restore(state, table, "a")

        assert state.shards.page(table) == []


class TestTries:
    def test_tries_that_do_not_count_are_taken_back_by_their_owner_only(self, state: State, table: str) -> None:
        hold(state, table, "a", "b")
        hold(state, table, "theirs", owner="them")
        assert state.shards.set_tries(table, {"a": 2, "b": 2}, owner="us") == {"a", "b"}
        state.shards.set_tries(table, {"theirs": 1}, owner="them")

        for _ in range(2):
            assert state.shards.set_tries(table, {"a": 1, "theirs": 0}, owner="us") == {"a"}
        assert state.shards.reset_tries(table, ["b", "theirs"], owner="us") == 1

        assert {shard.unit: shard.tries for shard in state.shards.page(table)} == {"a": 1, "b": 0, "theirs": 1}


def test_pages_hold_every_shard_once_in_one_order(state: State, table: str) -> None:
    units = {f"unit {number}" for number in range(25)}
    for generation in (0, 1):
        state.shards.open(table, units, token="us", generation=generation)
    hold(state, table, "unit 3")

    seen = []
    after = None
    while page := state.shards.page(table, after=after, limit=7):
        assert len(page) <= 7
        seen += [(shard.generation, shard.unit) for shard in page]
        after = page[-1]

    assert len(seen) == 50
    assert set(seen) == {(generation, unit) for generation in (0, 1) for unit in units}
    assert [shard.unit for shard in state.shards.page(table, state=ShardState.IN_PROGRESS)] == ["unit 3"]


def land_listed(state: State, table: str, *units: str) -> list[LandedShard]:
    """Land units of a folder: their messages are not acknowledged. Returns them in the order of their keys."""
    pointer = state.landings.pointer(table)
    next_pointer = FIRST if pointer == SECOND else SECOND
    assert state.landings.settle(table, pointer, next_pointer, [landing(next_pointer, *units)])
    assert next_pointer.snapshot is not None
    return [LandedShard(unit, next_pointer.snapshot) for unit in sorted(units, key=unit_key)]


def test_units_of_a_folder_are_read_page_by_page(state: State, table: str) -> None:
    folder, names = "file:///Drop_%/", [f"file:///Drop_%/{number}" for number in range(7)]
    landed = land_listed(state, table, *names, "file:///drop_%/other", "file:///Drop__/other", "file:///Drop_%")
    ours = [each for each in landed if each.unit in names]
    add(state, table, f"{folder}acknowledged")
    hold(state, table, f"{folder}in progress", f"{folder}given up")
    assert state.history.bury(table, f"{folder}given up", "corrupt", owner="us") is not None

    later = state.now() + MINUTE

    first = state.pruning.not_acknowledged(table, folder, before=later, limit=4)
    rest = state.pruning.not_acknowledged(table, folder, before=later, after=first[-1], limit=4)

    assert first + rest == ours
    assert state.pruning.not_acknowledged(table, folder, before=later, after=rest[-1]) == []
    assert state.pruning.not_acknowledged(table, folder, before=NOON - MINUTE) == [], "what landed since is left out"


def test_the_shard_of_a_file_that_is_gone_is_deleted_and_no_other(state: State, table: str) -> None:
    [gone, there] = land_listed(state, table, "f/a", "f/b")

    assert state.pruning.remove_landed(table, [gone]) == 1

    assert left(state, table) == {there.unit}
    assert state.pruning.remove_landed(table, [gone]) == 0
    assert state.pruning.remove_landed(table, []) == 0


def test_a_file_that_was_dropped_again_and_has_landed_again_keeps_its_shard(state: State, table: str) -> None:
    [before] = land_listed(state, table, "f/a")
    assert state.pruning.remove_landed(table, [before]) == 1  # by another process, which saw that it was gone
    [after] = land_listed(state, table, "f/a")
    assert after.snapshot != before.snapshot

    assert state.pruning.remove_landed(table, [before]) == 0

    assert left(state, table) == {"f/a"}


def test_the_shard_of_a_file_that_was_dropped_again_and_is_being_read_stays(state: State, table: str) -> None:
    [before] = land_listed(state, table, "f/a")
    assert state.pruning.remove_landed(table, [before]) == 1
    hold(state, table, "f/a")

    assert state.pruning.remove_landed(table, [before]) == 0

    assert left(state, table) == {"f/a"}


def test_a_pause_also_keeps_the_shards_of_files_that_are_gone(state: State, table: str) -> None:
    landed = land_listed(state, table, "f/a")
    state.pruning.pause(table, "backfill", state.now() + HOUR)

    assert state.pruning.remove_landed(table, landed) is None
    assert left(state, table) == {"f/a"}

    state.pruning.end_pause(table, "backfill")
    assert state.pruning.remove_landed(table, landed) == 1


def test_the_window_of_a_unit_that_a_folder_has_does_not_end(state: State, table: str, clock: HandClock) -> None:
    land(state, table, "f/a", "f/b")
    assert state.shards.keep(table, ["f/a", "f/never"]) == 1
    clock.at += 100 * DAY

    assert pruned(state, table, SHORT).expired == 1

    assert left(state, table) == {"f/a"}


def test_the_windows_of_all_units_below_a_folder_are_taken_back(state: State, table: str, clock: HandClock) -> None:
    units = [f"f/{number:04}" for number in range(CHUNK + 1)]
    land(state, table, *units, "F/other", "f")
    assert state.pruning.keep_below(table, "f/") == CHUNK + 1
    assert state.pruning.keep_below(table, "f/") == 0
    clock.at += 100 * DAY

    assert pruned(state, table, SHORT).expired == 2

    assert left(state, table) == set(units)
