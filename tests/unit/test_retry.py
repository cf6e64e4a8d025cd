"""Back-off: how many attempts there are, how long the pauses are, and which errors are tried again."""

from itertools import islice
from random import Random

import pytest

from lakehead.errors import Misconfigured, Unavailable
from lakehead.retry import Backoff, PollInterval
from tests.support.simulation import World


def test_pauses_grow_to_the_longest_and_come_with_jitter() -> None:
    backoff = Backoff(attempts=200, first_seconds=0.1, cap_seconds=2.0)

    first, *pauses = backoff.pauses(Random(1))

    assert first == 0
    assert len(pauses) == 199
    assert all(pause <= min(2.0, 0.1 * 2**number) for number, pause in enumerate(pauses))
    assert max(pauses) > 1.9
    assert min(pauses[10:]) < 0.1


def test_each_attempt_but_the_first_waits_for_its_pause() -> None:
    backoff = Backoff(attempts=4, first_seconds=1.0, cap_seconds=5.0)
    expected = list(backoff.pauses(Random(7)))
    world = World(0)

    async def attempt() -> list[float]:
        return [world.clock.monotonic() async for _ in backoff.each_attempt(world.clock, Random(7))]

    assert world.loop.simulate(attempt()) == pytest.approx([sum(expected[: n + 1]) for n in range(4)])


def test_without_a_first_pause_there_is_none_and_nothing_is_drawn() -> None:
    random = Random(1)
    before = random.getstate()

    assert list(Backoff(attempts=3, first_seconds=0.0).pauses(random)) == [0, 0, 0]
    assert random.getstate() == before


@pytest.mark.parametrize("failures", range(4))
def test_a_call_is_repeated_after_the_named_errors_and_raises_the_last(failures: int) -> None:
    world = World(0)
    calls = 0

    async def work() -> str:
        nonlocal calls
        calls += 1
        if calls <= failures:
            raise Unavailable(f"failure {calls}")
        return "done"

    call = Backoff(attempts=3, first_seconds=0.0).call(work, world.clock, world.random, on=(Unavailable,))
    if failures < 3:
        assert world.loop.simulate(call) == "done"
    else:
        with pytest.raises(Unavailable, match="failure 3"):
            world.loop.simulate(call)
    assert calls == min(failures + 1, 3)


def test_another_error_is_raised_at_once() -> None:
    world = World(0)

    async def work() -> None:
        raise Misconfigured("for good")

    with pytest.raises(Misconfigured):
        world.loop.simulate(Backoff(attempts=3).call(work, world.clock, world.random, on=(Unavailable,)))


def test_polls_become_rarer_up_to_a_limit_and_never_end() -> None:
    pauses = list(islice(PollInterval(first_seconds=0.1, cap_seconds=1.0).pauses(Random(1)), 100))

    assert 0.05 <= pauses[0] <= 0.1
    assert all(0.5 <= pause <= 1.0 for pause in pauses[10:])
