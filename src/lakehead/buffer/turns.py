"""How producers that write one manifest share it: whoever has just written lets the others go first."""

from lakehead.clock import Clock
from lakehead.ids import Random

_MEMORY = 0.7
"""How much of an estimate is kept when something new is learned."""
_MOST_OTHERS = 64
_AT_ONCE = 5
"""How often a loser tries again at once, before it takes it that our estimates are wrong and waits longer each time."""
_LONGEST = 2.0
_PATIENCE = 1.5
"""How many requests' time a winner gives each of the others: less lets more writes collide, more leaves gaps."""


class Turns:
    """Learns how many others write between our own writes, and how long a request takes; and waits by that.

    A loser tries again soon, for it has waited already; a winner waits until the others may have had their turn.
    """

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._others = 0.0
        self._seconds = 0.0
        self._last_version: int | None = None
        self._last_write = 0.0

    @property
    def are_ours_alone(self) -> bool:
        """Whether hardly anybody else writes, so that what we last wrote is likely still there."""
        return self._others < 0.5

    def took(self, seconds: float) -> None:
        """Learn how long a request took."""
        self._seconds = _MEMORY * self._seconds + (1 - _MEMORY) * seconds if self._seconds else seconds

    def wrote(self, version: int) -> None:
        """Learn from the version of our own write how many writes of others lie between it and our last one."""
        if self._last_version is not None:
            others = min(_MOST_OTHERS, max(0, version - self._last_version - 1))
            self._others = _MEMORY * self._others + (1 - _MEMORY) * others
        self._last_version = version
        self._last_write = self._clock.monotonic()

    def before_first(self) -> float:
        """How long to wait before a new append is tried, in seconds."""
        if self._last_version is None:
            return 0.0
        turn = _PATIENCE * self._others * self._seconds * self._random.uniform(0.8, 1.2)
        return max(0.0, self._last_write + turn - self._clock.monotonic())

    def before_retry(self, conflicts: int) -> float:
        """How long to wait before an append is tried again that met another writer that often, in seconds."""
        patience = 1 + max(0, conflicts - _AT_ONCE)
        return min(_LONGEST, self._random.uniform(0, self._seconds * patience))
