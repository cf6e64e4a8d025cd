"""Who is taken for gone, and what is remembered of it."""

from lakehead.buffer.staleness import Staleness
from tests.unit.buffer.support import QueueFixture, virtual_time

FUTURE_MS = 10**15
"""A time that somebody wrote whose clock is far ahead."""


@virtual_time(seeds=1)
async def test_a_time_in_the_future_is_judged_by_how_long_it_stands(queue: QueueFixture) -> None:
    staleness = Staleness(30, queue.clock)
    assert not staleness.is_stale("a", FUTURE_MS)
    await queue.sleep(30)
    assert not staleness.is_stale("a", FUTURE_MS)
    await queue.sleep(1)
    assert staleness.is_stale("a", FUTURE_MS)
    assert not staleness.is_stale("a", FUTURE_MS + 1), "it was refreshed"


@virtual_time(seeds=1)
async def test_a_standby_remembers_only_what_is_there_now(queue: QueueFixture) -> None:
    staleness = Staleness(30, queue.clock)
    for number in range(1_000):
        assert not staleness.are_all_stale({"": FUTURE_MS, f"location-{number}": FUTURE_MS})
    assert len(staleness._first_seen) == 2
