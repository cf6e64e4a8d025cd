"""Two real processes at once, on every server and at both isolation levels."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from lakehead.ids import RandomIds
from lakehead.state.model import ShardState, StoredPointer
from lakehead.state.opening import open_state
from lakehead.state.state import State
from tests.support.effort import effort
from tests.support.state_tools import FIRST, PATIENT, SECOND, THIRD, Child, HandClock, children

pytest_plugins = ["tests.support.state_fixtures"]

ROUNDS = effort(10, soak=20)


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Child]]:
    with children(2) as started:
        yield started


@pytest.fixture(params=["READ COMMITTED", "REPEATABLE READ"])
def two(pair: list[Child], state_url: str, request: pytest.FixtureRequest) -> list[Child]:
    """Two processes with the state open at this isolation level."""
    for child in pair:
        assert child.ask("open", url=state_url, isolation=request.param) == "open"
    return pair


def test_two_processes_open_a_new_database_at_once(
    pair: list[Child], state_server: str, new_state_url: Callable[[], str]
) -> None:
    for _ in range(effort(20, soak=40) if state_server == "sqlite" else effort(2, soak=4)):
        url = new_state_url()
        for child in pair:
            child.tell("open", url=url)
        assert [child.answer() for child in pair] == ["open", "open"]

        with open_state(url, HandClock(), RandomIds(), settings=PATIENT) as state:
            assert state.landings.pointer("t") is None


def test_each_shard_that_two_processes_acquire_at_once_has_exactly_one_winner(
    two: list[Child], state: State, table: str
) -> None:
    for number in range(ROUNDS):
        units = [f"round {number} unit {n}" for n in range(60)]
        state.shards.open(table, units, token="opener")
        for child, owner, order in zip(two, ("one", "two"), (units, units[::-1]), strict=True):
            child.tell("acquire", table=table, units=order, owner=owner)
        won = [child.answer() for child in two]

        assert sorted(won[0] + won[1]) == sorted(units)
        owners = {shard.unit: shard.owner for shard in state.shards.read(table, units)}
        assert owners == {**dict.fromkeys(won[0], "one"), **dict.fromkeys(won[1], "two")}


@pytest.mark.parametrize("before", [None, FIRST], ids=["none yet", "settled before"])
def test_of_two_processes_that_settle_from_one_pointer_at_once_exactly_one_does(
    two: list[Child], state: State, before: StoredPointer | None
) -> None:
    for _ in range(ROUNDS):
        table = str(uuid4())
        if before:
            state.landings.settle(table, None, before, [])
        expected = (before.snapshot, before.last_landing) if before else None
        news = {"one": SECOND, "two": THIRD}
        for child, (who, new) in zip(two, news.items(), strict=True):
            child.tell(
                "settle",
                table=table,
                expected=expected,
                new=(new.snapshot, new.last_landing),
                units=[f"{who} {n}" for n in range(20)] + ["both"],
                spans=[(new.snapshot, 50)],
                watermark=new.snapshot,
                who=who,
            )
        did = dict(zip(news, [child.answer() for child in two], strict=True))

        [winner] = [who for who, settled in did.items() if settled]
        assert state.landings.pointer(table) == news[winner]
        assert state.shards.counts(table) == {ShardState.COMPLETED: 21}
        assert state.landings.ranges(table, ["agent/boot"]) == {"agent/boot": ((news[winner].snapshot, 50),)}
        [told] = state.history.events(table=table)
        assert told.run == winner
        watermark = state.progress.watermark(table)
        assert watermark is not None
        assert watermark.value == news[winner].snapshot


def test_two_processes_that_settle_the_same_stream_lose_no_number_and_leave_one_span(
    two: list[Child], state: State, table: str
) -> None:
    spans = [(10 * n, 10 * n + 12) for n in range(2 * ROUNDS)]
    for child, theirs in zip(two, (spans[::2], spans[::-2]), strict=True):
        child.tell("settle spans", table=table, spans=theirs)
    for child in two:
        child.answer()

    assert state.landings.pointer(table) == StoredPointer(2 * ROUNDS, None)
    assert state.landings.ranges(table, ["agent/boot"]) == {"agent/boot": ((0, 20 * ROUNDS + 2),)}


def test_a_plan_made_while_others_settle_answers_the_numbers_that_belong_to_its_pointer(
    two: list[Child], table: str
) -> None:
    last = 4 * ROUNDS
    two[0].tell("settle spans", table=table, spans=[(10 * n, 10 * n + 10) for n in range(last)])
    two[1].tell("plan and compare", table=table, last=last)

    assert two[0].answer() == 0
    assert two[1].answer() == []


def test_shards_that_are_opened_while_their_landing_is_settled_end_completed(two: list[Child], state: State) -> None:
    units = [f"unit {n}" for n in range(2_000)]
    for _ in range(effort(2, soak=5)):
        table = str(uuid4())
        new = (FIRST.snapshot, FIRST.last_landing)
        two[0].tell("settle", table=table, expected=None, new=new, units=units, watermark=1, who="one")
        two[1].tell("open shards", table=table, units=units)
        assert [child.answer() for child in two] == [True, 2_000]

        assert state.shards.counts(table) == {ShardState.COMPLETED: 2_000}


def test_two_processes_that_save_a_plan_at_once_share_one(two: list[Child], state: State) -> None:
    for _ in range(ROUNDS):
        table = str(uuid4())
        for child, who in zip(two, ("one", "two"), strict=True):
            child.tell("save plan", table=table, who=who, units=[f"{who} {n}" for n in range(10)])
        kept = [child.answer() for child in two]

        assert kept[0] == kept[1]
        [winner, units] = kept[0]
        assert units == [f"{winner} {n}" for n in range(10)]
        stored = state.slices.load(table)
        assert stored is not None
        assert stored.id == winner
