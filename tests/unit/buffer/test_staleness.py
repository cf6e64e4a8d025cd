"""Who is taken for gone, and what is remembered of it."""

from lakehead.buffer.staleness import Staleness
from tests.unit.buffer.scene import Scene, play

FUTURE_MS = 10**15
"""A time that somebody wrote whose clock is far ahead."""


def test_a_time_in_the_future_is_judged_by_how_long_it_stands() -> None:
    async def story(scene: Scene) -> None:
        staleness = Staleness(30, scene.clock)
        assert not staleness.is_stale("a", FUTURE_MS)
        await scene.later(30)
        assert not staleness.is_stale("a", FUTURE_MS)
        await scene.later(1)
        assert staleness.is_stale("a", FUTURE_MS)
        assert not staleness.is_stale("a", FUTURE_MS + 1), "it was refreshed"

    play(story, seeds=1)


def test_a_standby_remembers_only_what_is_there_now() -> None:
    async def story(scene: Scene) -> None:
        staleness = Staleness(30, scene.clock)
        for number in range(1_000):
            assert not staleness.all_are({"": FUTURE_MS, f"location-{number}": FUTURE_MS})
        assert len(staleness._first_seen) == 2

    play(story, seeds=1)
