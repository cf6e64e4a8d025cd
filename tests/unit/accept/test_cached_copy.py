"""A copy that is read again and again: what fails costs nothing until the copy is too old."""

import asyncio
import logging

import pytest

from lakehead.accept.cached_copy import CachedCopy
from lakehead.errors import Unavailable
from tests.support.async_tests import async_test
from tests.support.simulation import World
from tests.unit.accept.support import FixedClock


def test_it_is_read_at_once_and_every_30_seconds_whatever_goes_wrong(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1)
    reads: list[float] = []

    async def load() -> int:
        reads.append(world.clock.monotonic())
        if 2 <= len(reads) <= 4:
            raise [Unavailable("503"), OSError("broken"), Unavailable("503")][len(reads) - 2]
        return len(reads)

    async def scenario() -> None:
        copy = CachedCopy(load=load, clock=world.clock, name="the list")
        running = world.loop.create_task(copy.run())
        await world.clock.sleep(100)
        assert copy.value() == 1
        await world.clock.sleep(30)
        assert copy.value() == 5
        running.cancel()

    with caplog.at_level(logging.WARNING):
        world.loop.simulate(scenario())

    assert [round(each - reads[0]) for each in reads] == [0, 30, 60, 90, 120]
    assert [record.getMessage() for record in caplog.records] == [
        "The copy of the list could not be read again, and is tried on: 503"
    ], "an outage is told once"


def test_a_copy_that_was_too_old_is_good_again_when_the_store_is_back() -> None:
    world = World(1)
    is_down = False

    async def load() -> str:
        if is_down:
            raise Unavailable("503")
        return "read"

    async def scenario() -> None:
        nonlocal is_down
        copy = CachedCopy(load=load, clock=world.clock, name="the list")
        running = world.loop.create_task(copy.run())
        await world.clock.sleep(1)
        is_down = True
        await world.clock.sleep(298)
        assert copy.value() == "read"
        await world.clock.sleep(3)
        with pytest.raises(Unavailable, match="may be 300 s old at most"):
            copy.value()
        is_down = False
        await world.clock.sleep(30)
        assert copy.value() == "read"
        running.cancel()

    world.loop.simulate(scenario())


@async_test
async def test_the_age_counts_from_the_beginning_of_a_reading() -> None:
    clock = FixedClock()

    async def slow() -> str:
        clock.seconds += 301
        return "old"

    copy = CachedCopy(load=slow, clock=clock, name="the list")
    await copy.refresh()

    with pytest.raises(Unavailable):
        copy.value()


@async_test
async def test_a_reading_that_began_earlier_and_ends_later_is_not_taken() -> None:
    clock = FixedClock()
    slow: asyncio.Future[str] = asyncio.Future()
    answers = [slow]

    async def load() -> str:
        return await answers.pop() if answers else "new"

    copy = CachedCopy(load=load, clock=clock, name="the list")
    first = asyncio.ensure_future(copy.refresh())
    await asyncio.sleep(0)  # it has begun, and waits for its answer
    clock.seconds += 1
    await copy.refresh()
    slow.set_result("old")
    await first

    assert copy.value() == "new"
