"""Clocks that are wrong."""

from lakehead.clock import SystemClock

MINUTE_NS = 60 * 10**9


class Shifted(SystemClock):
    """The machine's clock, some minutes wrong."""

    def __init__(self, minutes: int) -> None:
        self._minutes = minutes

    def now_ns(self) -> int:
        return super().now_ns() + self._minutes * MINUTE_NS
