"""`QueueSharedState` on every server: which pipeline owns a unit, and whether it has landed."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from lakehead.consume.settings import PipelineSettings
from lakehead.consume.shared_state import Opened, QueueSharedState
from lakehead.ids import RandomIds
from lakehead.state.model import FileOutcome, FileState, ShardState
from lakehead.state.opening import open_state
from lakehead.state.state import State
from tests.support.async_tests import async_test
from tests.support.effort import effort
from tests.support.state_tools import FIRST, HOUR, MINUTE, PATIENT, HandClock, landing

pytest_plugins = ["tests.support.state_fixtures"]

SETTINGS = PipelineSettings(name="pipeline", deduplication_window=2 * HOUR)
LEASE = SETTINGS.lease
MICROSECOND = timedelta(microseconds=1)
Tokens = Callable[[str], QueueSharedState]


@pytest.fixture
def shared(state: State) -> Tokens:
    return lambda token: QueueSharedState(state, token, SETTINGS)


def nothing(**more: object) -> Opened:
    return Opened(**{"ours": {}, "done": frozenset(), "busy": frozenset(), **more})  # type: ignore[arg-type]


def land(state: State, table: str, *units: str) -> None:
    assert state.landings.settle(table, state.landings.pointer(table), FIRST, [landing(FIRST, *units)])


@pytest.fixture
def give_up(state: State) -> Callable[[str, str, str], None]:
    def bury(table: str, unit: str, owner: str) -> None:
        assert state.history.bury(table, unit, "corrupt", owner=owner) is not None

    return bury


def test_the_first_to_open_a_unit_owns_it(shared: Tokens, table: str) -> None:
    @async_test
    async def test() -> None:
        assert await shared("us").open(table, ["a", "b"]) == nothing(ours={"a": 0, "b": 0})
        assert await shared("other").open(table, ["b", "c"]) == nothing(ours={"c": 0}, busy=frozenset("b"))
        assert await shared("us").open(table, ["a"]) == nothing(ours={"a": 0})
        assert await shared("us").open(table, []) == nothing()

    test()


def test_what_has_landed_is_done_for_everybody(shared: Tokens, state: State, table: str) -> None:
    @async_test
    async def test() -> None:
        await shared("us").open(table, ["a"])
        land(state, table, "a", "never opened")

        for token in ("us", "other"):
            assert await shared(token).open(table, ["a"]) == nothing(done=frozenset("a"))
        assert await shared("us").settled(table, ["a", "b", "never opened"]) == {"a", "never opened"}

    test()


@pytest.mark.parametrize(("ago", "taken"), [(LEASE - MINUTE / 60, False), (LEASE, True), (LEASE + MICROSECOND, True)])
def test_a_unit_is_taken_over_when_its_owner_has_shown_no_life_for_a_lease(
    shared: Tokens, clock: HandClock, table: str, *, ago: timedelta, taken: bool
) -> None:
    @async_test
    async def test() -> None:
        await shared("other").open(table, ["a"])
        clock.at += ago
        opened = await shared("us").open(table, ["a"])

        assert opened == (nothing(ours={"a": 0}, taken_over=1) if taken else nothing(busy=frozenset("a")))
        assert (await shared("other").extend(table, ["a"]) == set()) is taken
        assert (await shared("other").count_try(table, {"a": 1}) == {}) is taken

    test()


def test_a_sign_of_life_keeps_a_unit(shared: Tokens, clock: HandClock, table: str) -> None:
    @async_test
    async def test() -> None:
        us = shared("us")
        await us.open(table, ["a"])
        for _ in range(5):
            clock.at += LEASE - MINUTE / 60
            assert await us.extend(table, ["a", "unknown"]) == {"a"}
            assert (await shared("other").open(table, ["a"])).busy == {"a"}

    test()


def test_a_unit_that_was_given_back_is_taken_at_once_and_not_counted_as_taken_over(shared: Tokens, table: str) -> None:
    @async_test
    async def test() -> None:
        await shared("old").open(table, ["a", "b"])
        await shared("other").release(table, ["a"])
        await shared("old").release(table, ["a"])

        assert await shared("new").open(table, ["a", "b"]) == nothing(ours={"a": 0}, busy=frozenset("b"))

    test()


def test_tries_are_counted_over_owners_and_taken_back_and_a_repeated_call_changes_nothing(
    shared: Tokens, table: str
) -> None:
    @async_test
    async def test() -> None:
        one, two = shared("one"), shared("two")
        await one.open(table, ["a", "b"])
        for _ in range(2):
            assert await one.count_try(table, {"a": 1, "unknown": 1}) == {"a": 1}
        assert await two.count_try(table, {"a": 2}) == {}
        await one.release(table, ["a"])
        assert (await two.open(table, ["a"])).ours == {"a": 1}
        for _ in range(2):
            assert await two.count_try(table, {"a": 2}) == {"a": 2}
        await one.take_back_try(table, {"a": 0})
        for _ in range(2):
            await two.take_back_try(table, {"a": 1})
            assert (await two.open(table, ["a"])).ours == {"a": 1}

    test()


def test_an_object_that_is_gone_is_done_if_a_content_of_it_has_landed(shared: Tokens, state: State, table: str) -> None:
    @async_test
    async def test() -> None:
        units = [
            "s3://b/landed?etag=1",
            "s3://b/landed?etag=2",
            "s3://b/given up?etag=1",
            "s3://b/plain",
            "s3://b/a %_",
        ]
        us = shared("us")
        await us.open(table, [*units, "s3://b/open?etag=1"])
        land(state, table, units[0], units[1], units[3], units[4])
        state.history.bury(table, units[2], "bad", owner="us")
        names = ["landed", "landed ", "given up", "plain", "open", "never", "a %_", "lande_", "%"]

        opened = await us.open(table, [f"s3://b/{name}?etag=" for name in names])

        assert opened.done == {"s3://b/landed?etag="}
        assert len(opened.ours) == len(names) - 1

    test()


def test_a_unit_that_was_given_up_is_done_until_it_is_replayed(
    shared: Tokens, state: State, table: str, give_up: Callable[[str, str, str], None]
) -> None:
    @async_test
    async def test() -> None:
        us = shared("us")
        await us.open(table, ["a", "b"])
        await us.count_try(table, {"a": 1})
        give_up(table, "a", "us")
        assert (await us.open(table, ["a"])).done == {"a"}
        assert state.history.begin_replay(table, "a")

        assert await us.open(table, ["a"]) == nothing(ours={"a": 0})
        assert await shared("other").open(table, ["a"]) == nothing(busy=frozenset("a"))

    test()


def test_a_replayed_unit_that_is_given_up_again_stays_given_up(
    shared: Tokens, state: State, table: str, give_up: Callable[[str, str, str], None]
) -> None:
    @async_test
    async def test() -> None:
        us = shared("us")
        await us.open(table, ["a"])
        give_up(table, "a", "us")
        state.history.begin_replay(table, "a")
        await us.open(table, ["a"])
        give_up(table, "a", "us")

        for _ in range(2):
            assert await us.open(table, ["a"]) == nothing(done=frozenset("a"))
        assert [letter.unit for letter in state.history.dead_letters(table)] == ["a"]

    test()


def test_a_dropped_letter_is_never_revived(
    shared: Tokens, state: State, table: str, give_up: Callable[[str, str, str], None]
) -> None:
    @async_test
    async def test() -> None:
        us = shared("us")
        await us.open(table, ["a"])
        give_up(table, "a", "us")
        state.history.begin_replay(table, "a")
        [letter] = state.history.letters_of(table, ["a"])
        assert state.history.drop(letter)

        assert await us.open(table, ["a"]) == nothing(done=frozenset("a"))
        assert not state.history.begin_replay(table, "a")

    test()


def test_windows_begin_with_the_acknowledgement_and_are_renewed_by_messages(
    shared: Tokens, state: State, clock: HandClock, table: str
) -> None:
    @async_test
    async def test() -> None:
        us = shared("us")
        await us.open(table, ["acknowledged", "renewed", "not", "open"])
        land(state, table, "acknowledged", "renewed", "not")
        clock.at += 5 * HOUR
        assert await us.prune(table) == 0
        await us.acknowledge(table, ["acknowledged", "renewed", "open"])
        clock.at += HOUR + 59 * MINUTE
        assert await us.prune(table) == 0
        await shared("other").open(table, ["renewed"])
        clock.at += 2 * MINUTE
        assert await us.prune(table) == 1
        assert await us.prune(table) is None  # a moment ago

        left = {shard.unit: shard.state for shard in state.shards.page(table)}
        done, busy = ShardState.COMPLETED, ShardState.IN_PROGRESS
        assert left == {"renewed": done, "not": done, "open": busy}
        assert await us.remembered(table) == 3
        assert (await us.open(table, ["acknowledged"])).ours == {"acknowledged": 0}

    test()


def test_what_became_of_units_is_in_their_history(shared: Tokens, state: State, table: str) -> None:
    @async_test
    async def test() -> None:
        await shared("us").record(table, [FileOutcome(unit="a", state=FileState.FAILED, tries=1, error="corrupt")])
        await shared("us").record(table, [FileOutcome(unit="a", state=FileState.LANDED, rows=3, tries=2, snapshot=7)])

        found = state.files.find(table, "a")
        assert found is not None
        assert (found.state, found.rows, found.first_error) == (FileState.LANDED, 3, "corrupt")

    test()


ROUNDS = effort(60, soak=1_000)


def test_of_two_pipelines_that_acquire_at_once_at_most_one_owns(state_url: str, clock: HandClock, table: str) -> None:
    """Both open units of an owner that is gone, in the same moment, with connections of their own."""

    @async_test
    async def test() -> None:
        ids = RandomIds()
        with (
            open_state(state_url, clock, ids, settings=PATIENT) as one,
            open_state(state_url, clock, ids, settings=PATIENT) as two,
        ):
            dead, left, right = (
                QueueSharedState(state, token, SETTINGS)
                for state, token in ((one, "dead"), (one, "us"), (two, "other"))
            )
            for number in range(ROUNDS):
                units = [f"{number}-{unit}" for unit in range(3)]
                await dead.open(table, units)
                clock.at += LEASE + MINUTE
                answers = await asyncio.gather(left.open(table, units), right.open(table, units))
                ours = [set(answer.ours) for answer in answers]
                assert ours[0] | ours[1] == set(units)
                assert ours[0] & ours[1] == set()
                first = dict.fromkeys(units, 1)
                tries = await asyncio.gather(left.count_try(table, first), right.count_try(table, first))
                assert [set(each) for each in tries] == ours

    test()
