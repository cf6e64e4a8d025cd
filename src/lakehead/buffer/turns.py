"""How producers that write one manifest take turns: whoever has been silent for longest goes next."""

from itertools import takewhile

from lakehead.clock import Clock
from lakehead.ids import Random
from lakehead.wire.queue_manifests import ProducerManifest

_MEMORY = 0.7
"""How much of an estimate is kept when something new is learned."""
_GROWTH = 2.0
"""How many times the estimate one request may count for: one that hung says nothing of the next."""
_ALWAYS_BELIEVED = 0.05
"""How long a request may take, in seconds, to be believed whatever the estimate is; the first of all has none."""
_SLOWEST = 1.0
"""The most that one request counts for, in seconds."""
_AT_ONCE = 5
"""How often a loser tries again at once, before it takes it that our estimates are wrong and waits longer each time."""
_LONGEST = 2.0
"""The longest wait of all, in seconds: then we look again."""
_PATIENCE = 4.0
"""How many requests' time each of the others gets for its turn, before it is taken to have nothing to write."""
_MOST_PATIENCE = 10.0
"""How long all of them together are waited for at most, in seconds."""
_EARLY = 0.7
"""How much of a request's time we look too early: the others may be quicker than we think."""


class Turns:
    """Reads off the manifest whose turn it is: it has its producers in the order of their last writes.

    Those take part who have written since our last write but one. This is only about speed: a write out of turn is
    refused if it meets another one, and tried again.
    """

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._seconds = 0.0
        self._others = 0
        self._heard = 0.0
        """When we last knew that the others were writing."""
        self._last: dict[str, int] = {}
        self._last_but_one: dict[str, int] = {}

    @property
    def are_ours_alone(self) -> bool:
        """Whether nobody else takes part, so that what we last wrote is likely still there."""
        return not self._others

    def took(self, seconds: float) -> None:
        """Learn how long a request took; one that took very long counts for less."""
        seconds = min(seconds, _SLOWEST, max(_ALWAYS_BELIEVED, _GROWTH * self._seconds))
        self._seconds = _MEMORY * self._seconds + (1 - _MEMORY) * seconds if self._seconds else seconds

    def wrote(self, who: str, manifest: ProducerManifest) -> None:
        """Learn from what we have just written who else takes part: all of them go before us now."""
        self._last_but_one, self._last = self._last, dict(manifest.producers)
        self._others = self._ahead(who, manifest)
        self._heard = self._clock.monotonic()

    def before_first(self) -> float:
        """How long to wait before a new append is tried, in seconds."""
        return min(_LONGEST, max(0.0, self._heard + self._others * self._seconds - self._clock.monotonic()))

    def before_write(self, who: str, manifest: ProducerManifest) -> float:
        """How long to let others go first before looking at the manifest again; 0 if it is our turn."""
        ahead = self._ahead(who, manifest)
        patience = min(_MOST_PATIENCE, _PATIENCE * self._others * self._seconds)
        if not ahead or self._clock.monotonic() >= self._heard + patience:
            return 0.0
        return min(_LONGEST, (ahead - _EARLY) * self._seconds)

    def before_retry(self, conflicts: int) -> float:
        """How long to wait before an append is tried again that met another writer that often, in seconds."""
        self._heard = self._clock.monotonic()
        patience = 1 + max(0, conflicts - _AT_ONCE)
        return min(_LONGEST, self._random.uniform(0, self._seconds * patience))

    def _ahead(self, who: str, manifest: ProducerManifest) -> int:
        """How many of those who take part have been silent for longer than we."""
        if who not in manifest.producers:
            return 0
        silent = takewhile(lambda each: each[0] != who, manifest.producers.items())
        return sum(self._last_but_one.get(name) != number for name, number in silent)
