"""Local times that occur twice, when clocks are put back."""

from datetime import UTC, datetime, timedelta

STEP = timedelta(minutes=15)
"""In all of today's time zones, clocks are put back at a full quarter of an hour in UTC."""

AHEAD = timedelta(hours=25)
"""Later changes cannot lead to an earlier local time: no clock goes back by more than a day."""


def instants_from(since: datetime) -> list[datetime]:
    """Return an instant and the quarter hours of the next 25 hours.

    Between two of them a clock only goes forward, so the earliest local time among them is the earliest that it shows
    from the instant on.
    """
    since = since.astimezone(UTC)
    first = since.replace(minute=since.minute // 15 * 15, second=0, microsecond=0)
    return [since, *(first + STEP * number for number in range(1, AHEAD // STEP + 1))]
