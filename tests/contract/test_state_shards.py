"""Units of work, on every server."""

from datetime import timedelta

import pytest

from lakehead.errors import Misconfigured
from lakehead.state.model import DeadLetter, Shard, ShardState
from lakehead.state.state import State
from tests.support.state_tools import FIRST, HOUR, MINUTE, NOON, HandClock, hold, landing, removed

pytest_plugins = ["tests.support.state_fixtures"]

MICROSECOND = timedelta(microseconds=1)
ALIKE = [
    "s3://bucket/Key",
    "s3://bucket/key",
    "s3://bucket/key ",
    "s3://bucket/key  ",
    " s3://bucket/key",
    "s3://bucket/kéy",
    "s3://bucket/ke\u0301y",
    "s3://bucket/kßy",
    "s3://bucket/kssy",
    "s3://bucket/\N{GRINNING FACE}",
    "s3://bucket/\N{GRINNING FACE WITH SMILING EYES}",
    "s3://bucket/a\\b'\"%s:x",
    "s3://bucket/a\r\n\tb",
    "s3://" + "x" * 4_000,
    "s3://" + "x" * 4_000 + "y",
    "s3://" + "\N{GRINNING FACE}" * 4_000,
]


def test_ids_are_told_apart_and_read_back_byte_by_byte(state: State, table: str) -> None:
    state.shards.open(table, ALIKE, token="us")

    assert [shard.unit for shard in state.shards.open(table, ALIKE, token="us")] == ALIKE
    for unit in ALIKE:
        assert state.shards.acquire(table, [unit], owner="us", lease_until=NOON + HOUR) == {unit}
        assert [shard.unit for shard in state.shards.read(table, [unit])] == [unit]
    assert state.shards.counts(table) == {ShardState.IN_PROGRESS: len(ALIKE)}


@pytest.mark.parametrize("unit", ["", "a\0b", "\ud800"])
def test_an_id_that_no_server_keeps_is_refused(state: State, table: str, unit: str) -> None:
    with pytest.raises(Misconfigured, match="The unit"):
        state.shards.open(table, [unit], token="us")


def test_opening_twice_answers_the_first_callers_token_in_the_order_asked_for(state: State, table: str) -> None:
    state.shards.open(table, ["b"], token="first")

    opened = state.shards.open(table, ["c", "b", "a", "c"], token="second")

    assert [(shard.unit, shard.publish_token) for shard in opened] == [("c", "second"), ("b", "first"), ("a", "second")]
    assert {shard.state for shard in opened} == {ShardState.READY}


def test_a_shard_reads_back_as_it_was_written_to_the_microsecond(state: State, table: str) -> None:
    hold(state, table, "a")
    state.shards.set_tries(table, {"a": 1}, owner="us")
    until = NOON + timedelta(hours=3, microseconds=7)
    state.shards.extend(table, ["a"], owner="us", lease_until=until)

    [shard] = state.shards.read(table, ["a"])

    assert shard == Shard(
        table=table,
        unit="a",
        generation=0,
        state=ShardState.IN_PROGRESS,
        publish_token="us",
        owner="us",
        lease_until=until,
        extended_at=shard.updated_at,
        tries=1,
        snapshot=None,
        acknowledged_at=None,
        updated_at=shard.updated_at,
    )
    assert NOON < shard.updated_at < NOON + timedelta(milliseconds=1)


def test_a_lease_belongs_to_its_owner_until_the_moment_it_is_over(state: State, table: str, clock: HandClock) -> None:
    state.shards.open(table, ["a"], token="us")
    state.shards.acquire(table, ["a"], owner="us", lease_until=NOON + HOUR)
    later = NOON + 5 * HOUR

    clock.at = NOON + HOUR - 2 * MICROSECOND
    assert state.shards.acquire(table, ["a"], owner="them", lease_until=later) == set()
    clock.at = NOON + HOUR
    assert state.shards.acquire(table, ["a"], owner="them", lease_until=later) == {"a"}
    assert state.shards.extend(table, ["a"], owner="us", lease_until=later) == set()
    [shard] = state.shards.read(table, ["a"])
    assert (shard.owner, shard.publish_token) == ("them", "them")


def test_an_owner_may_acquire_again_and_extend_what_is_over_but_nobody_took(
    state: State, table: str, clock: HandClock
) -> None:
    hold(state, table, "a")
    clock.at += 2 * HOUR

    assert state.shards.extend(table, ["a"], owner="us", lease_until=clock.at + HOUR) == {"a"}
    assert state.shards.acquire(table, ["a"], owner="us", lease_until=clock.at + HOUR) == {"a"}


def test_what_is_released_is_ready_for_anybody_and_what_is_anothers_is_not_released(state: State, table: str) -> None:
    hold(state, table, "a", "b")
    hold(state, table, "c", owner="them")

    assert state.shards.release(table, ["a", "c"], owner="us") == 1

    assert state.shards.acquire(table, ["a", "b", "c"], owner="new", lease_until=NOON + HOUR) == {"a"}


def test_a_completed_shard_is_never_acquired_extended_released_or_tried(state: State, table: str) -> None:
    hold(state, table, "a")
    state.landings.settle(table, None, FIRST, [landing(FIRST, "a")])

    assert state.shards.acquire(table, ["a"], owner="us", lease_until=NOON + HOUR) == set()
    assert state.shards.extend(table, ["a"], owner="us", lease_until=NOON + HOUR) == set()
    assert state.shards.release(table, ["a"], owner="us") == 0
    assert state.shards.set_tries(table, {"a": 1}, owner="us") == set()


def test_tries_are_counted_for_what_the_owner_holds_and_survive_a_change_of_owner(
    state: State, table: str, clock: HandClock
) -> None:
    hold(state, table, "a")
    hold(state, table, "b", owner="them")

    assert state.shards.set_tries(table, {"a": 2, "b": 1, "c": 1}, owner="us") == {"a"}
    clock.at += 2 * HOUR
    state.shards.acquire(table, ["a"], owner="them", lease_until=clock.at + HOUR)
    assert [shard.tries for shard in state.shards.read(table, ["a"])] == [2]
    assert state.shards.set_tries(table, {"a": 3, "b": 1}, owner="them") == {"a", "b"}
    assert {shard.unit: shard.tries for shard in state.shards.read(table, ["a", "b"])} == {"a": 3, "b": 1}


def test_more_shards_than_one_statement_takes_are_acquired_and_extended(state: State, table: str) -> None:
    units = [f"unit {number}" for number in range(2_501)]

    hold(state, table, *units)

    assert state.shards.extend(table, units, owner="us", lease_until=NOON + 2 * HOUR) == set(units)


class TestPrune:
    WINDOW = timedelta(days=14)

    def test_it_removes_what_was_acknowledged_longer_ago_than_the_window(
        self, state: State, table: str, clock: HandClock
    ) -> None:
        hold(state, table, "a", "b")
        state.landings.settle(table, None, FIRST, [landing(FIRST, "a", "b"), landing(FIRST, "a", generation=1)])
        assert state.shards.acknowledge(table, ["a"]) == 1
        assert state.shards.acknowledge(table, ["a"], generation=1) == 1
        clock.at += MINUTE
        assert state.shards.acknowledge(table, ["a", "b"]) == 1, "the first acknowledgement counts"

        clock.at = NOON + self.WINDOW + MINUTE / 2

        assert removed(state, table, self.WINDOW, every=HOUR) == 2
        assert [shard.unit for shard in state.shards.read(table, ["a", "b"])] == ["b"]

    def test_it_never_removes_one_in_progress_or_not_acknowledged(
        self, state: State, table: str, clock: HandClock
    ) -> None:
        hold(state, table, "in progress", "landed")
        state.shards.open(table, ["ready"], token="us")
        state.landings.settle(table, None, FIRST, [landing(FIRST, "landed")])
        assert state.shards.acknowledge(table, ["in progress", "ready"]) == 0
        clock.at += timedelta(days=1000)

        assert removed(state, table, self.WINDOW, every=HOUR) == 0
        assert len(state.shards.read(table, ["in progress", "landed", "ready"])) == 3

    def test_fifty_pipelines_that_ask_get_one_pruning_per_interval(
        self, state: State, table: str, clock: HandClock
    ) -> None:
        def ask() -> list[int]:
            asked = [
                removed(state, table, self.WINDOW, every=HOUR, pipeline=f"pipeline {number}") for number in range(50)
            ]
            return [answer for answer in asked if answer is not None]

        assert ask() == [0]
        assert ask() == []
        clock.at += HOUR + MINUTE
        assert ask() == [0]


class TestDeadLetters:
    def test_a_unit_given_up_is_kept_with_its_reason_and_never_tried_again(self, state: State, table: str) -> None:
        hold(state, table, "bad")
        state.shards.set_tries(table, {"bad": 1}, owner="us")

        letter = state.history.bury(table, "bad", "not Parquet: \N{GRINNING FACE}", owner="us")

        assert letter is not None
        assert state.history.dead_letters(table) == [letter]
        assert (letter.tries, letter.reason) == (1, "not Parquet: \N{GRINNING FACE}")
        [shard] = state.shards.read(table, ["bad"])
        assert (shard.state, shard.snapshot) == (ShardState.COMPLETED, None)
        assert state.shards.acquire(table, ["bad"], owner="us", lease_until=NOON + HOUR) == set()

    def test_a_unit_that_another_holds_or_that_has_landed_is_not_given_up(self, state: State, table: str) -> None:
        hold(state, table, "theirs", "landed", owner="them")
        state.landings.settle(table, None, FIRST, [landing(FIRST, "landed")])

        assert state.history.bury(table, "theirs", "no", owner="us") is None
        assert state.history.bury(table, "landed", "no", owner="them") is None
        assert state.history.dead_letters(table) == []
        [shard] = state.shards.read(table, ["theirs"])
        assert shard.state is ShardState.IN_PROGRESS

    def test_what_was_never_opened_can_be_given_up(self, state: State, table: str) -> None:
        assert state.history.bury(table, "unreadable message", "no URI in it", owner="us") is not None
        assert [letter.unit for letter in state.history.dead_letters(table)] == ["unreadable message"]

    def test_a_dead_letter_that_is_revived_is_tried_from_the_first_try(self, state: State, table: str) -> None:
        hold(state, table, "a")
        state.shards.set_tries(table, {"a": 1}, owner="us")
        state.history.bury(table, "a", "no", owner="us")

        assert state.history.revive(table, "a")
        assert not state.history.revive(table, "a")

        assert state.history.dead_letters(table) == []
        assert state.shards.acquire(table, ["a"], owner="us", lease_until=NOON + HOUR) == {"a"}
        assert [shard.tries for shard in state.shards.read(table, ["a"])] == [0]

    def test_a_replay_that_has_begun_is_seen_while_its_unit_is_still_given_up(self, state: State, table: str) -> None:
        hold(state, table, "a")
        state.history.bury(table, "a", "no", owner="us")

        assert state.history.begin_replay(table, "a")

        [letter] = state.history.letters_of(table, ["a", "b"])
        assert letter.replayed_at is not None
        assert state.history.dead_letters(table) == []
        assert state.shards.acquire(table, ["a"], owner="us", lease_until=NOON + HOUR) == set()
        assert state.history.revive(table, "a")
        assert state.shards.acquire(table, ["a"], owner="us", lease_until=NOON + HOUR) == {"a"}
        assert not state.history.revive(table, "a"), "what is under way is not taken from its owner"
        [shard] = state.shards.read(table, ["a"])
        assert shard.state is ShardState.IN_PROGRESS

    def test_a_unit_that_fails_again_after_its_replay_waits_for_a_decision_again(
        self, state: State, table: str
    ) -> None:
        hold(state, table, "a")
        state.history.bury(table, "a", "first", owner="us")
        state.history.revive(table, "a")
        hold(state, table, "a")

        letter = state.history.bury(table, "a", "second", owner="us")

        assert state.history.dead_letters(table) == [letter]
        assert state.history.revive(table, "a")

    def test_a_dropped_letter_stays_dropped_and_its_unit_given_up(self, state: State, table: str) -> None:
        hold(state, table, "a")
        letter = state.history.bury(table, "a", "no", owner="us")
        assert letter is not None
        state.history.revive(table, "a")

        assert state.history.drop(letter)
        assert state.history.drop(letter)

        assert state.history.dead_letters(table) == []
        assert not state.history.begin_replay(table, "a")
        assert not state.history.revive(table, "a")
        state.shards.open(table, ["a"], token="us")
        assert state.shards.acquire(table, ["a"], owner="us", lease_until=NOON + HOUR) == set()
        assert state.history.bury(table, "a", "again", owner="us") is None
        [dropped] = state.history.letters_of(table, ["a"])
        assert dropped.dropped_at is not None

    def test_letters_that_are_replayed_and_not_dropped_are_listed(self, state: State, table: str) -> None:
        for unit in ("waiting", "second", "first", "dropped", "failed again"):
            hold(state, table, unit)
            letter = state.history.bury(table, unit, "no", owner="us")
            assert letter is not None
        for unit in ("first", "second", "dropped", "failed again"):
            assert state.history.begin_replay(table, unit)
            state.history.revive(table, unit)
        [dropped] = state.history.letters_of(table, ["dropped"])
        assert state.history.drop(dropped)
        hold(state, table, "failed again")
        assert state.history.bury(table, "failed again", "no", owner="us") is not None

        assert {letter.unit for letter in state.history.replayed_letters(table)} == {"first", "second"}
        assert len(state.history.replayed_letters(table, limit=1)) == 1
        assert state.history.replayed_letters("another table") == []

    def test_what_has_landed_cannot_be_dropped(self, state: State, table: str) -> None:
        hold(state, table, "a")
        letter = state.history.bury(table, "a", "no", owner="us")
        assert letter is not None
        state.landings.settle(table, None, FIRST, [landing(FIRST, "a")])

        assert not state.history.drop(letter)

        assert state.history.close(table, ["a", "b"]) == 1
        assert state.history.letters_of(table, ["a"]) == []

    def test_burying_what_was_dropped_and_has_no_shard_leaves_it_dropped(self, state: State, table: str) -> None:
        state.history.follow(DeadLetter(table=table, unit="a", reason="no", at=NOON, dropped_at=NOON))

        state.history.bury(table, "a", "again", owner="us")

        [letter] = state.history.letters_of(table, ["a"])
        assert (letter.reason, letter.dropped_at) == ("again", NOON)
        assert not state.history.begin_replay(table, "a")

    def test_a_letter_that_the_state_does_not_know_can_be_dropped(self, state: State, table: str) -> None:
        assert state.history.drop(DeadLetter(table=table, unit="a", reason="no", at=NOON))

        state.shards.open(table, ["a"], token="us")
        assert state.shards.acquire(table, ["a"], owner="us", lease_until=NOON + HOUR) == set()

    def test_a_rebuild_gives_up_again_what_was_given_up_and_not_what_is_tried_again(
        self, state: State, table: str
    ) -> None:
        waiting = DeadLetter(table=table, unit="waiting", reason="no", tries=3, at=NOON)
        dropped = DeadLetter(table=table, unit="dropped", reason="no", at=NOON, dropped_at=NOON)
        replayed = DeadLetter(table=table, unit="replayed", reason="no", at=NOON, replayed_at=NOON)
        landed = DeadLetter(table=table, unit="landed", generation=1, reason="no", at=NOON)
        hold(state, table, "only in the state")
        state.history.bury(table, "only in the state", "no", owner="us")

        state.landings.rebuild(
            table, FIRST, [landing(FIRST, "landed", generation=1)], [waiting, dropped, replayed, landed]
        )

        units = ["waiting", "dropped", "replayed", "only in the state"]
        given_up = {shard.unit for shard in state.shards.read(table, units) if shard.snapshot is None}
        assert given_up == {"waiting", "dropped", "only in the state"}
        [shard] = state.shards.read(table, ["landed"], generation=1)
        assert shard.snapshot == FIRST.snapshot
        assert state.history.letters_of(table, ["waiting"]) == [waiting]

    def test_following_a_letter_leaves_one_that_is_there_alone(self, state: State, table: str) -> None:
        hold(state, table, "a")
        letter = state.history.bury(table, "a", "no", owner="us")
        assert letter is not None

        state.history.follow(letter)
        state.history.follow(DeadLetter(table=table, unit="b", reason="no", at=NOON))

        assert state.history.dead_letters(table) == [letter]
        [followed] = state.history.letters_of(table, ["b"])
        assert followed.replayed_at is not None
