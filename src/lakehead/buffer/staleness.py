"""Whether somebody who was last heard of at some time is likely gone. A hint: nothing's safety rests on it."""

from collections.abc import Collection, Mapping

from lakehead.clock import Clock


class Staleness:
    """Judges by the timestamps that others wrote; one that lies in our future, by how long it has not changed."""

    def __init__(self, timeout: float, clock: Clock) -> None:
        self._timeout = timeout
        self._clock = clock
        self._first_seen: dict[str, tuple[int, float]] = {}

    def now_ms(self) -> int:
        """What we write for others to judge by."""
        return self._clock.now_ns() // 1_000_000

    def is_stale(self, name: str, at_ms: int) -> bool:
        """Whether what goes by that name was last refreshed longer ago than the timeout."""
        age = (self.now_ms() - at_ms) / 1000
        if age >= 0:
            return age > self._timeout
        known, since = self._first_seen.get(name, (None, 0.0))
        now = self._clock.monotonic()
        if known != at_ms:
            self._first_seen[name] = (at_ms, now)
            return False
        return now - since > self._timeout

    def all_are(self, refreshed: Mapping[str, int]) -> bool:
        """Whether all of them are stale. What was seen before and is not among them is forgotten."""
        self.forget_all_but(refreshed)
        judged = [self.is_stale(name, at) for name, at in refreshed.items()]
        return all(judged)

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget what is gone."""
        for name in [name for name in self._first_seen if name not in names]:
            del self._first_seen[name]
