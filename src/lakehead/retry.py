"""Retrying with back-off: how many attempts, and the pauses between them."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Self, TypeVar

from lakehead.clock import Clock
from lakehead.ids import Random

T = TypeVar("T")


class Attempts:
    """The attempts of one operation: `async for _ in backoff.each_attempt(…)` sleeps before each but the first.

    Not an async generator: asyncio would start a task to close one that is not exhausted.
    """

    def __init__(self, pauses: Iterator[float], clock: Clock) -> None:
        self._pauses = pauses
        self._clock = clock

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        """Sleep for the next pause. Raises `StopAsyncIteration` if there are no more attempts."""
        if (pause := next(self._pauses, None)) is None:
            raise StopAsyncIteration
        if pause:
            await self._clock.sleep(pause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A number of attempts with growing, jittered pauses between them."""

    attempts: int = 6
    """The number of attempts, including the first."""

    first_seconds: float = 0.05
    """The longest first pause. If it is 0, there are no pauses."""

    cap_seconds: float = 5.0
    """The longest pause of all."""

    def pauses(self, random: Random) -> Iterator[float]:
        """Yield the pause before each attempt, in seconds: 0 before the first, then up to a doubling limit."""
        yield 0.0
        for retry in range(self.attempts - 1):
            limit = min(self.cap_seconds, self.first_seconds * 2**retry)
            yield random.uniform(0, limit) if limit else 0.0

    def each_attempt(self, clock: Clock, random: Random) -> Attempts:
        """Return an async iterator over the attempts, which sleeps between them."""
        return Attempts(self.pauses(random), clock)

    async def call(
        self, work: Callable[[], Awaitable[T]], clock: Clock, random: Random, *, on: tuple[type[Exception], ...]
    ) -> T:
        """Return what `work` returns; call it again after one of the exceptions `on`. Raises the last of them."""
        failure: Exception | None = None
        async for _ in self.each_attempt(clock, random):
            try:
                return await work()
            except on as error:
                failure = error
        assert failure is not None, "there is at least one attempt"  # noqa: S101 - for the type checker
        raise failure


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedBackoff:
    """Attempts for a limited time, with growing, jittered pauses between them."""

    seconds: float = 120.0
    """The time limit."""

    first_seconds: float = 0.1
    """The longest first pause."""

    cap_seconds: float = 5.0
    """The longest pause of all."""

    def pauses(self, random: Random, clock: Clock) -> Iterator[float]:
        """Yield the pause before each further attempt, in seconds, until the time is over, counted from this call."""
        return self._until(clock.monotonic() + self.seconds, random, clock)

    def _until(self, ends: float, random: Random, clock: Clock) -> Iterator[float]:
        limit = self.first_seconds
        while (left := ends - clock.monotonic()) > 0:
            yield min(left, random.uniform(0, limit))
            limit = min(self.cap_seconds, 2 * limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class PollInterval:
    """Growing, jittered pauses between polls, endlessly."""

    first_seconds: float
    """The longest first pause."""

    cap_seconds: float
    """The longest pause of all."""

    growth: float = 1.5
    """By which factor pauses grow."""

    def pauses(self, random: Random) -> Iterator[float]:
        """Yield the pause before each further poll, in seconds: at least half of a growing limit."""
        limit = self.first_seconds
        while True:
            yield random.uniform(limit / 2, limit)
            limit = min(self.cap_seconds, self.growth * limit)
