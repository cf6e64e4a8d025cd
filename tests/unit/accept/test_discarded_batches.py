"""What an operator has discarded is recorded once, found by its key, and stays."""

from random import Random

import pytest

from lakehead.accept import discarded_batches
from lakehead.accept.discarded_batches import DiscardedBatches, DiscardedLookup
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import RandomIds
from lakehead.storage.port import Object
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.maintenance_records import DiscardedBatch
from tests.support.async_tests import async_test
from tests.unit.accept.support import APPLIED, DOWN, NO_PAUSES, NOT_APPLIED, FixedClock, ScriptedStore

TABLE, OTHER = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10", "5c0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
BATCH = BatchIdentity("agent-a", "boot-1", 10, 20)


def discarded(store: ScriptedStore, by: str = "operator") -> DiscardedBatches:
    return DiscardedBatches(
        store=store, clock=FixedClock(), ids=RandomIds(), random=Random(1), by=by, backoff=NO_PAUSES
    )


@async_test
async def test_a_batch_is_discarded_in_one_table_and_the_first_record_stays() -> None:
    store = ScriptedStore()

    first = await discarded(store).discard(TABLE, BATCH, reason="no date\ud800")
    again = await discarded(store, by="another").discard(TABLE, BATCH, reason="other")

    assert (first.discarded_by, first.reason, first.identity, first.table) == ("operator", "no date?", BATCH, TABLE)
    assert again == first
    stored = await store.get(keys.discarded(TABLE, BATCH))
    assert stored is not None
    assert DiscardedBatch.decode(stored.body, keys.discarded(TABLE, BATCH)) == first
    assert await discarded(store).is_discarded(TABLE, BATCH)
    assert not await discarded(store).is_discarded(OTHER, BATCH)


@async_test
async def test_an_answer_that_was_lost_is_asked_for_again() -> None:
    for lost in (APPLIED, NOT_APPLIED):
        store = ScriptedStore()
        store.next(keys.DISCARDED, lost)

        await discarded(store).discard(TABLE, BATCH)

        assert await discarded(store).is_discarded(TABLE, BATCH)


@async_test
async def test_a_store_that_never_answers_is_neither_a_yes_nor_a_no() -> None:
    store = ScriptedStore()
    store.next(keys.DISCARDED, *[NOT_APPLIED] * 3)
    with pytest.raises(OutcomeUnknown):
        await discarded(store).discard(TABLE, BATCH)
    store.next(keys.DISCARDED, DOWN)
    with pytest.raises(Unavailable):
        await discarded(store).discard(TABLE, BATCH)


@async_test
async def test_discarded_batches_are_told_from_others_by_one_listing_or_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ScriptedStore(page_size=2)
    batches = [BatchIdentity("agent-a", "boot-1", number, number) for number in range(6)]
    for batch in batches[:3]:
        await discarded(store).discard(TABLE, batch)
    await discarded(store).discard(OTHER, batches[5])

    for most in (1_000, 2):
        monkeypatch.setattr(discarded_batches, "MOST_LISTED", most)
        assert await DiscardedLookup(store).among(TABLE, batches[1:]) == {batches[1], batches[2]}
        assert await DiscardedLookup(store).among(OTHER, batches) == {batches[5]}
        assert await DiscardedLookup(store).among(TABLE, []) == frozenset()


@async_test
async def test_what_may_be_recorded_is_not_said_to_be_unchanged() -> None:
    store = ScriptedStore()
    store.next(keys.DISCARDED, NOT_APPLIED, DOWN)
    with pytest.raises(OutcomeUnknown):
        await discarded(store).discard(TABLE, BATCH)

    async def no_answer(key: str, **_: int | None) -> Object | None:
        raise Unavailable(f"{key}: 503")

    store.get = no_answer  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknown):
        await discarded(store).discard(TABLE, BATCH)
    assert await discarded(store).is_discarded(TABLE, BATCH)
