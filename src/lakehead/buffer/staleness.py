"""Whether a claim or an owner is stale, judged by its last heartbeat. A hint only: safety does not depend on it."""

from collections.abc import Collection, Mapping

from lakehead.clock import Clock


class Staleness:
    """Judges by the timestamps that others wrote; a timestamp in our future, by how long it has not changed."""

    def __init__(self, timeout: float, clock: Clock) -> None:
        self._timeout = timeout
        self._clock = clock
        self._first_seen: dict[str, tuple[int, float]] = {}

    def now_ms(self) -> int:
        """Return the timestamp to write for a heartbeat, in milliseconds since the Unix epoch."""
        return self._clock.now_ns() // 1_000_000

    def is_stale(self, name: str, at_ms: int) -> bool:
        """Return whether the timestamp `at_ms` of `name` is older than the timeout."""
        age = (self.now_ms() - at_ms) / 1000
        if age >= 0:
            return age > self._timeout
        known, since = self._first_seen.get(name, (None, 0.0))
        now = self._clock.monotonic()
        if known != at_ms:
            self._first_seen[name] = (at_ms, now)
            return False
        return now - since > self._timeout

    def are_all_stale(self, refreshed: Mapping[str, int]) -> bool:
        """Return whether all of these are stale, given their timestamps by name. Other names are forgotten."""
        self.forget_all_but(refreshed)
        judged = [self.is_stale(name, at) for name, at in refreshed.items()]
        return all(judged)

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget what was observed of all other names."""
        for name in [name for name in self._first_seen if name not in names]:
            del self._first_seen[name]
