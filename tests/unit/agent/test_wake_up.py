"""A task that sleeps until something happens, or until it is time."""

from random import Random

from lakehead.agent.wake_up import WakeUp
from tests.support.simulated_loop import SimulatedLoop
from tests.support.simulation import SimulatedClock


def test_it_sleeps_for_its_time_also_after_it_was_woken_before_that() -> None:
    loop = SimulatedLoop(Random(1))  # type: ignore[abstract]  # sockets and signals are not simulated
    clock = SimulatedClock(loop)
    woke: list[float] = []

    async def sleep_twice() -> None:
        wake_up = WakeUp(clock)
        loop.call_later(1.0, wake_up.now)
        for _ in range(2):
            await wake_up.sleep(5.0)
            woke.append(clock.monotonic())

    loop.simulate(sleep_twice())

    assert woke == [1.0, 6.0]


def test_what_happens_while_it_is_awake_wakes_it_once_more() -> None:
    loop = SimulatedLoop(Random(1))  # type: ignore[abstract]  # sockets and signals are not simulated
    clock = SimulatedClock(loop)
    woke: list[float] = []

    async def sleep_twice() -> None:
        wake_up = WakeUp(clock)
        wake_up.now()
        for _ in range(2):
            await wake_up.sleep(5.0)
            woke.append(clock.monotonic())

    loop.simulate(sleep_twice())

    assert woke == [0.0, 5.0]
