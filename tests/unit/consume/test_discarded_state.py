"""A batch that an operator has discarded never lands, also if the state knows nothing of it any more."""

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from lakehead.accept.discarded_batches import DiscardedBatches, DiscardedLookup
from lakehead.clock import SystemClock
from lakehead.consume.accepted_units import accepted_unit, identity_of_unit
from lakehead.consume.discarded_state import DiscardedSharedState
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.shared_state import QueueSharedState
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import ListedObject, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import async_test

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
URL = "s3://bucket/prod"
DROPPED, OTHER = (BatchIdentity("agent-a", "boot-1", number, number + 9) for number in (0, 10))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    with open_state(f"sqlite:///{tmp_path}/state.db", SystemClock(), RandomIds()) as opened:
        yield opened


def shared_state(state: State, store: Store, owner: str = "us") -> DiscardedSharedState:
    settings = PipelineSettings(name="metrics")
    return DiscardedSharedState(
        shared=QueueSharedState(state, owner, settings), discarded=DiscardedLookup(store), state=state, store_url=URL
    )


async def discard(store: Store, batch: BatchIdentity) -> None:
    records = DiscardedBatches(store=store, clock=SystemClock(), ids=RandomIds(), random=Random(1), by="operator")
    await records.discard(TABLE, batch)


@async_test
async def test_what_is_discarded_is_done_and_stays_done_in_a_state_that_never_heard_of_it(state: State) -> None:
    store = MemoryStore(clock=SystemClock())
    await discard(store, DROPPED)
    units = [accepted_unit(batch, URL) for batch in (DROPPED, OTHER)]

    opened = await shared_state(state, store).open(TABLE, units)

    assert (set(opened.ours), set(opened.done)) == ({units[1]}, {units[0]})
    [letter] = state.history.letters_of(TABLE, units)
    assert (letter.unit, letter.dropped_at is not None) == (units[0], True)
    again = await QueueSharedState(state, "another", PipelineSettings(name="metrics")).open(TABLE, units[:1])
    assert (set(again.ours), set(again.done)) == (set(), {units[0]}), "the state knows it from now on"


@async_test
async def test_units_are_given_back_while_it_is_not_known_what_is_discarded(state: State) -> None:
    class Down(MemoryStore):
        def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
            raise Unavailable(f"{folder}{start_after}: 503")

    unit = accepted_unit(OTHER, URL)
    with pytest.raises(Unavailable):
        await shared_state(state, Down(clock=SystemClock())).open(TABLE, [unit])

    opened = await shared_state(state, MemoryStore(clock=SystemClock()), owner="another").open(TABLE, [unit])

    assert set(opened.ours) == {unit}


@pytest.mark.parametrize("url", [URL, "s3://bucket", "file:///srv/a%20b", "gs://bucket/agent=1"])
def test_a_unit_tells_which_batch_it_is(url: str) -> None:
    batch = BatchIdentity("agent/ä", "boot 1", 7, 2**62)
    unit = accepted_unit(batch, url)

    assert identity_of_unit(unit, url) == batch
    assert identity_of_unit(unit, f"{url}/other") is None
    assert identity_of_unit(f"{unit}x", url) is None
    assert identity_of_unit("s3://bucket/in/a.csv", url) is None
    assert identity_of_unit(unit.replace(keys.ACCEPTED, "elsewhere/v1"), url) is None
