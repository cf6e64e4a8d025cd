"""How often each agent may ask: a token bucket for each."""

from dataclasses import dataclass, field

from lakehead.clock import Clock

PRUNE_AT = 10_000
"""With more buckets than this, those that are full again are forgotten: a new one is full as well."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


@dataclass(slots=True, kw_only=True)
class RateLimits:
    """Each agent may ask `per_second` times on average, and `burst` times at once."""

    per_second: float | None
    """None: as often as it likes."""

    burst: int
    clock: Clock
    _buckets: dict[str, _Bucket] = field(default_factory=dict, init=False)
    _prune_at: int = field(default=PRUNE_AT, init=False)

    def take(self, agent_id: str) -> float:
        """Count a request. Returns 0 if it may be made, else in how many seconds the next may be."""
        if self.per_second is None:
            return 0.0
        now = self.clock.monotonic()
        bucket = self._buckets.get(agent_id)
        if bucket is None:
            self._prune(now)
            bucket = self._buckets[agent_id] = _Bucket(self.burst, now)
        bucket.tokens = self._tokens(bucket, now)
        bucket.at = now
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / self.per_second
        bucket.tokens -= 1
        return 0.0

    def _tokens(self, bucket: _Bucket, now: float) -> float:
        return min(self.burst, bucket.tokens + (now - bucket.at) * (self.per_second or 0))

    def _prune(self, now: float) -> None:
        if len(self._buckets) < self._prune_at:
            return
        for agent_id, bucket in list(self._buckets.items()):
            if self._tokens(bucket, now) >= self.burst:
                del self._buckets[agent_id]
        self._prune_at = max(PRUNE_AT, 2 * len(self._buckets))
