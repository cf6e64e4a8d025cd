"""A record that several change at once: nobody's change is lost, made twice, or told wrongly."""

import asyncio
import dataclasses
from random import Random

import msgspec
import pytest

from lakehead.accept.record_file import RecordFile
from lakehead.clock import SystemClock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import RandomIds
from lakehead.retry import Backoff
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.authority_records import ReconcilerHeartbeat
from lakehead.wire.errors import InvalidRecord, NewerFormat, Unreadable
from tests.support.async_tests import async_test
from tests.unit.accept.support import APPLIED, DOWN, NO_PAUSES, NOT_APPLIED, TOLD_STALE, ScriptedStore

FOLDER = "reconciler/v1"


def file_in(store: ScriptedStore, *, backoff: Backoff = NO_PAUSES) -> RecordFile[ReconcilerHeartbeat]:
    return RecordFile(
        kind=ReconcilerHeartbeat,
        key=keys.RECONCILER_HEARTBEAT,
        store=store,
        clock=SystemClock(),
        ids=RandomIds(),
        random=Random(1),
        backoff=backoff,
    )


def one_more(found: ReconcilerHeartbeat | None) -> ReconcilerHeartbeat:
    """Counts how often it was applied."""
    if found is None:
        return ReconcilerHeartbeat(reconciler_id="r", beat_at_unix_ns=1, version=1)
    return msgspec.structs.replace(found, beat_at_unix_ns=found.beat_at_unix_ns + 1)


@async_test
async def test_a_record_is_created_and_replaced_with_growing_versions() -> None:
    file = file_in(ScriptedStore())
    assert await file.read() is None

    first, second = await file.update(one_more), await file.update(one_more)

    assert [(each.version, each.beat_at_unix_ns) for each in (first, second)] == [(1, 1), (2, 2)]
    assert first.nonce != second.nonce
    assert await file.read() == second


@pytest.mark.parametrize("is_there", [False, True], ids=["create", "replace"])
@pytest.mark.parametrize("faults", [[APPLIED], [NOT_APPLIED], [NOT_APPLIED, APPLIED], [NOT_APPLIED, NOT_APPLIED]])
@async_test
async def test_an_update_in_doubt_is_recognised_by_its_nonce_and_made_once(
    faults: list[str], *, is_there: bool
) -> None:
    store = ScriptedStore()
    file = file_in(store)
    if is_there:
        await file.update(one_more)
    store.next(FOLDER, *faults)

    stored = await file.update(one_more)

    assert stored == await file.read()
    assert stored.beat_at_unix_ns == stored.version == (2 if is_there else 1)


@async_test
async def test_a_replacement_that_was_applied_and_told_stale_is_recognised_also_at_the_last_attempt() -> None:
    store = ScriptedStore()
    file = file_in(store, backoff=Backoff(attempts=1))
    await file.update(one_more)
    store.next(FOLDER, TOLD_STALE)

    assert (await file.update(one_more)).version == 2


@pytest.mark.parametrize("is_there", [False, True], ids=["create", "replace"])
@async_test
async def test_another_writers_change_is_kept_and_the_change_is_made_on_top_of_it(*, is_there: bool) -> None:
    store = ScriptedStore()
    file = file_in(store)
    if is_there:
        await file.update(one_more)

    def theirs(found: ReconcilerHeartbeat | None) -> ReconcilerHeartbeat:
        return msgspec.structs.replace(one_more(found), reconciler_id="theirs")

    store.meanwhile[FOLDER] = [lambda: file_in(store).update(theirs)]

    stored = await file.update(one_more)

    assert stored.reconciler_id == "theirs"
    assert stored.beat_at_unix_ns == stored.version == (3 if is_there else 2)


@async_test
async def test_of_many_writers_at_once_each_change_is_made_once() -> None:
    store = ScriptedStore()
    patient = Backoff(attempts=30, first_seconds=0)

    await asyncio.gather(*(file_in(store, backoff=patient).update(one_more) for _ in range(20)))

    stored = await file_in(store).read()
    assert stored is not None
    assert (stored.version, stored.beat_at_unix_ns) == (20, 20)


@async_test
async def test_a_change_that_changes_nothing_writes_nothing() -> None:
    store = ScriptedStore()
    file = file_in(store)
    first = await file.update(one_more)

    def keep(found: ReconcilerHeartbeat | None) -> ReconcilerHeartbeat:
        assert found is not None
        return found

    assert await file.update(keep) == first
    assert store.replaced == []


@async_test
async def test_what_stays_in_doubt_is_said_to_be() -> None:
    store = ScriptedStore()
    store.next(FOLDER, *[NOT_APPLIED] * 3)

    with pytest.raises(OutcomeUnknown, match="not known"):
        await file_in(store).update(one_more)


@async_test
async def test_after_a_doubt_an_outage_does_not_say_that_nothing_was_changed() -> None:
    store = ScriptedStore()
    store.next(FOLDER, APPLIED)

    def change(found: ReconcilerHeartbeat | None) -> ReconcilerHeartbeat:
        store.is_down_for_reads = True
        return one_more(found)

    with pytest.raises(OutcomeUnknown):
        await file_in(store).update(change)

    store.is_down_for_reads = False
    assert await file_in(store).read() is not None, "it was changed indeed"


@async_test
async def test_a_doubt_stays_one_when_others_have_changed_the_record_since() -> None:
    store = ScriptedStore()
    store.next(FOLDER, APPLIED)

    class WhileOthersWrite(SystemClock):
        async def sleep(self, seconds: float) -> None:
            assert seconds
            await file_in(store).update(one_more)
            store.next(FOLDER, DOWN)

    file = dataclasses.replace(
        file_in(store), clock=WhileOthersWrite(), backoff=Backoff(attempts=2, first_seconds=60, cap_seconds=60)
    )

    with pytest.raises(OutcomeUnknown):
        await file.update(one_more)


@async_test
async def test_an_outage_without_a_doubt_has_changed_nothing() -> None:
    store = ScriptedStore()
    store.next(FOLDER, DOWN)

    with pytest.raises(Unavailable):
        await file_in(store).update(one_more)

    assert await file_in(store).read() is None


@async_test
async def test_a_writer_that_never_gets_its_turn_gives_up_and_has_changed_nothing() -> None:
    store = ScriptedStore()
    store.meanwhile[FOLDER] = [lambda: _beat(store)] * 3

    with pytest.raises(Unavailable, match="changed by others"):
        await file_in(store).update(lambda found: msgspec.structs.replace(one_more(found), reconciler_id="ours"))

    stored = await file_in(store).read()
    assert stored is not None
    assert stored.reconciler_id == "r"


async def _beat(store: ScriptedStore) -> None:
    """Another writer's change, past the script."""
    left, store.meanwhile[FOLDER] = store.meanwhile[FOLDER], []
    await file_in(store).update(one_more)
    store.meanwhile[FOLDER] = left


@pytest.mark.parametrize("wrong", [{"reconciler_id": ""}, {"reconciler_id": "x" * 2000}, {"beat_at_unix_ns": -1}])
@async_test
async def test_what_could_not_be_read_back_is_never_stored(wrong: dict[str, object]) -> None:
    store = ScriptedStore()

    with pytest.raises(InvalidRecord):
        await file_in(store).update(lambda found: msgspec.structs.replace(one_more(found), **wrong))

    assert await store.keys("") == []


@pytest.mark.parametrize(
    ("body", "error"),
    [(b"", Unreadable), (b"{", Unreadable), (b'{"schema":"lightmetrics.reconciler_heartbeat.v2"}', NewerFormat)],
)
@async_test
async def test_a_record_that_cannot_be_read_is_not_replaced(body: bytes, error: type[Exception]) -> None:
    store = ScriptedStore()
    await store.put(keys.RECONCILER_HEARTBEAT, body)

    with pytest.raises(error):
        await file_in(store).update(one_more)
    with pytest.raises(error):
        await file_in(store).read()

    found = await store.get(keys.RECONCILER_HEARTBEAT)
    assert found is not None
    assert found.body == body


@async_test
async def test_an_object_of_any_size_is_not_read_beyond_what_a_record_may_have() -> None:
    store = ScriptedStore()
    await store.put(keys.RECONCILER_HEARTBEAT, b" " * 1_000_000)

    with pytest.raises(Unreadable, match=f"has {ReconcilerHeartbeat.MAX_BYTES + 1:,} bytes"):
        await file_in(store).read()
