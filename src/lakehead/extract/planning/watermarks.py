"""From where, and up to where, a table is read."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from lakehead.extract.planning.axis import Axis, Kind, another_kind, kind_of
from lakehead.extract.planning.windows import Bound
from lakehead.state.model import Value


def _in_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What a source tells of a column and of itself, all of it before the first row is read."""

    now: datetime
    """The source's own time, with its zone."""

    oldest_open: datetime | None = None
    """When the oldest transaction began that may still commit rows; None if there is none or the source cannot tell."""

    earliest_local: Callable[[datetime], datetime] = _in_utc
    """The earliest value that the source writes into columns without a zone from a moment on. Clocks are put back, and
    then that is earlier than its local time."""

    second_digits: int = 6
    """How many digits of a second the source writes: what comes later in the same second may look earlier."""

    lowest: Value | None = None
    """The column's first value. None: not asked, or no rows."""

    highest: Value | None = None
    """The column's last value. None: not asked, or no rows. A column that follows no clock is read up to it."""


def lower_bound(
    kind: Kind, *, stored: Value | None, initial: Value | None, lag_seconds: int, rereads: bool
) -> Bound | None:
    """Where reading starts: at the stored watermark, or the initial one, less the lag. None: at the first value.

    A merge takes a row twice without harm, so it begins at the watermark itself and as far before it as the lag says:
    rows that were committed late are found. Whatever must not read a row twice (`rereads` is false) begins exactly
    where the last reading ended.
    """
    start = stored if stored is not None else initial
    if start is None:
        return None
    if kind is Kind.TEXT:
        if not isinstance(start, str):
            raise another_kind(kind, start)
        lowered: Value = start
    else:
        axis = Axis.through(kind, start)
        tick = axis.tick(start)
        lowered = axis.value(axis.back(tick, lag_seconds) if rereads else tick)
    # Readings by the clock end before their watermark, others with it.
    return Bound(lowered, included=rereads or stored is None or kind.follows_the_clock)


def upper_bound(kind: Kind, reach: Reach, *, lag_seconds: int) -> Bound | None:
    """Where reading ends, and the next one starts. None: there is nothing to read.

    By the clock, it is the source's time or the start of its oldest open transaction, whichever is earlier, less the
    lag, and not included: rows of that moment may still come. Of a column without a zone it is the earliest that the
    source may write from then on; seconds are counted before that, for local time has hours that come twice or never.
    Where the source writes whole seconds it is a whole second too. A date is read when it is over. Columns that follow
    no clock are read up to and with their highest value.
    """
    if not kind.follows_the_clock:
        if reach.highest is None:
            return None
        if kind_of(reach.highest) is not kind and not (kind is Kind.DECIMAL and isinstance(reach.highest, int)):
            raise another_kind(kind, reach.highest)
        return Bound(reach.highest, included=True)
    axis = Axis(Kind.TIMESTAMPTZ)
    moments = [axis.tick(moment) for moment in (reach.now, reach.oldest_open) if moment is not None]
    held = axis.value(axis.back(min(moments), lag_seconds))
    assert isinstance(held, datetime)  # noqa: S101 - for the type checker: the axis is of moments
    value = held if kind is Kind.TIMESTAMPTZ else reach.earliest_local(held)
    if kind is Kind.DATE:
        return Bound(value.date(), included=False)
    unit: int = 10 ** (6 - reach.second_digits)
    return Bound(value.replace(microsecond=value.microsecond // unit * unit), included=False)


def nothing_between(kind: Kind, lower: Bound | None, upper: Bound, reach: Reach, stored: Value | None) -> bool:
    """Whether what is known already says that no row is there to be read, or that it is not time to read it."""
    if kind is Kind.TEXT:
        # Only equality: the source's collation orders text in its own way.
        return upper.value == stored
    axis = Axis.through(kind, stored, upper.value, reach.lowest, reach.highest, lower.value if lower else None)
    end = axis.tick(upper.value)
    if stored is not None and end <= axis.tick(stored):
        return True
    if lower is not None and not (axis.tick(lower.value) < end or (axis.tick(lower.value) == end and upper.included)):
        return True
    if reach.lowest is not None and not upper.included and axis.tick(reach.lowest) >= end:
        return True
    return lower is not None and reach.highest is not None and axis.tick(reach.highest) < axis.tick(lower.value)
