"""Times as people and programs give them."""

import re
from datetime import UTC, datetime, timedelta

SHOWN = 80
"""The most characters of a value that stand in a message."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def unix_ns(name: str, value: object) -> int:
    """Return a time in nanoseconds since the Unix epoch, which 64 bits can hold. Raises `ValueError` if it is none."""
    if not -(2**63) <= (found := _exact_ns(name, value)) < 2**63:
        raise ValueError(f"{name} is {shown(value)}. Times are from 1677 to 2262.")
    return found


def _exact_ns(name: str, value: object) -> int:
    match value:
        case bool():
            pass
        case int():
            return value
        case datetime() if value.utcoffset() is not None:
            nanosecond: int = getattr(value, "nanosecond", 0)  # of pandas, whose times are finer than datetime's
            return (value - _EPOCH) // timedelta(microseconds=1) * 1_000 + nanosecond
        case str() if found := _ISO.fullmatch(value):
            date, time, fraction, offset = found.groups()
            seconds = (datetime.fromisoformat(f"{date}T{time}{offset.upper()}") - _EPOCH) // timedelta(seconds=1)
            return seconds * 10**9 + int((fraction or "").ljust(9, "0"))
        case _:
            pass
    raise ValueError(
        f"{name} is {shown(value)}. Give ISO text with an offset (2026-11-18T09:30:00Z), nanoseconds since the Unix "
        "epoch, or an aware datetime."
    )


def shown(value: object) -> str:
    """The beginning of a value, for a message."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
