"""Hours of UTC, by which objects are indexed."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from lakehead.wire.errors import InvalidKeyPart

HOUR_NS = 3_600_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -(2**63) // HOUR_NS, (2**63 - 1) // HOUR_NS
_PATH = re.compile(r"date=([0-9]{4})-([0-9]{2})-([0-9]{2})/hour=([0-9]{2})")
_RECENT = 256
"""Hours whose paths are remembered: a listing has thousands of keys of the same hour."""


@dataclass(frozen=True, slots=True, order=True)
class UtcHour:
    """One hour, counted from the Unix epoch, within what nanoseconds in 64 bits can say: the years 1677 to 2262."""

    number: int

    def __post_init__(self) -> None:
        if not _FIRST <= self.number <= _LAST:
            raise InvalidKeyPart(f"The hour {self.number} after 1970 is out of range.")

    @classmethod
    def of(cls, unix_ns: int) -> "UtcHour":
        """The hour of a time in nanoseconds since the Unix epoch. Raises `InvalidKeyPart`."""
        return cls(unix_ns // HOUR_NS)

    @staticmethod
    def parse(path: str) -> "UtcHour | None":
        """The hour of `date=YYYY-MM-DD/hour=HH`; None if it is not one."""
        return _parsed(path)

    @property
    def path(self) -> str:
        """The hour as part of a key: `date=YYYY-MM-DD/hour=HH`."""
        return _path(self.number)

    @property
    def start_ns(self) -> int:
        """The start of the hour, in nanoseconds since the Unix epoch."""
        return self.number * HOUR_NS


@lru_cache(_RECENT)
def _path(number: int) -> str:
    start = _EPOCH + timedelta(hours=number)
    return f"date={start:%Y-%m-%d}/hour={start:%H}"


@lru_cache(_RECENT)
def _parsed(path: str) -> UtcHour | None:
    match = _PATH.fullmatch(path)
    if not match:
        return None
    try:
        year, month, day, hour = map(int, match.groups())
        return UtcHour((datetime(year, month, day, hour, tzinfo=UTC) - _EPOCH) // timedelta(hours=1))
    except ValueError:
        return None
