"""A task that sleeps until something happens, or until it is time."""

import asyncio

from lakehead.clock import Clock


class WakeUp:
    """Wakes one task. What happens while it is awake wakes it once more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def now(self) -> None:
        """Wake the task."""
        self._event.set()

    async def sleep(self, seconds: float | None = None) -> None:
        """Return when it was woken, or after so many seconds if they are given."""
        timer = None if seconds is None else asyncio.ensure_future(self._clock.sleep(seconds))
        if timer is not None:
            timer.add_done_callback(self._time_is_over)
        try:
            await self._event.wait()
        finally:
            self._event.clear()
            if timer is not None:
                timer.remove_done_callback(self._time_is_over)  # else being cancelled would wake the next sleep
                timer.cancel()

    def _time_is_over(self, _: object) -> None:
        self._event.set()
