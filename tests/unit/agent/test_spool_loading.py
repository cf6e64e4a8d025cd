"""What a start finds in an agent's spool is sent, or kept for a person to look at: nothing is lost in silence."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from lakehead.agent.spool_disk import open_local_spool_disk
from lakehead.agent.spool_errors import SpoolLocked, SpoolUnusable
from lakehead.errors import Misconfigured, Unavailable
from lakehead.wire.agent_journal import JournalHead
from lakehead.wire.agent_spool_records import AgentSpoolRecord
from lakehead.wire.append_log import encode_head
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.frame import encode_frame
from lakehead.wire.seen_requests import MAGIC as SEEN_MAGIC
from tests.support.async_tests import async_test, run_bounded
from tests.support.effort import effort
from tests.unit.agent.spools import (
    AGENT,
    LOGS,
    SAMPLES,
    SLOW,
    Deed,
    Opened,
    TestClock,
    TestDisk,
    doubt,
    full,
    killed,
    numbered,
    opened,
    request,
    sent,
    some_logs,
    stored,
)
from tests.unit.wire.frames import with_number
from tests.unit.wire.journals import item, pieces_of
from tests.unit.wire.journals import journal as journal_of

HEAD = JournalHead(SAMPLES, AGENT, "old-boot", 7)
ITEMS = [item(7 + each, numbered(each), request(each)) for each in range(4)]
"""Values 0 to 3, each a request of its own, with the sequence numbers 7 to 10."""

PIECES = pieces_of(ITEMS, HEAD)
NAME = f"{5:020}"


def place(folder: Path, body: bytes, name: str = NAME) -> Path:
    """Put a file into the entries of a new spool, as an earlier start could have left it."""
    with open_local_spool_disk(folder / "spool"):
        pass
    path = folder / "spool" / "entries" / name
    path.write_bytes(body)
    return path


def identity(first: int, last: int) -> BatchIdentity:
    return BatchIdentity(AGENT, "old-boot", first, last)


async def expect_known(spool: Opened, requests: Sequence[int]) -> None:
    for each in requests:
        assert (await spool.append(SAMPLES, numbered(each), request(each))).duplicate


# --- left over


@async_test
async def test_records_that_a_crash_left_go_out_under_their_own_boot_and_numbers(tmp_path: Path) -> None:
    async with killed(tmp_path) as spool:
        boots = spool.status().boots
        await spool.append(SAMPLES, numbered(0, 3), request(0))
        await spool.seal_now()
        await spool.append(SAMPLES, numbered(3, 2), request(3))
        await spool.append(SAMPLES, numbered(5))
        await spool.append(LOGS, some_logs(4))
    async with opened(tmp_path) as spool:
        assert [each.identity for each in spool.waiting(SAMPLES)] == [
            BatchIdentity(AGENT, boots[SAMPLES], 0, 2),
            BatchIdentity(AGENT, boots[SAMPLES], 3, 5),
        ]
        assert [each.identity for each in spool.waiting(LOGS)] == [BatchIdentity(AGENT, boots[LOGS], 0, 3)]
        assert await sent(spool) == [[0, 1, 2], [3, 4, 5]]
        assert spool.told() == ""
        await expect_known(spool, [0, 3])
        await spool.append(SAMPLES, numbered(9))
        await spool.seal_now()
        assert spool.waiting(SAMPLES)[-1].identity == BatchIdentity(AGENT, spool.status().boots[SAMPLES], 0, 0)
        assert spool.waiting()[-1].number == 3, "numbers go on above those that are there"


@async_test
async def test_a_start_that_is_killed_too_leaves_the_same_for_the_next(tmp_path: Path) -> None:
    place(tmp_path, b"".join(PIECES))
    for _ in range(3):
        async with killed(tmp_path) as spool:
            assert [each.identity for each in spool.waiting()] == [identity(7, 10)]
            body = (spool.folder / "entries" / NAME).read_bytes()
            assert body == encode_frame(identity(7, 10), SAMPLES, numbered(0, 4))


@async_test
async def test_digests_are_saved_again_although_they_were_read_already(tmp_path: Path) -> None:
    """Of what a killed process wrote, the next one reads what may not be flushed yet."""
    async with killed(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0), request(0))
        spool.test_disk.fails = lambda deed: doubt() if deed.verb == "replace" else None
        with pytest.raises(Unavailable):
            await spool.seal_now()
        assert spool.files("seen") == [f"{0:020}"]
    async with opened(tmp_path) as spool:
        deeds = spool.test_disk.done("create", "append", "replace")
        assert deeds[-2:] == [f"create seen/{1:020}", f"replace entries/{0:020}"]


@async_test
async def test_a_journal_that_was_found_is_written_anew_before_its_digests_are_saved(tmp_path: Path) -> None:
    """Who wrote it may have died before it was flushed. Digests without records would answer for what is lost."""
    place(tmp_path, b"".join(PIECES))
    async with opened(tmp_path) as spool:
        deeds = spool.test_disk.done("create", "replace")
        assert deeds[-3:] == [f"replace entries/{NAME}", f"create seen/{0:020}", f"replace entries/{NAME}"]


@async_test
async def test_requests_of_a_journal_that_cannot_be_written_anew_are_neither_answered_nor_taken(tmp_path: Path) -> None:
    place(tmp_path, b"".join(PIECES))

    def fail(disk: TestDisk) -> None:
        disk.fails = lambda deed: doubt() if deed.verb == "replace" and "entries" in deed.name else None

    async with opened(tmp_path, prepare=fail) as spool:
        with pytest.raises(SpoolUnusable):
            await spool.append(SAMPLES, numbered(0), request(0))
        spool.test_disk.fails = lambda _: None
        await spool.seal_now()
        await expect_known(spool, [0])
        await spool.append(SAMPLES, numbered(9), request(9))


@async_test
async def test_temporary_files_and_files_without_a_record_of_a_process_that_died_are_removed(tmp_path: Path) -> None:
    head = HEAD.encode()
    bodies = [b"", head[:1], head[:8], head[:-1], head, head + PIECES[1][:30]]
    for number, body in enumerate(bodies):
        place(tmp_path, body, f"{number:020}")
    (tmp_path / "spool" / "tmp" / "3").write_bytes(b"half a frame")
    async with opened(tmp_path) as spool:
        assert spool.waiting() == ()
        assert (spool.files(), spool.files("tmp"), spool.files("damaged")) == ([], [], [])
        assert spool.told() == ""


# --- torn and damaged


@pytest.mark.slow
def test_an_item_that_was_torn_is_left_out_at_whatever_byte(tmp_path: Path) -> None:
    before, last = b"".join(PIECES[:-1]), PIECES[-1]
    for cut in [1, 7, 8, 20, *range(21, len(last), effort(60, soak=1)), len(last) - 1]:
        run_bounded(_expect_without_the_last(tmp_path / str(cut), before + last[:cut]))


async def _expect_without_the_last(folder: Path, body: bytes) -> None:
    folder.mkdir()
    place(folder, body)
    async with opened(folder) as spool:
        assert [each.identity for each in spool.waiting()] == [identity(7, 9)]
        assert await sent(spool) == [[0, 1, 2]]
        assert spool.files("damaged") == []
        assert spool.told() == ""
        assert not (await spool.append(SAMPLES, numbered(3), request(3))).duplicate


@pytest.mark.slow
def test_a_last_item_with_a_flipped_bit_is_kept_apart_and_told(tmp_path: Path) -> None:
    start, random = len(b"".join(PIECES[:-1])), Random(1)
    whole = b"".join(PIECES)
    for at in [start, start + 9, start + 17, *range(start + 20, len(whole), effort(80, soak=1))]:
        body = bytearray(whole)
        body[at] ^= 1 << random.randrange(8)
        run_bounded(_expect_the_tail_apart(tmp_path / str(at), bytes(body), start))


async def _expect_the_tail_apart(folder: Path, body: bytes, start: int) -> None:
    folder.mkdir()
    place(folder, body)
    async with opened(folder) as spool:
        assert await sent(spool) == [[0, 1, 2]]
        assert spool.files("damaged") == [f"{NAME}-tail"]
        assert (spool.folder / "damaged" / f"{NAME}-tail").read_bytes() == body[start:]
        assert spool.status().damaged == 1
        assert f"{NAME}-tail" in spool.told() or "Look at them" in spool.told()


@pytest.mark.slow
def test_an_item_in_the_middle_with_a_flipped_bit_is_kept_apart_and_the_others_are_sent(tmp_path: Path) -> None:
    start, random = len(PIECES[0] + PIECES[1]), Random(1)
    whole, end = b"".join(PIECES), len(PIECES[0] + PIECES[1] + PIECES[2])
    for at in [start, start + 9, start + 17, *range(start + 20, end, effort(80, soak=1)), end - 1]:
        body = bytearray(whole)
        body[at] ^= 1 << random.randrange(8)
        run_bounded(_expect_a_gap(tmp_path / str(at), bytes(body)))


async def _expect_a_gap(folder: Path, body: bytes) -> None:
    folder.mkdir()
    place(folder, body)
    async with opened(folder) as spool:
        assert [each.identity for each in spool.waiting()] == [identity(7, 7), identity(9, 10)]
        assert [each.number for each in spool.waiting()] == [5, 6]
        assert await sent(spool) == [[0], [2, 3]]
        assert (spool.folder / "damaged" / f"{NAME}-journal").read_bytes() == body
        assert spool.status().damaged == 1
        await expect_known(spool, [0, 2, 3])
        assert not (await spool.append(SAMPLES, numbered(1), request(1))).duplicate


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [0, 1, 3], ids=["first", "middle", "last"])
@async_test
async def test_damage_is_dealt_with_once_whenever_a_start_is_killed(damaged: int, tmp_path: Path) -> None:
    whole = bytearray(b"".join(PIECES))
    whole[len(b"".join(PIECES[: damaged + 1])) + 25] ^= 1
    for steps in range(1, 30):
        folder = tmp_path / str(steps)
        folder.mkdir()
        place(folder, bytes(whole))
        was_killed = await _start_with(folder, steps)
        async with opened(folder) as spool:
            left = [each for each in range(4) if each != damaged]
            assert sorted(stored(folder)) == left, steps
            assert sorted(each for batch in await sent(spool) for each in batch) == left, steps
            identities = [each.identity for each in spool.waiting()]
            assert len(set(identities)) == len(identities)
            assert len(spool.files("damaged")) == 1
            await expect_known(spool, left)
        if not was_killed:
            assert steps > 3
            return
    pytest.fail("the start never came to its end")


async def _start_with(folder: Path, steps: int) -> bool:
    """Start, and die after so many changes of the disk. Returns whether it came to that."""
    counted = 0
    dead = RuntimeError("dead")

    def count(deed: Deed) -> Exception | None:
        nonlocal counted
        counted += deed.verb not in ("list", "read")
        return dead if counted > steps else None

    def prepare(disk: TestDisk) -> None:
        disk.fails = count

    try:
        async with opened(folder, prepare=prepare) as spool:
            spool.test_disk.fails = lambda _: None
    except RuntimeError as error:
        return error is dead
    return False


@async_test
async def test_a_journal_without_a_readable_item_is_kept_apart(tmp_path: Path) -> None:
    body = PIECES[0] + bytes(200)
    place(tmp_path, body)
    async with opened(tmp_path) as spool:
        assert (spool.waiting(), spool.files()) == ((), [])
        assert (spool.folder / "damaged" / f"{NAME}-tail").read_bytes() == bytes(200)
        assert "nothing can be read" in spool.told() or "Look at them" in spool.told()


@pytest.mark.slow
def test_a_flipped_bit_in_the_head_of_a_journal_keeps_all_of_it_apart(tmp_path: Path) -> None:
    whole = b"".join(PIECES)
    for at in range(0, len(PIECES[0]), effort(9, soak=1)):
        body = bytearray(whole)
        body[at] ^= 1
        run_bounded(_expect_all_apart(tmp_path / str(at), bytes(body)))


async def _expect_all_apart(folder: Path, body: bytes) -> None:
    folder.mkdir()
    place(folder, body)
    async with opened(folder) as spool:
        assert (spool.waiting(), spool.files()) == ((), [])
        [name] = spool.files("damaged")
        assert (spool.folder / "damaged" / name).read_bytes() == body
        assert spool.status().damaged == 1
    async with opened(folder) as spool:
        await spool.append(SAMPLES, numbered(9))
        await spool.seal_now()
        assert spool.waiting()[0].number == 6, "the number of what was set aside is not used again"


@pytest.mark.slow
def test_a_flipped_bit_in_a_frame_sends_nothing_of_it_and_stops_nothing_else(tmp_path: Path) -> None:
    frame = encode_frame(identity(0, 2), SAMPLES, numbered(0, 3), compress=False)
    for at in [8, 9, *range(0, 100, effort(7, soak=1)), *range(100, len(frame), effort(90, soak=1))]:
        body = bytearray(frame)
        body[at] ^= 1
        run_bounded(_expect_frame_not_sent(tmp_path / str(at), bytes(body), at))


async def _expect_frame_not_sent(folder: Path, body: bytes, at: int) -> None:
    folder.mkdir()
    place(folder, body)
    place(folder, encode_frame(identity(3, 3), SAMPLES, numbered(3)), f"{6:020}")
    async with opened(folder) as spool:
        assert await sent(spool) == [[3]], at
        assert spool.files("damaged") == [f"{NAME}-frame"], at
        assert (spool.folder / "damaged" / f"{NAME}-frame").read_bytes() == body


@async_test
async def test_a_frame_that_is_cut_is_set_aside(tmp_path: Path) -> None:
    frame = encode_frame(identity(0, 2), SAMPLES, numbered(0, 3))
    for number, body in enumerate([frame[:-1], frame + b"x", frame[:60], frame[:5], b"something else"]):
        place(tmp_path, body, f"{number:020}")
    async with opened(tmp_path) as spool:
        assert spool.waiting() == ()
        assert spool.files("damaged") == [f"{number:020}-frame" for number in range(5)]


@async_test
async def test_a_disk_that_cannot_keep_what_is_damaged_leaves_it_to_the_next_start(tmp_path: Path) -> None:
    whole = bytearray(b"".join(PIECES))
    whole[len(PIECES[0]) + len(PIECES[1]) + 25] ^= 1
    place(tmp_path, bytes(whole))

    def fill(disk: TestDisk) -> None:
        disk.fails = lambda deed: full() if deed.verb == "replace" and "damaged" in deed.name else None

    async with opened(tmp_path, prepare=fill) as spool:
        assert spool.waiting() == ()
        assert "started again" in spool.told()
        for number in (0, 2, 9):  # which of them are on disk is not known
            with pytest.raises(SpoolUnusable):
                await spool.append(SAMPLES, numbered(number), request(number))
        assert spool.files() == [NAME]
    async with opened(tmp_path) as spool:
        assert await sent(spool) == [[0], [2, 3]]
        await expect_known(spool, [0, 2, 3])


# --- what is not this agent's, or not this version's


@async_test
async def test_the_folder_of_another_agent_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    with pytest.raises(Misconfigured, match="agent-b"):
        async with opened(tmp_path, agent_id="agent-b"):
            pass
    async with opened(tmp_path):
        pass


@pytest.mark.parametrize("form", ["journal", "frame"])
@async_test
async def test_a_batch_of_another_agent_is_refused_also_if_nothing_else_is_known_of_the_folder(
    form: str, tmp_path: Path
) -> None:
    other = JournalHead(SAMPLES, "agent-b", "boot", 0)
    frame = encode_frame(other.identity(0, 0), SAMPLES, numbered(0))
    place(tmp_path, journal_of([item(0, numbered(0))], other) if form == "journal" else frame)
    with pytest.raises(Misconfigured, match="agent-b"):
        async with opened(tmp_path):
            pass


@async_test
async def test_two_agents_cannot_have_one_spool(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        with pytest.raises(SpoolLocked):
            async with opened(tmp_path):
                pass
        await spool.append(SAMPLES, numbered(0))
    async with opened(tmp_path) as spool:
        assert await sent(spool) == [[0]]


@async_test
async def test_a_record_of_the_spool_that_cannot_be_read_is_not_guessed(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    path = tmp_path / "spool" / "agent.json"
    newer = AgentSpoolRecord.decode(path.read_bytes(), "agent.json").encode().replace(b".v1", b".v2")
    for body, error in ((b"", Unreadable), (newer, NewerFormat)):
        path.write_bytes(body)
        with pytest.raises(error):
            async with opened(tmp_path):
                pass


@async_test
async def test_a_folder_that_was_made_while_the_clock_was_before_1970_can_be_used_later(tmp_path: Path) -> None:
    clock = TestClock()
    clock.wall_ahead_ns = -2 * clock.now_ns()
    async with opened(tmp_path, clock=clock) as spool:
        made = spool.spool_id
    async with opened(tmp_path) as spool:
        assert spool.spool_id == made


@async_test
async def test_what_a_newer_lakehead_wrote_is_left_alone_and_told(tmp_path: Path) -> None:
    frame = encode_frame(identity(0, 2), SAMPLES, numbered(0, 3), compress=False)
    head = HEAD.encode()
    bodies = [
        with_number(frame, 62, 2, 9),  # the version of the schema
        with_number(frame, 8, 2, 2),  # that of the wire
        frame[:8] + b"\x02\x00" + frame[10:-1],
        encode_head(head[:8], 2, head[12:-4]) + b"".join(PIECES[1:]),
    ]
    for number, body in enumerate(bodies):
        place(tmp_path, body, f"{number:020}")
    async with opened(tmp_path) as spool:
        assert spool.waiting() == ()
        assert len(spool.files()) == 4
        assert "left alone" in spool.told()
        assert [(spool.folder / "entries" / name).read_bytes() for name in spool.files()] == bodies


@async_test
async def test_a_newer_file_of_requests_stops_the_start(tmp_path: Path) -> None:
    place(tmp_path, b"")
    (tmp_path / "spool" / "seen" / NAME).write_bytes(encode_head(SEEN_MAGIC, 2, b""))
    with pytest.raises(NewerFormat):
        async with opened(tmp_path):
            pass


@async_test
async def test_files_that_are_nobodys_are_left_alone_and_told(tmp_path: Path) -> None:
    place(tmp_path, b"notes", "README")
    (tmp_path / "spool" / "seen" / "x").write_bytes(b"")
    for name in ("x", "why.json"):
        (tmp_path / "spool" / "parked" / name).write_bytes(b"")
    async with opened(tmp_path) as spool:
        assert spool.files() == ["README"]
        assert spool.files("parked") == ["why.json", "x"]
        assert "README" in spool.told()
        await spool.append(SAMPLES, numbered(0))


@async_test
async def test_a_disk_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    def fail(disk: TestDisk) -> None:
        disk.fails = lambda deed: Unavailable("no") if deed.verb == "list" else None

    with pytest.raises(Unavailable):
        async with opened(tmp_path, SLOW, prepare=fail):
            pass
