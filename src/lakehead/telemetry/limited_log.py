"""Warnings that come with every request while something is wrong, told now and then."""

import logging
from dataclasses import dataclass, field

from lakehead.clock import Clock


@dataclass(slots=True, kw_only=True)
class LimitedLog:
    """Logs at most one warning of each kind in a while, with how many were left out since."""

    log: logging.Logger
    clock: Clock
    every_seconds: float = 10.0
    _last: dict[str, float] = field(default_factory=dict, init=False)
    _left_out: dict[str, int] = field(default_factory=dict, init=False)

    def warning(self, kind: str, *values: object) -> None:
        """Log a warning. `kind` is a constant text in which `values` stand, as `logging` has it."""
        now = self.clock.monotonic()
        if kind in self._last and now - self._last[kind] < self.every_seconds:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._last[kind] = now
        left_out = self._left_out.pop(kind, 0)
        more = f" ({left_out:,} more like it since the last one)" if left_out else ""
        self.log.warning(f"{kind}%s", *values, more)  # noqa: G004 - a constant text, not one of a request
