"""Requests are known again for a window of the agent's uptime, over restarts, within bounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lakehead.agent.seen_requests import FILES, SeenRequests
from lakehead.agent.spool_disk import open_local_spool_disk
from lakehead.errors import DiskFull, LakeheadError, OutcomeUnknown
from lakehead.wire.append_log import encode_head
from lakehead.wire.errors import NewerFormat
from lakehead.wire.seen_requests import MAGIC
from tests.support.async_tests import async_test
from tests.unit.agent.spools import Deed, TestClock, TestDisk, doubt, full, request

WINDOW = 800.0


class OpenRequests(SeenRequests):
    test_disk: TestDisk
    test_clock: TestClock
    folder: Path
    damaged: int

    def knows(self, number: int) -> bool:
        return self.find(request(number).dedupe_id) is not None

    async def see(self, *numbers: int) -> None:
        for number in numbers:
            self.add(request(number, body=number))
        await self.save([request(number, body=number) for number in numbers])

    def files(self) -> list[int]:
        return sorted(int(each.name) for each in (self.folder / "seen").iterdir())


@asynccontextmanager
async def opened(
    folder: Path, *, seconds: float = WINDOW, requests: int = 1_000, clean: bool = True
) -> AsyncIterator[OpenRequests]:
    clock = TestClock()
    with open_local_spool_disk(folder / "spool") as local:
        disk = TestDisk(local)
        seen = OpenRequests(disk, clock=clock, seconds=seconds, requests=requests)
        seen.test_disk, seen.test_clock, seen.folder = disk, clock, folder / "spool"
        seen.damaged = await seen.load()
        yield seen
        if clean:
            await seen.close()


@async_test
async def test_a_request_is_known_from_the_moment_it_is_added(tmp_path: Path) -> None:
    async with opened(tmp_path) as seen:
        assert not seen.knows(1)
        seen.add(request(1, body=7))
        assert seen.find(request(1).dedupe_id) == request(1, body=7).body_digest
        assert seen.files() == []
        await seen.save([request(1, body=7)])
        assert seen.find(request(1).dedupe_id) == request(1, body=7).body_digest
        assert (seen.count, seen.files()) == (1, [0])
        assert not seen.knows(2)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@async_test
async def test_a_request_is_known_after_a_restart(clean: bool, tmp_path: Path) -> None:  # noqa: FBT001 - a case
    async with opened(tmp_path, clean=clean) as seen:
        await seen.see(*range(100))
        await seen.see(100)
    async with opened(tmp_path) as seen:
        assert all(seen.find(request(each).dedupe_id) == request(each, body=each).body_digest for each in range(101))
        assert not seen.knows(101)
        assert (seen.count, seen.damaged) == (101, 0)
        await seen.see(200)
    async with opened(tmp_path) as seen:
        assert seen.knows(0)
        assert seen.knows(200)


@async_test
async def test_the_window_counts_uptime_over_restarts_and_not_the_time_between(tmp_path: Path) -> None:
    async with opened(tmp_path) as seen:
        await seen.see(1)
        seen.test_clock.ahead += WINDOW / 2
        seen.test_clock.wall_ahead_ns += 10**18
    for _ in range(2):
        async with opened(tmp_path) as seen:
            assert WINDOW / 2 <= seen.uptime < WINDOW / 2 + 60
            assert seen.knows(1)
            seen.test_clock.wall_ahead_ns -= 10**18
    async with opened(tmp_path) as seen:
        seen.test_clock.ahead += WINDOW
        await seen.see(2)
        assert not seen.knows(1)
        assert seen.knows(2)
        assert seen.files() == [seen.files()[-1]]


@async_test
async def test_uptime_that_was_not_saved_makes_the_window_longer_and_never_shorter(tmp_path: Path) -> None:
    async with opened(tmp_path, clean=False) as seen:
        await seen.see(1)
        seen.test_clock.ahead += 10 * WINDOW
    async with opened(tmp_path) as seen:
        assert seen.uptime < 60
        assert seen.knows(1)


@pytest.mark.slow
@async_test
async def test_requests_are_kept_for_the_window_at_least_and_not_much_longer(tmp_path: Path) -> None:
    async with opened(tmp_path) as seen:
        for second in range(0, 3_000, 10):
            await seen.see(second)
            seen.test_clock.ahead += 10
            known = [each for each in range(0, second + 1, 10) if seen.knows(each)]
            assert known[-1] == second
            assert known[0] <= max(0, second - WINDOW + 10)
            assert known[0] >= second - WINDOW * (1 + 2 / FILES) - 20
            assert len(seen.files()) <= FILES + 2
            assert seen.count == len(known)


@async_test
async def test_the_number_of_requests_is_bounded_and_the_oldest_are_forgotten(tmp_path: Path) -> None:
    async with opened(tmp_path, requests=80) as seen:
        for number in range(200):
            await seen.see(number)
            assert seen.count <= 80
            assert seen.knows(number)
            assert seen.knows(max(0, number - 60))
        assert not seen.knows(100)
        assert len(seen.files()) <= FILES + 1
    async with opened(tmp_path, requests=80) as seen:
        assert 60 < seen.count <= 80
        assert seen.knows(199)
    async with opened(tmp_path, requests=30) as seen:
        assert seen.count <= 30
        assert seen.knows(199)


@async_test
async def test_many_requests_take_few_bytes_each(tmp_path: Path) -> None:
    async with opened(tmp_path, requests=8_000) as seen:
        for start in range(0, 4_000, 500):
            await seen.see(*range(start, start + 500))
        files = seen._files
        assert sum(len(each.added) for each in files) <= 1_000, "only those of the newest file are in a dictionary"
        assert all(seen.find(request(each).dedupe_id) == request(each, body=each).body_digest for each in range(4_000))
        assert not any(seen.knows(each) for each in range(4_000, 4_100))


@async_test
async def test_requests_that_are_saved_twice_are_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as seen:
        await seen.see(1, 2, 1)
        await seen.see(1)
        assert seen.knows(1)
        assert seen.count == 2


@async_test
async def test_both_kinds_may_save_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, clean=False) as seen:
        await asyncio.gather(*(seen.see(number) for number in range(20)))
        assert seen.files() == [0]
    async with opened(tmp_path) as seen:
        assert all(seen.knows(number) for number in range(20))


@pytest.mark.parametrize("error", [full(), doubt()], ids=["full", "doubt"])
@pytest.mark.parametrize("verb", ["create", "append"])
@async_test
async def test_what_could_not_be_saved_is_known_and_saved_the_next_time(
    verb: str, error: LakeheadError, tmp_path: Path
) -> None:
    async with opened(tmp_path, clean=False) as seen:
        if verb == "append":
            await seen.see(0)

        def fails(deed: Deed) -> LakeheadError | None:
            return error if deed.verb == verb else None

        seen.test_disk.fails = fails
        with pytest.raises((DiskFull, OutcomeUnknown)):
            await seen.see(1)
        assert seen.knows(1)
        seen.test_disk.fails = lambda _: None
        await seen.see(1)
        await seen.see(2)
        if isinstance(error, OutcomeUnknown) and verb == "append":
            assert seen.files() == [0, 1], "nothing is added to a file that may not be flushed"
    async with opened(tmp_path) as seen:
        assert seen.knows(1)
        assert seen.knows(2)


@async_test
async def test_a_file_that_is_not_needed_and_cannot_be_removed_is_no_reason_to_fail(tmp_path: Path) -> None:
    async with opened(tmp_path) as seen:
        await seen.see(1)
        seen.test_clock.ahead += 2 * WINDOW
        seen.test_disk.fails = lambda deed: doubt() if deed.verb == "delete" else None
        await seen.see(2)
        assert not seen.knows(1)
        seen.test_disk.fails = lambda _: None


@async_test
async def test_a_torn_block_is_no_damage_and_the_file_is_not_added_to(tmp_path: Path) -> None:
    async with opened(tmp_path, clean=False) as seen:
        await seen.see(1)
        await seen.see(2)
        path = seen.folder / "seen" / f"{0:020}"
    path.write_bytes(path.read_bytes()[:-1])
    async with opened(tmp_path, clean=False) as seen:
        assert (seen.knows(1), seen.knows(2), seen.damaged) == (True, False, 0)
        await seen.see(3)
        assert seen.files() == [0, 1]
    async with opened(tmp_path) as seen:
        assert (seen.knows(1), seen.knows(3)) == (True, True)


@async_test
async def test_damage_costs_one_block_and_is_told(tmp_path: Path) -> None:
    async with opened(tmp_path, clean=False) as seen:
        for number in range(3):
            await seen.see(number)
        path = seen.folder / "seen" / f"{0:020}"
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(bytes(body))
    async with opened(tmp_path) as seen:
        assert [seen.knows(number) for number in range(3)] == [True, False, True]
        assert seen.damaged == 1
        assert (seen.folder / "damaged" / f"{0:020}-seen").read_bytes() == bytes(body)


@async_test
async def test_a_file_that_cannot_be_read_at_all_is_set_aside(tmp_path: Path) -> None:
    async with opened(tmp_path) as seen:
        await seen.see(1)
    path = tmp_path / "spool" / "seen" / f"{0:020}"
    path.write_bytes(b"something else" + path.read_bytes())
    async with opened(tmp_path) as seen:
        assert (seen.damaged, seen.files(), seen.knows(1)) == (1, [], False)
        await seen.see(2)
        assert seen.files() == [1], "its number is not used again"


@async_test
async def test_a_newer_file_is_not_guessed(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    (tmp_path / "spool" / "seen" / f"{9:020}").write_bytes(encode_head(MAGIC, 2, b""))
    with pytest.raises(NewerFormat):
        async with opened(tmp_path):
            pass
