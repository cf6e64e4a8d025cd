"""A disk that is full or fails takes nothing away that was promised, and promises nothing that it does not keep."""

import asyncio
from pathlib import Path

import pytest

from lakehead.agent.closed_journals import FIRST_PAUSE
from lakehead.agent.spool_errors import SpoolFull, SpoolUnusable
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.errors import DiskFull, LakeheadError, Unavailable
from tests.support.async_tests import async_test
from tests.unit.agent.spools import (
    LOGS,
    NEVER,
    SAMPLES,
    Deed,
    TestDisk,
    doubt,
    filled,
    full,
    killed,
    numbered,
    opened,
    request,
    sent,
    some_logs,
    stored,
    until,
)


def on(verb: str, error: LakeheadError, *, folder: str = "entries", times: int = 1_000) -> "OnDeed":
    return OnDeed(verb, error, folder, times)


class OnDeed:
    """Fails some deeds in a folder, so many times."""

    def __init__(self, verb: str, error: LakeheadError, folder: str, times: int) -> None:
        self.verb, self.error, self.folder, self.times = verb, error, folder, times

    def __call__(self, deed: Deed) -> LakeheadError | None:
        if deed.verb != self.verb or not deed.name.startswith(self.folder) or not self.times:
            return None
        self.times -= 1
        return self.error


# --- while records are written


@pytest.mark.parametrize("verb", ["create", "append"])
@async_test
async def test_a_full_disk_refuses_what_waits_and_keeps_what_was_promised(verb: str, tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        if verb == "append":
            await spool.append(SAMPLES, numbered(0))
        spool.test_disk.fails = on(verb, full())
        for _ in range(2):
            with pytest.raises(SpoolFull):
                await spool.append(SAMPLES, numbered(1), request(1))
        spool.test_disk.fails = lambda _: None
        assert not (await spool.append(SAMPLES, numbered(1), request(1))).duplicate
        await spool.seal_now()

        assert await sent(spool) == [[0, 1] if verb == "append" else [1]]
        assert spool.status().problem == ""


@async_test
async def test_a_failed_flush_gives_the_file_up_and_writes_what_was_promised_anew(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0), request(0))
        spool.test_disk.fails_after = on("append", doubt())
        [one, other] = await asyncio.gather(
            spool.append(SAMPLES, numbered(1, 3), request(1)),
            spool.append(SAMPLES, numbered(4), request(4)),
            return_exceptions=True,
        )
        assert isinstance(one, SpoolUnusable)
        assert isinstance(other, SpoolUnusable)
        assert stored(tmp_path) == [0], "the doubtful records are gone for good"
        assert await sent(spool) == [[0]], "and what was promised is a frame already"

        spool.test_disk.fails_after = lambda _: None
        assert not (await spool.append(SAMPLES, numbered(1, 3), request(1))).duplicate
        await spool.seal_now()
        assert [each.identity.seq_start for each in spool.waiting()] == [0, 1], "so their numbers are used again"
        assert await sent(spool) == [[0], [1, 2, 3]]
        assert "given up" in spool.told()
        assert (await spool.append(SAMPLES, numbered(0), request(0))).duplicate


@async_test
async def test_a_file_that_could_not_be_flushed_when_it_was_made_is_removed(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        spool.test_disk.fails_after = on("create", doubt(), times=1)
        with pytest.raises(SpoolUnusable):
            await spool.append(SAMPLES, numbered(0), request(1))
        assert spool.files() == []
        assert not (await spool.append(SAMPLES, numbered(0), request(1))).duplicate
        assert spool.status().next_sequence[SAMPLES] == 1


@pytest.mark.parametrize("error", [doubt(), full(), Unavailable("no")], ids=["doubt", "full", "no"])
@async_test
async def test_a_disk_that_fails_twice_takes_nothing_until_the_next_start(error: LakeheadError, tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0), request(0))
        spool.test_disk.fails_after = on("append", doubt())
        spool.test_disk.fails = on("replace", error)
        with pytest.raises(SpoolUnusable, match="failed twice"):
            await spool.append(SAMPLES, numbered(1), request(1))
        spool.test_disk.fails_after = spool.test_disk.fails = lambda _: None
        for kind, records in ((SAMPLES, numbered(2)), (LOGS, some_logs())):
            with pytest.raises(SpoolUnusable, match="started again"):
                await spool.append(kind, records)
        assert "started again" in spool.status().problem
        assert (await spool.append(SAMPLES, numbered(0), request(0))).duplicate
    async with opened(tmp_path) as spool:
        assert await sent(spool) == [[0, 1]]
        assert (await spool.append(SAMPLES, numbered(1), request(1))).duplicate, "what survived answers the retry"


@async_test
async def test_a_disk_that_fails_while_a_file_is_removed_takes_nothing_until_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        spool.test_disk.fails_after = on("create", doubt())
        spool.test_disk.fails = on("delete", doubt())
        with pytest.raises(SpoolUnusable, match="failed twice"):
            await spool.append(SAMPLES, numbered(1), request(1))
        spool.test_disk.fails_after = spool.test_disk.fails = lambda _: None
        with pytest.raises(SpoolUnusable, match="started again"):
            await spool.append(SAMPLES, numbered(2))
    async with opened(tmp_path) as spool:
        assert (await spool.append(SAMPLES, numbered(1), request(1))).duplicate


# --- while frames are written


@pytest.mark.parametrize("error", [doubt(), full(), Unavailable("no")], ids=["doubt", "full", "no"])
@pytest.mark.parametrize(("verb", "folder"), [("replace", "entries"), ("create", "seen")])
@async_test
async def test_a_frame_that_cannot_be_written_is_tried_again(
    verb: str, folder: str, error: LakeheadError, tmp_path: Path
) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0), request(0))
        spool.test_disk.fails = on(verb, error, folder=folder)
        with pytest.raises(Unavailable):
            await spool.seal_now()
        assert spool.waiting() == ()
        assert "waits until it can be written" in spool.told()
        assert spool.status().problem
        if not isinstance(error, DiskFull):
            await spool.append(SAMPLES, numbered(1), request(1))

        spool.test_disk.fails = lambda _: None
        await spool.seal_now()
        assert (await sent(spool))[0] == [0]
        assert "waits until it can be written" not in spool.told()
    async with opened(tmp_path) as spool:
        assert (await spool.append(SAMPLES, numbered(0), request(0))).duplicate


@async_test
async def test_a_frame_that_cannot_be_written_is_tried_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakehead.agent.closed_journals.FIRST_PAUSE", 0.001)
    async with opened(tmp_path, SpoolSettings(batch_seconds=0.001, reserve_bytes=0)) as spool:
        spool.test_disk.fails = on("replace", doubt(), times=10)
        await spool.append(SAMPLES, numbered(0))
        while not spool.waiting():
            await spool.wait_for_work()

        assert await sent(spool) == [[0]]
        assert FIRST_PAUSE > 0


@async_test
async def test_what_waits_for_its_frames_is_bounded_and_then_nothing_is_taken(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, batch_records=1, reserve_bytes=0)
    async with opened(tmp_path, limits) as spool:
        spool.test_disk.fails = on("replace", doubt())
        kept: list[int] = []
        for each in range(6):
            try:
                await spool.append(SAMPLES, numbered(each))
            except SpoolUnusable:
                continue
            kept.append(each)
        assert 0 < len(kept) <= 2
        await spool.append(LOGS, some_logs())

        spool.test_disk.fails = lambda _: None
        await spool.seal_now()
        await spool.append(SAMPLES, numbered(9))
        await spool.seal_now()
        assert await sent(spool) == [[each] for each in (*kept, 9)]


@async_test
async def test_what_cannot_be_made_a_frame_at_the_end_is_made_one_by_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await spool.append(SAMPLES, numbered(0), request(0))
        spool.test_disk.fails = on("replace", doubt())
    assert stored(tmp_path) == [0]
    async with opened(tmp_path) as spool:
        assert await sent(spool) == [[0]]


@async_test
async def test_digests_in_a_file_that_could_not_be_flushed_are_written_to_another(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        for each in range(3):
            spool.test_disk.fails_after = on("append", doubt(), folder="seen", times=1)
            await spool.append(SAMPLES, numbered(each), request(each))
            try:
                await spool.seal_now()
            except Unavailable:
                await spool.seal_now()
        assert len(spool.files("seen")) > 1
    async with opened(tmp_path) as spool:
        for each in range(3):
            assert (await spool.append(SAMPLES, numbered(each), request(each))).duplicate


# --- the reserve


class SmallDisk:
    """A disk with so many bytes, as far as the reserve and entries go."""

    def __init__(self, disk: TestDisk, size: int) -> None:
        self.disk, self.size = disk, size

    def used(self) -> int:
        root = self.disk.disk._folder
        return sum(each.stat().st_size for each in root.rglob("*") if each.is_file())

    def __call__(self, deed: Deed) -> LakeheadError | None:
        return full() if deed.size and deed.size + self.used() > self.size else None


@async_test
async def test_a_full_disk_gets_empty_because_there_is_a_reserve(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, reserve_bytes=20_000)
    async with opened(tmp_path, limits) as spool:
        assert (spool.folder / "reserve").stat().st_size == 20_000
        small = SmallDisk(spool.test_disk, 40_000)
        spool.test_disk.fails = small
        kept = 10 * await filled(spool, 10)
        assert small.used() > 35_000
        await spool.seal_now()
        assert not (spool.folder / "reserve").exists()
        assert [each for batch in await sent(spool) for each in batch] == list(range(kept))

        small.size = small.used() + 100
        with pytest.raises(SpoolFull, match="reserve"):
            await spool.append(SAMPLES, numbered(kept, 10), request(kept))
        with pytest.raises(SpoolFull, match="reserve"):
            spool.check()
        assert "reserve" in spool.status().problem
        assert (await spool.append(SAMPLES, numbered(0, 10), request(0))).duplicate

        small.size = 40_000
        spool.test_clock.ahead += 10
        for entry in spool.waiting():
            await spool.accepted(entry)
        await until(lambda: not spool.status().problem)
        assert not (await spool.append(SAMPLES, numbered(kept, 10), request(kept))).duplicate
        assert (spool.folder / "reserve").stat().st_size == 20_000


@async_test
async def test_a_start_on_a_full_disk_sends_what_it_can_and_makes_room(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, reserve_bytes=20_000)
    async with killed(tmp_path, limits) as spool:
        await spool.append(SAMPLES, numbered(0), request(0))
        await spool.seal_now()
        await spool.append(SAMPLES, numbered(1, 10), request(1))
    (tmp_path / "spool" / "reserve").unlink()
    small: list[SmallDisk] = []

    def shrink(disk: TestDisk) -> None:
        small.append(SmallDisk(disk, 0))
        disk.fails = small[0]

    async with opened(tmp_path, limits, prepare=shrink) as spool:
        assert await sent(spool) == [[0]]
        with pytest.raises(SpoolFull):
            await spool.append(SAMPLES, numbered(2))
        with pytest.raises(SpoolFull):  # its journal has it, which may not be on disk
            await spool.append(SAMPLES, numbered(1, 10), request(1))
        await spool.accepted(spool.waiting()[0])
        small[0].size = 60_000
        await spool.seal_now()
        assert await sent(spool) == [list(range(1, 11))]
        assert (await spool.append(SAMPLES, numbered(1, 10), request(1))).duplicate
        spool.test_clock.ahead += 10
        with pytest.raises(SpoolFull):
            spool.check()
        await until(lambda: not spool.status().problem)
        spool.check()


@async_test
async def test_the_reserve_is_made_anew_only_if_it_has_another_size(tmp_path: Path) -> None:
    for size, expected in ((1_000, 1), (1_000, 0), (2_000, 1), (0, 0)):
        async with opened(tmp_path, SpoolSettings(batch_seconds=NEVER, reserve_bytes=size)) as spool:
            assert spool.test_disk.done("replace").count("replace reserve") == expected
            path = spool.folder / "reserve"
            assert (path.stat().st_size if path.exists() else 0) == size


@async_test
async def test_a_reserve_that_cannot_be_given_up_is_no_reason_to_write_nothing(tmp_path: Path) -> None:
    limits = SpoolSettings(batch_seconds=NEVER, reserve_bytes=1_000)
    async with opened(tmp_path, limits) as spool:
        await spool.append(SAMPLES, numbered(0))
        once = on("replace", full(), times=1)
        spool.test_disk.fails = lambda deed: once(deed) or (doubt() if deed.verb == "delete" else None)
        await spool.seal_now()
        spool.test_disk.fails = lambda _: None
        assert await sent(spool) == [[0]]
