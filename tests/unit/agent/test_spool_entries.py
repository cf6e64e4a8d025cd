"""What becomes of a batch in an agent's spool is one step on disk, and happens once."""

import asyncio
from pathlib import Path

import pytest

from lakehead.agent.spool_entry import ParkReason
from lakehead.agent.spool_errors import SpoolFull, SpoolUnusable
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.errors import Unavailable
from lakehead.wire.agent_spool_records import ParkedNote
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame, encode_frame, frame_sha256
from tests.support.async_tests import async_test
from tests.unit.agent.spools import (
    AGENT,
    LOGS,
    NEVER,
    SAMPLES,
    Opened,
    doubt,
    full,
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

WHY = ParkReason("identity_conflict", "Another frame was accepted.")


async def batches(spool: Opened, count: int) -> None:
    """Spool so many batches of one sample."""
    for each in range(count):
        await spool.append(SAMPLES, numbered(each), request(each))
        await spool.seal_now()


# --- accepted


@async_test
async def test_an_accepted_batch_is_gone_for_good(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 2)
        first = spool.waiting()[0]
        await spool.accepted(first)
        await spool.accepted(first)

        assert await sent(spool) == [[1]]
        assert await spool.read(first) is None
        assert spool.status().entry_bytes == spool.waiting()[0].size
    async with opened(tmp_path) as spool:
        assert await sent(spool) == [[1]]


@async_test
async def test_a_batch_whose_file_stays_is_sent_again_after_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        spool.test_disk.fails = lambda deed: doubt() if deed.verb == "delete" else None
        await spool.accepted(spool.waiting()[0])
        assert spool.waiting() == ()
        assert "may be sent again" in spool.told()
        spool.test_disk.fails = lambda _: None
    async with opened(tmp_path) as spool:
        assert await sent(spool) == [[0]]


@async_test
async def test_who_waits_is_told_of_what_comes_and_what_leaves(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        work, change = asyncio.create_task(spool.wait_for_work()), asyncio.create_task(spool.wait_for_change())
        await turns()
        await batches(spool, 1)
        await asyncio.gather(work, change)
        work, change = asyncio.create_task(spool.wait_for_work()), asyncio.create_task(spool.wait_for_change())
        await turns()
        await spool.accepted(spool.waiting()[0])
        await change
        assert not work.done()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert spool._contents.work._waiting == []


# --- damaged


@pytest.mark.parametrize("at", [8, -20], ids=["of its version", "of its records"])
@async_test
async def test_a_frame_with_a_flipped_bit_is_set_aside_and_told_and_never_sent(at: int, tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 2)
        first, second = spool.waiting()
        path = spool.folder / "entries" / f"{first.number:020}"
        body = bytearray(path.read_bytes())
        body[at] ^= 4
        path.write_bytes(body)

        assert await spool.read(first) is None
        assert await spool.requeue(first) is None
        assert spool.waiting() == (second,)
        assert spool.files("damaged") == [f"{first.number:020}-frame"]
        assert spool.status().damaged == 1
        assert f"{first.identity.boot_id}" in spool.told()
    async with opened(tmp_path) as spool:
        assert spool.status().damaged == 1


@async_test
async def test_a_frame_of_another_batch_in_its_place_is_never_sent(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 2)
        first, second = spool.waiting()
        folder = spool.folder / "entries"
        (folder / f"{first.number:020}").write_bytes((folder / f"{second.number:020}").read_bytes())

        assert await spool.read(first) is None
        assert spool.status().damaged == 1


@async_test
async def test_a_file_that_somebody_removed_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        [entry] = spool.waiting()
        (spool.folder / "entries" / f"{entry.number:020}").unlink()

        assert await spool.read(entry) is None
        assert spool.waiting() == ()
        assert "is gone" in spool.told()


# --- void


@async_test
async def test_a_void_batch_gets_the_next_numbers_of_the_current_boot_in_its_place(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 2)
        await spool.append(SAMPLES, numbered(5, 3))
        boot = spool.status().boots[SAMPLES]
        first = spool.waiting()[0]
        del spool.test_disk.deeds[:]

        changed = await spool.requeue(first)

        assert changed is not None
        assert changed.identity == BatchIdentity(AGENT, boot, 5, 5)
        assert changed.number == first.number
        await spool.append(SAMPLES, numbered(8))
        await spool.seal_now()
        found = {each.identity.seq_start: each.identity.seq_end for each in spool.waiting()}
        assert found == {5: 5, 1: 1, 2: 4, 6: 6}, (
            "what was being collected keeps its numbers, what comes has later ones"
        )
        assert sorted(stored(tmp_path)) == [0, 1, 5, 6, 7, 8]
        assert [str(each) for each in spool.test_disk.deeds].count(f"replace entries/{first.number:020}") == 1
        batch = await spool.read(changed)
        assert batch is not None
        assert batch.body == encode_frame(changed.identity, SAMPLES, numbered(0))


@async_test
async def test_a_void_batch_of_an_earlier_boot_goes_out_under_the_current_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0, 5))
        await spool.append(LOGS, some_logs(2))
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(10))
        [old] = spool.waiting(SAMPLES)
        changed = await spool.requeue(old)

        assert changed is not None
        assert changed.identity == BatchIdentity(AGENT, spool.status().boots[SAMPLES], 1, 5)
        assert spool.waiting(SAMPLES)[0] == changed
    async with opened(tmp_path) as spool:
        assert changed.identity in [each.identity for each in spool.waiting()]


@async_test
async def test_no_later_number_is_on_disk_before_a_void_batch_has_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        spool.test_disk.gates["replace"] = gate = asyncio.Event()
        requeued = asyncio.create_task(spool.requeue(spool.waiting()[0]))
        await until(lambda: len(spool.test_disk.done("replace")) == 3)
        append = asyncio.create_task(spool.append(SAMPLES, numbered(1)))
        await turns()
        assert len(spool.files()) == 1
        gate.set()
        changed = await requeued
        await append

        assert changed is not None
        assert changed.identity.seq_start == 1
        assert spool.status().next_sequence[SAMPLES] == 3


@async_test
async def test_a_requeue_that_is_cancelled_is_carried_to_its_end(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        spool.test_disk.gates["replace"] = gate = asyncio.Event()
        requeued = asyncio.create_task(spool.requeue(spool.waiting()[0]))
        await until(lambda: len(spool.test_disk.done("replace")) == 3)
        requeued.cancel()
        await turns()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await requeued

        assert spool.waiting()[0].identity.seq_start == 1
        assert spool.status().next_sequence[SAMPLES] == 2


@async_test
async def test_two_answers_that_a_batch_is_void_give_it_new_numbers_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        [entry] = spool.waiting()

        one, other = await asyncio.gather(spool.requeue(entry), spool.requeue(entry))

        assert one == other == spool.waiting()[0]
        assert spool.status().next_sequence[SAMPLES] == 2


@async_test
async def test_an_answer_about_the_numbers_that_a_batch_had_does_nothing_to_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        [entry] = spool.waiting()
        changed = await spool.requeue(entry)

        await spool.accepted(entry)
        assert await spool.park(entry, WHY) is None
        assert await spool.read(entry) is None
        assert spool.waiting() == (changed,)


@async_test
async def test_a_void_batch_is_as_it_was_if_it_cannot_be_written(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        [entry] = spool.waiting()
        for error in (Unavailable("no"), full()):
            spool.test_disk.fails = lambda deed, error=error: error if deed.verb == "replace" else None  # type: ignore[misc]
            with pytest.raises(Unavailable):
                await spool.requeue(entry)
        assert spool.waiting() == (entry,)
        spool.test_disk.fails = lambda _: None
        changed = await spool.requeue(entry)
        assert changed is not None
        assert changed.identity.seq_start == 1, "no number was used"


@async_test
async def test_a_void_batch_in_doubt_is_written_again_with_the_same_bytes(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        times = iter([doubt(), Unavailable("no"), None])
        spool.test_disk.fails_after = lambda deed: next(times) if deed.verb == "replace" else None

        changed = await spool.requeue(spool.waiting()[0])

        assert changed is not None
        await spool.append(SAMPLES, numbered(1))
        assert spool.status().next_sequence[SAMPLES] == 3


@pytest.mark.parametrize("last", [doubt(), Unavailable("no")], ids=["in doubt", "then nothing works"])
@async_test
async def test_nothing_is_taken_while_it_is_not_known_which_numbers_are_on_disk(
    last: Exception, tmp_path: Path
) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 2)
        first, second = spool.waiting()
        times = iter([doubt(), last, last])
        spool.test_disk.fails_after = lambda deed: next(times, None) if deed.verb == "replace" else None
        with pytest.raises(SpoolUnusable, match="started again"):
            await spool.requeue(first)

        assert spool.waiting() == (second,), "it is not sent: it may have either form"
        for kind, records in ((SAMPLES, numbered(9)), (LOGS, some_logs())):
            with pytest.raises(SpoolUnusable):
                await spool.append(kind, records)
        with pytest.raises(SpoolUnusable):
            await spool.requeue(second)
        boot = spool.status().boots[SAMPLES]
    async with opened(tmp_path) as spool:
        assert sorted(stored(tmp_path)) == [0, 1]
        assert {each.identity for each in spool.waiting()} == {
            BatchIdentity(AGENT, boot, 2, 2),
            BatchIdentity(AGENT, boot, 1, 1),
        }
        await spool.append(SAMPLES, numbered(9))


# --- parked


@async_test
async def test_a_parked_batch_is_kept_outside_of_what_waits_also_over_a_restart(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 3)
        last = spool.waiting()[-1]
        before = await spool.read(last)
        parked = await spool.park(last, WHY)
        again = await spool.park(last, ParkReason("other"))

        assert parked is not None
        assert parked == again
        assert (parked.folder, parked.parked) == ("parked", WHY)
        assert spool.parked() == (parked,)
        assert await sent(spool) == [[0], [1]]
        assert spool.files("parked") == [f"{last.number:020}", f"{last.number:020}.json"]
        status = spool.status()
        assert (status.entries, status.parked, status.parked_bytes) == (2, 1, last.size)
        batch = await spool.read(parked)
        assert before is not None
        assert batch == before
        name = f"parked/{last.number:020}.json"
        note = ParkedNote.decode((spool.folder / name).read_bytes(), name)
        assert (note.frame_sha256, note.identity, note.code) == (before.sha256, last.identity, WHY.code)
    async with opened(tmp_path) as spool:
        [found] = spool.parked()
        assert (found.number, found.identity, found.parked) == (last.number, last.identity, WHY)
        assert found.number not in [each.number for each in spool.waiting()]
        await spool.append(SAMPLES, numbered(9))
        await spool.seal_now()
        assert spool.waiting()[-1].number == 3, "numbers are above those of parked batches"
        await spool.accepted(found)
        assert spool.files("parked") == []
        assert spool.status().parked_bytes == 0


@async_test
async def test_a_parked_batch_can_wait_in_its_turn_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 2)
        parked = await spool.park(spool.waiting()[0], WHY)
        assert parked is not None
        work = asyncio.create_task(spool.wait_for_work())
        await turns()
        waiting = await spool.unpark(parked)
        await work

        assert waiting is not None
        assert spool.waiting()[0] == waiting
        assert await sent(spool) == [[0], [1]]
        assert spool.files("parked") == []
        assert await spool.unpark(waiting) == waiting


@async_test
async def test_a_void_parked_batch_gets_its_numbers_where_it_lies(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 2)
        parked = await spool.park(spool.waiting()[0], WHY)
        assert parked is not None

        changed = await spool.requeue(parked)

        assert changed is not None
        assert changed.folder == "parked"
        assert changed.identity.seq_start == 2
        assert spool.parked() == (changed,)
        batch = await spool.read(changed)
        assert batch is not None
        assert values(decode_frame(batch.body).records) == [0]
    async with opened(tmp_path) as spool:
        [found] = spool.parked()
        assert found.identity == changed.identity


@async_test
async def test_a_batch_that_should_be_parked_stays_where_it_is_when_there_is_no_room(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, parked_bytes=1, spool_entries=2, reserve_bytes=0)
    async with opened(tmp_path, limits) as spool:
        await batches(spool, 2)
        first = spool.waiting()[0]
        parked = await spool.park(first, WHY)

        assert parked is not None
        assert (parked.folder, parked.parked) == ("entries", WHY)
        assert spool.parked() == (parked,)
        assert await sent(spool) == [[1]]
        assert "parked/ is full" in spool.told()
        status = spool.status()
        assert (status.parked, status.parked_bytes, status.entries) == (1, 0, 2)
        with pytest.raises(SpoolFull):
            await spool.append(SAMPLES, numbered(2))
        changed = await spool.requeue(parked)
        assert changed is not None
        assert await spool.unpark(changed) == spool.waiting()[0]
        await spool.accepted(spool.waiting()[0])
        await spool.append(SAMPLES, numbered(2))


@async_test
async def test_a_batch_that_cannot_be_moved_is_as_it_was(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        [entry] = spool.waiting()
        spool.test_disk.fails = lambda deed: doubt() if deed.verb == "move" else None
        with pytest.raises(SpoolUnusable):
            await spool.park(entry, WHY)
        assert spool.waiting() == (entry,)


@async_test
async def test_a_batch_that_was_moved_although_it_is_in_doubt_is_parked(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 1)
        spool.test_disk.fails_after = lambda deed: doubt() if deed.verb in ("move", "replace") else None
        parked = await spool.park(spool.waiting()[0], WHY)

        assert spool.parked() == (parked,)
        assert parked is not None
        batch = await spool.read(parked)
        assert batch is not None
        assert frame_sha256(batch.body) == batch.sha256


@async_test
async def test_what_is_noted_of_parked_batches_may_be_lost_or_left(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await batches(spool, 3)
        for entry in spool.waiting():
            await spool.park(entry, WHY)
        folder = spool.folder / "parked"
        (folder / f"{0:020}.json").unlink()
        (folder / f"{1:020}.json").write_bytes(b"{}")
        (folder / f"{2:020}").unlink()
    async with opened(tmp_path) as spool:
        assert [each.parked for each in spool.parked()] == [ParkReason(""), ParkReason("")]
        assert f"{2:020}.json" not in spool.files("parked")
