"""The bounds between which a table is read."""

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
    """What is known of a source and of the column, all of it asked before the first row is read."""

    now: datetime
    """The source's current time, with its zone."""

    oldest_open: datetime | None = None
    """When the oldest transaction that may still commit rows began; None if there is none or it is unknown."""

    earliest_local: Callable[[datetime], datetime] = _in_utc
    """The earliest value that the source may write, from a given time on, into columns without a zone. When clocks are
    set back, that is earlier than the local time."""

    second_digits: int = 6
    """How many fractional digits of a second the source writes: with fewer, a later value may look earlier."""

    lowest: Value | None = None
    """The column's lowest value. None: not asked, or no rows."""

    highest: Value | None = None
    """The column's highest value. None: not asked, or no rows. Columns that do not follow the clock are read up to
    it."""


def lower_bound(
    kind: Kind, *, stored: Value | None, initial: Value | None, lag_seconds: int, rereads: bool
) -> Bound | None:
    """Where reading starts: at the stored watermark, or the initial one, less the lag. None: at the lowest value.

    A merge may read a row twice, so it starts at the watermark less the lag and finds rows that were committed late.
    If no row may be read twice (`rereads` is false), it starts exactly where the last read ended.
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
    # Windows of columns that follow the clock exclude their upper bound, others include it.
    return Bound(lowered, included=rereads or stored is None or kind.follows_the_clock)


def upper_bound(kind: Kind, reach: Reach, *, lag_seconds: int) -> Bound | None:
    """Where reading ends, and the next read starts. None: there is nothing to read.

    For columns that follow the clock, it is the source's time or the start of its oldest open transaction, whichever is
    earlier, less the lag. It is excluded, because rows with that time may still be written. For a column without a zone
    it is the earliest value that the source may write from then on; the lag is subtracted before that, because local
    time has hours that occur twice or not at all. It is truncated to the digits of a second that the source writes. A
    date is read when it is over. Other columns are read up to and including their highest value.
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
    """Whether it is already known that the window has no rows, or that it is too early to read them."""
    if kind is Kind.TEXT:
        # Only equality: the order of text depends on the source's collation.
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
