"""What is given to an agent's spool is on disk when the call returns, once, and becomes batches with fixed bytes."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from lakehead.agent.spool_errors import KeyReused, RecordsTooLarge, SpoolFull, SpoolUnusable
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.errors import Misconfigured, Unavailable
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import BadFrame
from lakehead.wire.frame import decode_frame, encode_frame
from tests.support.async_tests import async_test
from tests.unit.agent.spools import (
    AGENT,
    LOGS,
    NEVER,
    SAMPLES,
    SLOW,
    doubt,
    filled,
    numbered,
    opened,
    request,
    sent,
    some_logs,
    stored,
    turns,
    until,
    values,
)
from tests.unit.wire.frames import samples


@async_test
async def test_records_are_on_disk_when_the_call_returns(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        assert not (await spool.append(SAMPLES, numbered(0, 3))).duplicate
        assert stored(tmp_path) == [0, 1, 2]
        assert spool.test_disk.done("create", "append") == ["create entries/" + "0" * 20]
        await spool.append(SAMPLES, numbered(3))
        assert stored(tmp_path) == [0, 1, 2, 3]
        assert spool.waiting() == ()


@async_test
async def test_requests_that_wait_are_flushed_together(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0))
        spool.test_disk.gates["append"] = gate = asyncio.Event()
        first = asyncio.create_task(spool.append(SAMPLES, numbered(1)))
        await until(lambda: len(spool.test_disk.done("append")) == 1)
        calls = [asyncio.create_task(spool.append(SAMPLES, numbered(each))) for each in range(2, 21)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, *calls)

        assert len(spool.test_disk.done("append")) == 2, "the first alone, and all others while it was flushed"
        assert stored(tmp_path) == list(range(21))


@async_test
async def test_kinds_do_not_wait_for_each_other(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0))
        spool.test_disk.gates["append"] = gate = asyncio.Event()
        held = asyncio.create_task(spool.append(SAMPLES, numbered(1)))
        await until(lambda: len(spool.test_disk.done("append")) == 1)

        await spool.append(LOGS, some_logs(2))

        assert not held.done()
        gate.set()
        await held
        status = spool.status()
        assert status.next_sequence == {SAMPLES: 2, LOGS: 2}
        assert status.boots[SAMPLES] != status.boots[LOGS]


@async_test
async def test_a_batch_gets_its_bytes_once_and_has_all_records_in_order(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        for each in range(5):
            await spool.append(SAMPLES, numbered(10 * each, 10))
        assert await spool.seal_now() == 0
        [entry] = spool.waiting()
        batch = await spool.read(entry)
        again = await spool.read(entry)

        assert batch is not None
        assert again is not None
        boot = spool.status().boots[SAMPLES]
        identity = BatchIdentity(AGENT, boot, 0, 49)
        assert batch.body == again.body == encode_frame(identity, SAMPLES, numbered(0, 50))
        assert batch.identity == entry.identity == identity
        assert (spool.folder / "entries" / f"{0:020}").read_bytes() == batch.body
        assert entry.size == len(batch.body) == spool.status().entry_bytes


@async_test
async def test_records_of_both_versions_become_one_batch(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0, 2))
        await spool.append(SAMPLES, samples())
        await spool.seal_now()
        [entry] = spool.waiting()
        batch = await spool.read(entry)

    assert batch is not None
    expected = [*numbered(0, 2).to_pylist(), *samples().to_pylist()]
    assert repr(decode_frame(batch.body).records.to_pylist()) == repr(expected)


@async_test
async def test_sequence_numbers_have_no_gap_and_later_batches_later_numbers(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, batch_records=7, reserve_bytes=0)
    async with opened(tmp_path, limits) as spool:
        await asyncio.gather(*(spool.append(SAMPLES, numbered(5 * each, 5)) for each in range(20)))
        await spool.seal_now()
        ranges = [(each.identity.seq_start, each.identity.seq_end) for each in spool.waiting()]

        assert ranges[0][0] == 0
        assert ranges[-1][1] == 99
        assert all(one[1] + 1 == other[0] for one, other in pairwise(ranges))
        assert [each for batch in await sent(spool) for each in batch] == list(range(100))


# --- when batches are closed


@async_test
async def test_a_batch_is_closed_when_it_is_old_enough(tmp_path: Path) -> None:
    async with opened(tmp_path, SpoolSettings(batch_seconds=0.01, reserve_bytes=0)) as spool:
        await spool.append(SAMPLES, numbered(0))
        while not spool.waiting():
            await spool.wait_for_work()
        await spool.append(SAMPLES, numbered(1))
        while len(spool.waiting()) < 2:
            await spool.wait_for_work()

        assert await sent(spool) == [[0], [1]]


@async_test
async def test_a_batch_is_closed_when_it_has_enough_records(tmp_path: Path) -> None:
    async with opened(tmp_path, SpoolSettings(batch_seconds=NEVER, batch_records=4, reserve_bytes=0)) as spool:
        for each in range(0, 8, 2):
            await spool.append(SAMPLES, numbered(each, 2))
        while len(spool.waiting()) < 2:
            await spool.wait_for_work()
        await spool.append(SAMPLES, numbered(8, 9))
        while len(spool.waiting()) < 3:
            await spool.wait_for_work()

        assert [len(each) for each in await sent(spool)] == [4, 4, 9], "a larger request has a batch of its own"


@async_test
async def test_a_batch_is_closed_when_it_has_enough_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path, SpoolSettings(batch_seconds=NEVER, batch_bytes=10_000, reserve_bytes=0)) as spool:
        while len(spool.waiting()) < 3:
            await spool.append(SAMPLES, numbered(0, 10))
        await spool.seal_now()

        assert all(1 < len(each) < 100 for each in (await sent(spool))[:3])


@async_test
async def test_appending_goes_on_while_a_frame_is_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0))
        spool.test_disk.gates["replace"] = gate = asyncio.Event()
        sealing = asyncio.create_task(spool.seal_now())
        await until(lambda: bool(spool.test_disk.done("replace")[1:]))

        for each in range(1, 5):
            await spool.append(SAMPLES, numbered(each))

        assert not sealing.done()
        assert stored(tmp_path) == [0, 1, 2, 3, 4]
        gate.set()
        await sealing


@async_test
async def test_requests_wait_when_frames_are_written_more_slowly_than_they_come(tmp_path: Path) -> None:
    async with opened(tmp_path, SpoolSettings(batch_seconds=NEVER, batch_records=1, reserve_bytes=0)) as spool:
        spool.test_disk.gates["replace"] = gate = asyncio.Event()
        calls = [asyncio.create_task(spool.append(SAMPLES, numbered(each))) for each in range(10)]
        await until(lambda: sum(each.done() for each in calls) == 2)
        await turns()
        assert len(spool.files()) == 2, "memory is bounded: no more are opened"

        gate.set()
        await asyncio.gather(*calls)
        await spool.seal_now()
        assert await sent(spool) == [[each] for each in range(10)]


@async_test
async def test_no_records_need_no_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        assert not (await spool.append(SAMPLES, numbered(0, 0), request(1))).duplicate
        assert spool.files() == []
        assert await spool.seal_now() == -1


@async_test
async def test_large_records_are_encoded_by_a_thread_and_kept_as_they_are(tmp_path: Path) -> None:
    large = numbered(0, 20_000)
    async with opened(tmp_path) as spool:
        [first, second] = await asyncio.gather(
            spool.append(SAMPLES, large, request(1)), spool.append(SAMPLES, large, request(1))
        )
        await spool.seal_now()

        assert (first.duplicate, second.duplicate) == (False, True)
        assert await sent(spool) == [values(large)]
        assert spool._contents.append_bytes == 0


@async_test
async def test_a_slice_of_a_large_table_takes_no_more_than_its_own_records(tmp_path: Path) -> None:
    large = numbered(0, 20_000)
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, large.slice(100, 3))

        assert spool.status().entry_bytes < 2_000
        assert stored(tmp_path) == [100, 101, 102]


# --- requests that come again


@async_test
async def test_a_request_that_comes_again_is_answered_and_not_spooled_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        first = await spool.append(SAMPLES, numbered(0), request(1))
        again = await spool.append(SAMPLES, numbered(0), request(1))
        await spool.seal_now()
        sealed = await spool.append(SAMPLES, numbered(0), request(1))
        for entry in spool.waiting():
            await spool.accepted(entry)
        accepted = await spool.append(SAMPLES, numbered(0), request(1))
        other = await spool.append(SAMPLES, numbered(1), request(2))

        assert [each.duplicate for each in (first, again, sealed, accepted, other)] == [False, True, True, True, False]
        assert stored(tmp_path) == [1]
        assert spool.status().remembered_requests == 2


@async_test
async def test_requests_without_an_id_are_never_the_same(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        for _ in range(2):
            assert not (await spool.append(SAMPLES, numbered(0))).duplicate
        assert stored(tmp_path) == [0, 0]


@async_test
async def test_a_duplicate_in_flight_waits_until_the_first_is_on_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        spool.test_disk.gates["create"] = gate = asyncio.Event()
        first = asyncio.create_task(spool.append(SAMPLES, numbered(0), request(1)))
        await until(lambda: bool(spool.test_disk.done("create")))
        second = asyncio.create_task(spool.append(SAMPLES, numbered(0), request(1)))
        await turns()
        assert not second.done()

        gate.set()
        assert not (await first).duplicate
        assert (await second).duplicate
        assert stored(tmp_path) == [0]


@async_test
async def test_a_duplicate_in_flight_fails_as_the_first_does(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        spool.test_disk.gates["create"] = gate = asyncio.Event()
        first = asyncio.create_task(spool.append(SAMPLES, numbered(0), request(1)))
        await until(lambda: bool(spool.test_disk.done("create")))
        second = asyncio.create_task(spool.append(SAMPLES, numbered(0), request(1)))
        await asyncio.sleep(0)
        spool.test_disk.fails = lambda deed: Unavailable("no") if deed.verb == "create" else None
        gate.set()
        for each in (first, second):
            with pytest.raises(SpoolUnusable):
                await each

        spool.test_disk.fails = lambda _: None
        assert not (await spool.append(SAMPLES, numbered(0), request(1))).duplicate
        assert stored(tmp_path) == [0]


@async_test
async def test_another_body_under_the_same_key_is_refused_also_in_flight(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        found = await asyncio.gather(
            spool.append(SAMPLES, numbered(0), request(1, body=1)),
            spool.append(SAMPLES, numbered(1), request(1, body=2)),
            return_exceptions=True,
        )
        assert isinstance(found[1], KeyReused)
        await spool.seal_now()
        with pytest.raises(KeyReused):
            await spool.append(SAMPLES, numbered(1), request(1, body=2))

        assert stored(tmp_path) == [0]


@async_test
async def test_digests_are_saved_before_the_journal_that_has_them_becomes_a_frame(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0), request(1))
        del spool.test_disk.deeds[:]
        await spool.seal_now()

        assert spool.test_disk.done("create", "append", "replace") == [
            f"create seen/{0:020}",
            f"replace entries/{0:020}",
        ]


# --- cancelled


@async_test
async def test_a_call_that_is_cancelled_is_carried_to_its_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        spool.test_disk.gates["create"] = gate = asyncio.Event()
        calls = [
            asyncio.create_task(spool.append(SAMPLES, numbered(0), request(1))),
            asyncio.create_task(spool.append(SAMPLES, numbered(1, 20_000), request(2))),
        ]
        await until(lambda: bool(spool.test_disk.done("create")))
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        gate.set()

        assert (await spool.append(SAMPLES, numbered(0), request(1))).duplicate
        assert (await spool.append(SAMPLES, numbered(1, 20_000), request(2))).duplicate
        assert len(stored(tmp_path)) == 20_001
        assert spool._contents.append_bytes == 0


@async_test
async def test_an_error_that_nobody_waits_for_is_not_an_error_of_the_loop(tmp_path: Path) -> None:
    errors: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with opened(tmp_path) as spool:
        spool.test_disk.gates["create"] = gate = asyncio.Event()
        call = asyncio.create_task(spool.append(SAMPLES, numbered(0), request(1)))
        await until(lambda: bool(spool.test_disk.done("create")))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        spool.test_disk.fails = lambda deed: Unavailable("no") if deed.verb == "create" else None
        gate.set()
        with pytest.raises(SpoolUnusable):
            await spool.append(SAMPLES, numbered(0), request(1))
        spool.test_disk.fails = lambda _: None

    assert errors == []


# --- bounds


@async_test
async def test_a_full_spool_refuses_and_drops_nothing(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, spool_bytes=3_000, reserve_bytes=0)
    async with opened(tmp_path, limits) as spool:
        kept = await filled(spool, 1)
        assert kept > 1
        assert spool.status().entry_bytes <= 3_000
        assert (await spool.append(SAMPLES, numbered(0), request(0))).duplicate, "it is answered all the same"

        await spool.seal_now()
        assert await sent(spool) == [list(range(kept))]
        for entry in spool.waiting():
            await spool.accepted(entry)
        assert not (await spool.append(SAMPLES, numbered(kept), request(kept))).duplicate


@async_test
async def test_a_spool_with_too_many_batches_refuses(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, batch_records=1, spool_entries=3, reserve_bytes=0)
    async with opened(tmp_path, limits) as spool:
        found = await asyncio.gather(
            *(spool.append(SAMPLES, numbered(each)) for each in range(6)), return_exceptions=True
        )
        assert [isinstance(each, SpoolFull) for each in found] == [False] * 3 + [True] * 3
        assert spool.status().entries == 3
        assert "may hold 3" in spool.status().problem
        with pytest.raises(SpoolFull):
            spool.check()
        with pytest.raises(SpoolFull):
            await spool.append(LOGS, some_logs())

        await spool.seal_now()
        await spool.accepted(spool.waiting()[0])
        spool.check()
        await spool.append(LOGS, some_logs())


@async_test
async def test_requests_that_wait_for_the_disk_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, append_bytes=2_000, reserve_bytes=0)
    async with opened(tmp_path, limits) as spool:
        spool.test_disk.gates["create"] = gate = asyncio.Event()
        calls = [asyncio.create_task(spool.append(SAMPLES, numbered(each), request(each))) for each in range(20)]
        await until(lambda: bool(spool.test_disk.done("create")))
        refused = [each for each in calls if each.done()]
        assert 0 < len(refused) < 20
        assert all(isinstance(each.exception(), SpoolFull) for each in refused)

        gate.set()
        kept = await asyncio.gather(*(each for each in calls if each not in refused))
        assert len(stored(tmp_path)) == len(kept)
        assert spool._contents.append_bytes == 0
        await spool.append(SAMPLES, numbered(0, 50))


@async_test
async def test_a_request_that_fits_into_no_batch_is_refused(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, request_records=10, request_bytes=100_000, reserve_bytes=0)
    wide = samples([{**numbered(0).to_pylist()[0], "metric": "x" * 100_000}])
    wider = samples([{**numbered(0).to_pylist()[0], "metric": "x" * 1_000_000}])
    async with opened(tmp_path, limits) as spool:
        for records in (numbered(0, 11), wide, wider):
            with pytest.raises(RecordsTooLarge):
                await spool.append(SAMPLES, records, request(1))
        assert not (await spool.append(SAMPLES, numbered(0, 10), request(1))).duplicate
        assert spool._contents.append_bytes == 0


@async_test
async def test_records_of_another_kind_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        for count in (1, 20_000):
            with pytest.raises(BadFrame):
                await spool.append(LOGS, numbered(0, count), request(count))
        await spool.append(LOGS, some_logs())


@async_test
async def test_records_that_nobody_checked_do_not_stop_others(tmp_path: Path) -> None:
    bad = samples([{**numbered(0).to_pylist()[0], "labels": [("b", ""), ("a", "")]}])
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, bad)
        await spool.seal_now()
        await spool.append(SAMPLES, numbered(1))
        await spool.seal_now()

        assert await sent(spool) == [[1]]
        assert spool.status().damaged == 1
        assert spool.status().entries == 1
        assert spool.files("damaged") == [f"{0:020}-journal"]
        assert "cannot be sent" in spool.told()


@async_test
async def test_something_unforeseen_lets_nobody_wait_for_ever(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        spool.test_disk.gates["create"] = gate = asyncio.Event()
        calls = [asyncio.create_task(spool.append(SAMPLES, numbered(each))) for each in range(3)]
        await until(lambda: bool(spool.test_disk.done("create")))
        calls.append(asyncio.create_task(spool.append(SAMPLES, numbered(3))))
        await asyncio.sleep(0)
        spool.test_disk.fails = lambda deed: ZeroDivisionError() if deed.verb == "create" else None
        gate.set()

        found = await asyncio.gather(*calls, return_exceptions=True)

        assert all(isinstance(each, SpoolUnusable) for each in found)
        spool.test_disk.fails = lambda _: None
        with pytest.raises(SpoolUnusable, match="started again"):
            await spool.append(SAMPLES, numbered(0))


@async_test
async def test_a_closed_spool_takes_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0))
    with pytest.raises(SpoolUnusable, match="stopping"):
        await spool.append(SAMPLES, numbered(1))
    async with opened(tmp_path) as spool:
        assert await sent(spool) == [[0]], "what it had was made a frame of when it was closed"


# --- boots, authority, status


@async_test
async def test_a_boot_that_is_left_keeps_its_records_and_the_next_one_begins_at_0(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        left = spool.status().boots[SAMPLES]
        await spool.append(SAMPLES, numbered(0, 2))
        await spool.new_boot(SAMPLES, left)
        await spool.append(SAMPLES, numbered(2, 3))
        await spool.new_boot(SAMPLES, left)
        await spool.new_boot(LOGS, left)
        await spool.append(SAMPLES, numbered(5))
        await spool.seal_now()

        boot = spool.status().boots[SAMPLES]
        assert boot != left
        assert [each.identity for each in spool.waiting()] == [
            BatchIdentity(AGENT, left, 0, 1),
            BatchIdentity(AGENT, boot, 0, 3),
        ]


@async_test
async def test_each_start_has_boots_of_its_own_and_the_same_spool(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        first, spool_id = spool.status().boots, spool.spool_id
        assert spool.authority == ""
        await spool.pin("authority-1")
        await spool.pin("authority-1")
        assert len(spool.test_disk.done("replace")) == 2
    async with opened(tmp_path) as spool:
        assert set(first.values()).isdisjoint(spool.status().boots.values())
        assert (spool.spool_id, spool.authority) == (spool_id, "authority-1")
        with pytest.raises(Misconfigured, match="authority-1"):
            await spool.pin("authority-2")
        spool.test_disk.fails_after = lambda deed: doubt() if deed.verb == "replace" else None
        await spool.pin("authority-1")


@async_test
async def test_an_authority_that_could_not_be_noted_is_noted_the_next_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        spool.test_disk.fails_after = lambda deed: doubt() if deed.verb == "replace" else None
        with pytest.raises(SpoolUnusable):
            await spool.pin("authority-1")
        assert spool.authority == ""
        spool.test_disk.fails_after = lambda _: None
        await spool.pin("authority-1")
    async with opened(tmp_path) as spool:
        assert spool.authority == "authority-1"


@async_test
async def test_the_status_tells_what_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0), request(1))
        await spool.append(LOGS, some_logs(3))
        before = spool.status()
        await spool.seal_now()
        spool.test_clock.ahead += 60
        spool.test_clock.wall_ahead_ns -= 10**18
        after = spool.status()

    assert (before.entries, after.entries, after.parked, after.damaged) == (2, 2, 0, 0)
    assert after.entry_bytes == sum(each.size for each in spool.waiting())
    assert before.oldest_seconds == 0.0
    assert 60 <= after.oldest_seconds < 120
    assert after.next_sequence == {SAMPLES: 1, LOGS: 3}
    assert after.problem == ""


@async_test
async def test_waiting_entries_are_told_by_kind_in_order_and_without_some(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        for each in range(4):
            await spool.append(SAMPLES if each % 2 else LOGS, numbered(each) if each % 2 else some_logs())
            await spool.seal_now()

        assert [each.number for each in spool.waiting()] == [0, 1, 2, 3]
        assert [each.number for each in spool.waiting(SAMPLES)] == [1, 3]
        assert [each.number for each in spool.waiting(limit=2, besides={0})] == [1, 2]
        assert [each.kind for each in spool.waiting(LOGS)] == [LOGS, LOGS]


@pytest.mark.parametrize(
    "bad",
    [
        {"batch_seconds": 0},
        {"batch_records": 0},
        {"spool_bytes": -1},
        {"batch_records": 1_000_001},
        {"request_bytes": 65 << 20},
        {"dedupe_requests": 0},
    ],
    ids=str,
)
def test_settings_with_which_nothing_could_be_sent_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(Misconfigured, match=next(iter(bad))):
        SpoolSettings(**bad)


def test_settings_may_leave_out_what_is_not_needed() -> None:
    SpoolSettings(parked_bytes=0, reserve_bytes=0, dedupe_seconds=0)
    assert SLOW.spool_bytes > 0
