"""What the time indexes of an hour have is known by few requests, in bounded memory."""

from collections.abc import AsyncIterator, Sequence

from lakehead.maintain.hour_indexes import ENTRIES_PER_HEAD, HEADS_FIRST, HourIndexes
from lakehead.storage.port import ListedObject
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.utc_hours import UtcHour
from tests.support.async_tests import async_test
from tests.unit.maintain.reconcile_support import CountedStore, MovedClock, identity

FIRST, SECOND = UtcHour(490_000), UtcHour(490_001)
ENTRIES = 10 * ENTRIES_PER_HEAD


class ListedStore(CountedStore):
    """Counts listings, too."""

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        self.requests["list", folder.partition("/")[0]] += 1
        return super().list(folder, start_after=start_after)

    @property
    def counts(self) -> tuple[int, int]:
        """Heads and listings."""
        return self.requests["head", "accepted-by-time"], self.requests["list", "accepted-by-time"]


async def filled(*hours: UtcHour, entries: int = ENTRIES) -> ListedStore:
    store = ListedStore(MovedClock())
    for hour in hours:
        for number in range(entries):
            await store.put(keys.accepted_by_time(hour, identity(number)), b"{}")
    return store


async def ask(indexes: HourIndexes, hour: UtcHour, questions: int) -> None:
    for number in range(questions):
        assert await indexes.has_batch(hour, identity(number))


@async_test
async def test_an_hour_is_listed_once_for_many_questions() -> None:
    store = await filled(FIRST)
    indexes = HourIndexes(store)

    await ask(indexes, FIRST, HEADS_FIRST)
    assert store.counts == (HEADS_FIRST, 0)
    await ask(indexes, FIRST, ENTRIES)
    assert store.counts == (HEADS_FIRST, 1)
    assert not await indexes.has_batch(FIRST, identity(ENTRIES))
    assert store.counts == (HEADS_FIRST, 1)


@async_test
async def test_frames_are_looked_up_in_their_own_index() -> None:
    store = await filled(FIRST, entries=HEADS_FIRST + 1)
    await store.put(keys.raw_blob_by_time(FIRST, "ab" * 32), b"{}")
    indexes = HourIndexes(store)

    for _ in range(2 * HEADS_FIRST):
        assert await indexes.has_blob(FIRST, "ab" * 32)
        assert not await indexes.has_blob(FIRST, "cd" * 32)
    assert store.requests["list", "raw-blobs-by-time"] == 1


@async_test
async def test_an_hour_that_was_forgotten_is_listed_again_only_if_that_is_worth_it() -> None:
    store = await filled(FIRST, SECOND)
    indexes = HourIndexes(store, most_entries=ENTRIES)
    await ask(indexes, FIRST, HEADS_FIRST + 1)
    await ask(indexes, SECOND, HEADS_FIRST + 1)  # forgets the first
    store.forget()

    await ask(indexes, FIRST, ENTRIES // ENTRIES_PER_HEAD)
    assert store.counts == (10, 0)
    await ask(indexes, FIRST, ENTRIES)
    assert store.counts == (10, 1)


@async_test
async def test_an_hour_with_more_entries_than_are_kept_is_asked_one_by_one() -> None:
    store = await filled(FIRST, entries=20)
    indexes = HourIndexes(store, most_entries=10)

    await ask(indexes, FIRST, 20)
    assert store.counts == (20, 1)


@async_test
async def test_what_was_deleted_is_noticed_after_forgetting() -> None:
    store = await filled(FIRST, entries=20)
    indexes = HourIndexes(store)
    await ask(indexes, FIRST, 20)
    await store.delete(keys.accepted_by_time(FIRST, identity(7)))

    assert await indexes.has_batch(FIRST, identity(7))
    indexes.forget()
    assert not await indexes.has_batch(FIRST, identity(7))
