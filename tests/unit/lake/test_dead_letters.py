"""Dead letters over a store and a state: nothing is lost, and only a landing or a drop closes one."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds
from lakehead.lake.dead_letters import DeadLetters, close_landed, give_up, indexed, open_or_dropped
from lakehead.state.model import ShardState
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire.dead_letters import ClosedLetter, DeadLetterObject, letter_key
from lakehead.wire.errors import Unreadable
from tests.support.async_tests import async_test
from tests.support.state_tools import FIRST, HOUR, NOON, HandClock, hold, landing

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"


def letter(unit: str = "a", reason: str = "no", **more: object) -> DeadLetterObject:
    at = more.pop("at", NOON)
    made = DeadLetterObject(table=TABLE, unit=unit, reason=reason, first_at=at, last_at=at)  # type: ignore[arg-type]
    return replace(made.with_body(unit.encode()), **more)


@dataclass
class Places:
    letters: DeadLetters
    state: State


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    with open_state(f"sqlite:///{tmp_path}/state.db", HandClock(), RandomIds()) as state:
        yield Places(DeadLetters(MemoryStore(clock=SystemClock(), page_size=3)), state)


@async_test
async def test_a_letter_written_twice_is_one_and_keeps_its_times(places: Places) -> None:
    letters = places.letters
    await letters.write(letter())

    assert await letters.write(letter(at=NOON + HOUR)) == letter()

    assert await letters.get(TABLE, "a") == letter()


@async_test
async def test_a_later_letter_of_a_unit_has_the_new_reason_and_the_first_time(places: Places) -> None:
    letters = places.letters
    await letters.mark_replayed(await letters.write(letter()), NOON)

    later = await letters.write(letter(reason="worse", at=NOON + HOUR, tries=2))

    assert later == letter(reason="worse", tries=2, first_at=NOON, last_at=NOON + HOUR, burials=2)
    assert await letters.get(TABLE, "a") == later


@async_test
async def test_a_dropped_letter_stays_dropped_whatever_comes(places: Places) -> None:
    letters = places.letters
    dropped = await letters.close(await letters.write(letter()), ClosedLetter("dropped", NOON))

    assert await letters.write(letter(reason="again")) == dropped
    assert await letters.close(letter(), ClosedLetter("landed", NOON)) == dropped
    assert await letters.mark_replayed(letter(), NOON) is None
    assert await letters.get(TABLE, "a") == dropped


@async_test
async def test_letters_are_listed_in_pages_and_one_that_cannot_be_read_does_not_hide_the_others(places: Places) -> None:
    letters, units = places.letters, [f"unit {number}" for number in range(100)]
    for unit in units:
        await letters.write(letter(unit))
    await letters.store.put(letter_key(TABLE, "damaged"), b"{")

    seen: list[DeadLetterObject | Unreadable] = []
    after = ""
    while page := [each async for each in letters.list(TABLE, after=after, limit=7)]:
        assert len(page) <= 7
        seen += page
        keys = [each.key for each in page if isinstance(each, DeadLetterObject)]
        after = max([*keys, after])

    assert {each.unit for each in seen if isinstance(each, DeadLetterObject)} == set(units)
    with pytest.raises(Unreadable, match="by hand"):
        await open_or_dropped(letters, TABLE)


@async_test
async def test_a_unit_is_given_up_in_the_store_before_the_state(places: Places) -> None:
    hold(places.state, TABLE, "a")

    assert await give_up(places.letters, places.state, letter(), owner="us")

    assert await places.letters.get(TABLE, "a") == letter()
    [row] = places.state.history.dead_letters(TABLE)
    assert (row.unit, row.reason) == ("a", "no")


@async_test
async def test_what_cannot_be_stored_is_not_given_up(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise Unavailable("The store is away.")

    hold(places.state, TABLE, "a")
    monkeypatch.setattr(MemoryStore, "create", away)

    with pytest.raises(Unavailable):
        await give_up(places.letters, places.state, letter(), owner="us")

    [shard] = places.state.shards.read(TABLE, ["a"])
    assert shard.state is ShardState.IN_PROGRESS


@async_test
async def test_a_kill_between_store_and_state_is_repeated_without_a_second_letter(places: Places) -> None:
    hold(places.state, TABLE, "a")
    await places.letters.write(letter())

    assert await give_up(places.letters, places.state, letter(at=NOON + HOUR), owner="us")

    assert await places.letters.get(TABLE, "a") == letter()


@async_test
async def test_what_another_owner_tries_is_not_given_up_and_its_landing_closes_the_letter(places: Places) -> None:
    hold(places.state, TABLE, "a", owner="them")

    assert not await give_up(places.letters, places.state, letter(), owner="us")

    [shard] = places.state.shards.read(TABLE, ["a"])
    assert shard.state is ShardState.IN_PROGRESS
    places.state.landings.settle(TABLE, None, FIRST, [landing(FIRST, "a")])
    assert await close_landed(places.letters, places.state, TABLE, ["a", "b"], at=NOON) == 1
    stored = await places.letters.get(TABLE, "a")
    assert stored is not None
    assert stored.closed == ClosedLetter("landed", NOON, FIRST.snapshot)
    assert places.state.history.letters_of(TABLE, ["a"]) == []


@async_test
async def test_what_has_landed_meanwhile_is_closed_at_once_and_may_be_acknowledged(places: Places) -> None:
    hold(places.state, TABLE, "a")
    places.state.landings.settle(TABLE, None, FIRST, [landing(FIRST, "a")])

    assert await give_up(places.letters, places.state, letter(), owner="us")

    stored = await places.letters.get(TABLE, "a")
    assert stored is not None
    assert stored.closed is not None
    assert stored.closed.how == "landed"


@async_test
async def test_a_dropped_letter_stays_dropped_after_the_state_is_lost_and_its_message_comes_again(
    places: Places, tmp_path: Path
) -> None:
    await places.letters.close(await places.letters.write(letter()), ClosedLetter("dropped", NOON))
    with open_state(f"sqlite:///{tmp_path}/new.db", HandClock(), RandomIds()) as state:
        state.landings.rebuild(TABLE, None, [], await open_or_dropped(places.letters, TABLE))

        [shard] = state.shards.open(TABLE, ["a"], token="us")
        assert (shard.state, shard.snapshot) == (ShardState.COMPLETED, None)
        assert state.shards.acquire(TABLE, ["a"], owner="us", lease_until=NOON + HOUR) == set()


@async_test
async def test_a_dropped_letter_is_found_even_if_the_state_was_not_rebuilt(places: Places) -> None:
    await places.letters.close(await places.letters.write(letter()), ClosedLetter("dropped", NOON))
    hold(places.state, TABLE, "a")

    assert await give_up(places.letters, places.state, letter(reason="again"), owner="us")

    [row] = places.state.history.letters_of(TABLE, ["a"])
    assert row.dropped_at == NOON
    [shard] = places.state.shards.read(TABLE, ["a"])
    assert shard.state is ShardState.COMPLETED


@async_test
async def test_a_rebuild_gets_open_and_dropped_letters_and_none_that_landed(places: Places) -> None:
    for unit in ("open", "replayed", "dropped", "landed"):
        await places.letters.write(letter(unit))
    await places.letters.mark_replayed(letter("replayed"), NOON + timedelta(seconds=1))
    await places.letters.close(letter("dropped"), ClosedLetter("dropped", NOON))
    await places.letters.close(letter("landed"), ClosedLetter("landed", NOON))

    rows = {row.unit: row for row in await open_or_dropped(places.letters, TABLE)}

    assert set(rows) == {"open", "replayed", "dropped"}
    assert rows["open"] == indexed(letter("open"))
    assert rows["replayed"].replayed_at == NOON + timedelta(seconds=1)
    assert rows["dropped"].dropped_at == NOON
