"""Server-local time that comes twice, when clocks are put back."""

from datetime import UTC, datetime, timedelta

STEP = timedelta(minutes=15)
"""Clocks are put back at a quarter of an hour of UTC, in all time zones of today."""

AHEAD = timedelta(hours=25)
"""Clocks that are put back later than this do not come to an earlier time: none goes back by more than a day."""


def moments_from(since: datetime) -> list[datetime]:
    """This moment and the quarters of an hour after it.

    The earliest local time among them is the earliest that a clock shows from this moment on: between two of them it
    only goes forward.
    """
    since = since.astimezone(UTC)
    first = since.replace(minute=since.minute // 15 * 15, second=0, microsecond=0)
    return [since, *(first + STEP * number for number in range(1, AHEAD // STEP + 1))]
