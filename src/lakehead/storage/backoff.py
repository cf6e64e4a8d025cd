"""How long to wait before trying again."""

from collections.abc import Iterator
from dataclasses import dataclass

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
