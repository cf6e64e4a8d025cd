"""Units that land in several parts: how far they are, on every server."""

from datetime import timedelta

import pytest

from lakehead.state.model import ObjectProgress, Planned, ShardState, StoredLanding
from lakehead.state.state import State
from tests.support.state_tools import FIRST, HOUR, SECOND, THIRD, HandClock, hold, landing, removed

pytest_plugins = ["tests.support.state_fixtures"]

OBJECT = "s3://in/large.json"
HALF, MORE = ObjectProgress(1_000, 10, "e1"), ObjectProgress(2_000, 25, "e1")


def begun(at: object, reached: ObjectProgress = HALF) -> StoredLanding:
    return landing(at, begun={OBJECT: reached})  # type: ignore[arg-type]  # a pointer, as the others have it


def planned(state: State, table: str, at: int, owner: str = "us") -> Planned:
    fenced_at = state.now()
    state.shards.extend(table, [OBJECT], owner=owner, lease_until=state.now() + HOUR)
    found = state.landings.plan(table, at, [OBJECT], owner=owner, fenced_at=fenced_at)
    assert isinstance(found, Planned)
    return found


def test_a_unit_that_is_begun_stays_its_owners_and_is_planned_from_where_it_is(state: State, table: str) -> None:
    hold(state, table, OBJECT)
    state.shards.set_tries(table, {OBJECT: 1}, owner="us")

    assert state.landings.settle(table, None, FIRST, [begun(FIRST)])

    [shard] = state.shards.read(table, [OBJECT])
    assert (shard.owner, shard.snapshot, shard.tries, shard.landed_part) == ("us", None, 0, HALF)
    assert planned(state, table, FIRST.snapshot).begun == {OBJECT: HALF}


def test_whoever_takes_it_over_goes_on_from_where_it_is(state: State, table: str, clock: HandClock) -> None:
    hold(state, table, OBJECT)
    state.landings.settle(table, None, FIRST, [begun(FIRST)])
    clock.at += 2 * HOUR
    hold(state, table, OBJECT, owner="them")

    assert planned(state, table, FIRST.snapshot, owner="them").begun == {OBJECT: HALF}
    assert planned(state, table, FIRST.snapshot).lost == (OBJECT,)


def test_the_last_part_completes_it_and_nothing_is_left_to_land(state: State, table: str) -> None:
    hold(state, table, OBJECT)
    state.landings.settle(table, None, FIRST, [begun(FIRST)])
    state.landings.settle(table, FIRST, SECOND, [landing(SECOND, OBJECT)])

    [shard] = state.shards.read(table, [OBJECT])
    assert (shard.state, shard.snapshot) == (ShardState.COMPLETED, SECOND.snapshot)
    assert planned(state, table, SECOND.snapshot).landed == (OBJECT,)


@pytest.mark.parametrize("settled_together", [True, False])
def test_a_state_that_never_opened_it_learns_how_far_it_is(state: State, table: str, *, settled_together: bool) -> None:
    parts = [begun(FIRST), begun(SECOND, MORE)]
    if settled_together:
        state.landings.settle(table, None, SECOND, parts)
    else:
        state.landings.settle(table, None, FIRST, parts[:1])
        state.landings.settle(table, FIRST, SECOND, parts[1:])
    hold(state, table, OBJECT)

    assert planned(state, table, SECOND.snapshot).begun == {OBJECT: MORE}


def test_parts_that_are_settled_together_with_the_last_one_leave_it_complete(state: State, table: str) -> None:
    state.landings.settle(table, None, THIRD, [begun(FIRST), begun(SECOND, MORE), landing(THIRD, OBJECT, "other")])

    assert {each.unit: each.snapshot for each in state.shards.read(table, [OBJECT, "other"])} == {
        OBJECT: THIRD.snapshot,
        "other": THIRD.snapshot,
    }


def test_it_is_forgotten_with_its_shard_and_never_before_it_is_complete(
    state: State, table: str, clock: HandClock
) -> None:
    state.landings.settle(table, None, FIRST, [begun(FIRST)])
    state.shards.acknowledge(table, [OBJECT])
    clock.at += timedelta(days=100)
    assert removed(state, table, timedelta(days=1)) == 0

    state.landings.settle(table, FIRST, SECOND, [landing(SECOND, OBJECT)])
    state.shards.acknowledge(table, [OBJECT])
    clock.at += timedelta(days=100)
    assert removed(state, table, timedelta(days=1)) == 1
    hold(state, table, OBJECT)
    assert planned(state, table, SECOND.snapshot).begun == {}


def test_one_that_was_given_up_goes_on_when_it_is_tried_again(state: State, table: str) -> None:
    hold(state, table, OBJECT)
    state.landings.settle(table, None, FIRST, [begun(FIRST)])
    assert state.history.bury(table, OBJECT, "gone", owner="us")
    assert planned(state, table, FIRST.snapshot).landed == (OBJECT,)

    assert state.history.revive(table, OBJECT)
    hold(state, table, OBJECT)

    assert planned(state, table, FIRST.snapshot).begun == {OBJECT: HALF}


class TestRebuild:
    def test_it_finds_how_far_units_are(self, state: State, table: str) -> None:
        state.landings.rebuild(table, SECOND, [begun(FIRST), begun(SECOND, MORE)])
        hold(state, table, OBJECT)

        assert planned(state, table, SECOND.snapshot).begun == {OBJECT: MORE}

    def test_one_that_began_again_after_it_was_forgotten_is_not_complete(self, state: State, table: str) -> None:
        anew = ObjectProgress(7, 1, "e2")
        state.landings.rebuild(table, THIRD, [begun(FIRST), landing(SECOND, OBJECT, "other"), begun(THIRD, anew)])
        hold(state, table, OBJECT)

        assert planned(state, table, THIRD.snapshot).begun == {OBJECT: anew}
        assert [each.snapshot for each in state.shards.read(table, ["other"])] == [SECOND.snapshot]


def test_what_a_backfill_restores_does_not_complete_a_unit_that_lands_again(state: State, table: str) -> None:
    hold(state, table, OBJECT)
    state.landings.settle(table, None, SECOND, [begun(SECOND)])
    state.pruning.pause(table, "backfill", state.now() + HOUR)

    old = [landing(FIRST, OBJECT, "other")]
    assert state.landings.restore(table, old, [state.now()], paused_by="backfill", paused_until=state.now() + HOUR)

    assert {each.unit: each.state for each in state.shards.read(table, [OBJECT, "other"])} == {
        OBJECT: ShardState.IN_PROGRESS,
        "other": ShardState.COMPLETED,
    }
