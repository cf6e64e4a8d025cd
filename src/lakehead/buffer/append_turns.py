"""How producers that share a manifest take turns: the one whose last write is longest ago goes next."""

from itertools import takewhile

from lakehead.clock import Clock
from lakehead.ids import Random
from lakehead.wire.queue_manifests import ProducerManifest

_SMOOTHING = 0.7
"""Weight of the old estimate when a new measurement comes in."""
_MAX_GROWTH = 2.0
"""By which factor a measurement may exceed the estimate: a request that hung is no measure for the next."""
_ALWAYS_BELIEVED = 0.05
"""A measurement up to this many seconds counts in full, whatever the estimate; there is none at first."""
_MAX_MEASUREMENT = 1.0
"""The most that one measurement counts for, in seconds."""
_QUICK_RETRIES = 5
"""How many conflicts are retried at once. After that the estimates are assumed to be wrong, and waits grow."""
_MAX_WAIT = 2.0
"""The longest single wait, in seconds."""
_PATIENCE = 4.0
"""How many request times each other producer gets for its turn before it is assumed to have nothing to write."""
_MAX_PATIENCE = 10.0
"""How long all others together are waited for at most, in seconds."""
_EARLY = 0.7
"""By which part of a request time we check too early: the others may be faster than estimated."""


class AppendTurns:
    """Derives from the manifest whose turn it is: it lists its producers in the order of their last writes.

    The active producers are those that have written since our last write but one. This only improves speed: a write
    out of turn is refused if it conflicts with another, and retried.
    """

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random
        self._request_seconds = 0.0
        """Estimated time of a request."""
        self._others = 0
        """How many other producers were active at our last write."""
        self._others_active_at = 0.0
        """When we last knew that others were writing."""
        self._last: dict[str, int] = {}
        self._last_but_one: dict[str, int] = {}

    @property
    def is_alone(self) -> bool:
        """Whether no other producer is active, so that what we last wrote is likely still current."""
        return not self._others

    def measured(self, seconds: float) -> None:
        """Note how long a request took."""
        seconds = min(seconds, _MAX_MEASUREMENT, max(_ALWAYS_BELIEVED, _MAX_GROWTH * self._request_seconds))
        old = self._request_seconds
        self._request_seconds = _SMOOTHING * old + (1 - _SMOOTHING) * seconds if old else seconds

    def wrote(self, producer: str, manifest: ProducerManifest) -> None:
        """Note what we have just written: all other active producers go before us now."""
        self._last_but_one, self._last = self._last, dict(manifest.producers)
        self._others = self._ahead(producer, manifest)
        self._others_active_at = self._clock.monotonic()

    def before_first(self) -> float:
        """Return how long to wait before a new append is tried, in seconds."""
        ends = self._others_active_at + self._others * self._request_seconds
        return min(_MAX_WAIT, max(0.0, ends - self._clock.monotonic()))

    def before_write(self, producer: str, manifest: ProducerManifest) -> float:
        """Return how long to let others go first before reading the manifest again; 0 if it is our turn."""
        ahead = self._ahead(producer, manifest)
        patience = min(_MAX_PATIENCE, _PATIENCE * self._others * self._request_seconds)
        if not ahead or self._clock.monotonic() >= self._others_active_at + patience:
            return 0.0
        return min(_MAX_WAIT, (ahead - _EARLY) * self._request_seconds)

    def before_retry(self, conflicts: int) -> float:
        """Return how long to wait before retrying an append after that many conflicts, in seconds."""
        self._others_active_at = self._clock.monotonic()
        patience = 1 + max(0, conflicts - _QUICK_RETRIES)
        return min(_MAX_WAIT, self._random.uniform(0, self._request_seconds * patience))

    def _ahead(self, producer: str, manifest: ProducerManifest) -> int:
        """Return how many active producers have an older last write than ours."""
        if producer not in manifest.producers:
            return 0
        older = takewhile(lambda each: each[0] != producer, manifest.producers.items())
        return sum(self._last_but_one.get(name) != number for name, number in older)
