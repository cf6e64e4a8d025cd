"""How long to wait before trying again."""

from collections.abc import Iterator
from dataclasses import dataclass

from lakehead.clock import Clock
from lakehead.ids import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """A bounded number of tries with growing, jittered pauses between them."""

    attempts: int = 6
    """Tries in all, the first included."""

    first_seconds: float = 0.05
    """The longest that the first pause may take."""

    cap_seconds: float = 5.0
    """The longest that any pause may take."""

    def pauses(self, random: Random) -> Iterator[float]:
        """The pause before each try, in seconds: 0 before the first, then anything up to a doubling limit."""
        yield 0.0
        for retry in range(self.attempts - 1):
            yield random.uniform(0, min(self.cap_seconds, self.first_seconds * 2**retry))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedBackoff:
    """Tries for a bounded time, with growing, jittered pauses between them."""

    seconds: float = 120.0
    """How long it is tried."""

    first_seconds: float = 0.1
    """The longest that the first pause may take."""

    cap_seconds: float = 5.0
    """The longest that any pause may take."""

    def pauses(self, random: Random, clock: Clock) -> Iterator[float]:
        """The pause before each further try, in seconds, until the time is over. It counts from this call on."""
        return self._until(clock.monotonic() + self.seconds, random, clock)

    def _until(self, ends: float, random: Random, clock: Clock) -> Iterator[float]:
        limit = self.first_seconds
        while (left := ends - clock.monotonic()) > 0:
            yield min(left, random.uniform(0, limit))
            limit = min(self.cap_seconds, 2 * limit)
