"""Schedules as cron expressions: five fields, in UTC."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator

from lakehead.run.config.base import invalid

SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MOST_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
FORM = 'must be a cron expression of five fields (minute, hour, day, month, weekday; in UTC), such as "30 2 * * 1-5"'


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    lowest: int
    highest: int
    names: Sequence[str] = ()
    first: int = 0
    """The number of the first name."""


FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, MONTHS, 1),
    _Field("weekday", 0, 7, WEEKDAYS),
)
_PART = re.compile(r"(?P<low>\*|[0-9]{1,2}|[a-z]{3})(-(?P<high>[0-9]{1,2}|[a-z]{3}))?(/(?P<step>[0-9]{1,2}))?")


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """A checked cron expression. Weekdays are 0 (Sunday) to 6."""

    text: str
    """The five fields, separated by single spaces. Shorthands such as @daily are written out."""
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "CronSchedule":
        """Parse an expression. Raises `ValueError` with what is wrong, without the text."""
        words = text.strip().lower()
        fields = SHORTHANDS.get(words, words).split()
        if len(fields) != len(FIELDS):
            raise ValueError(f"{FORM}.")
        values = [_values(field, rule) for field, rule in zip(fields, FIELDS, strict=True)]
        values[4] = tuple(sorted({weekday % 7 for weekday in values[4]}))
        made = cls(" ".join(fields), *values)
        if not made.either_day and not any(min(made.days) <= MOST_DAYS[month - 1] for month in made.months):
            raise ValueError("names a day that none of its months has.")
        return made

    @property
    def either_day(self) -> bool:
        """Whether a day matches by its number or by its weekday, as cron does if neither field starts with a star."""
        _, _, day, _, weekday = self.text.split()
        return not day.startswith("*") and not weekday.startswith("*")

    def __str__(self) -> str:
        return self.text


def _values(text: str, field: _Field) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"has a {field.name} that cannot be read; it {FORM}.")
        if match["low"] == "*":
            if match["high"]:
                raise ValueError(f"has a {field.name} that cannot be read; it {FORM}.")
            low, high = field.lowest, field.highest
        else:
            low = _number(match["low"], field)
            high = _number(match["high"], field) if match["high"] else low
        if match["step"] and match["low"] != "*" and not match["high"]:
            raise ValueError(f"has a step without a range in its {field.name}: write */n or a-b/n.")
        step = int(match["step"] or 1)
        if not step or high < low:
            raise ValueError(f"has a {field.name} whose range or step is empty.")
        found.update(range(low, high + 1, step))
    return tuple(sorted(found))


def _number(text: str, field: _Field) -> int:
    if text.isdecimal():
        number = int(text)
    elif text in field.names:
        number = field.names.index(text) + field.first
    else:
        raise ValueError(f"has an unknown name in its {field.name}.")
    if not field.lowest <= number <= field.highest:
        raise ValueError(f"has a {field.name} outside {field.lowest} to {field.highest}.")
    return number


def _schedule(given: object) -> str:
    if not isinstance(given, str):
        raise invalid(f"{FORM}.")
    try:
        return CronSchedule.parse(given).text
    except ValueError as error:
        raise invalid(str(error)) from None


ScheduleText = Annotated[str, BeforeValidator(_schedule, json_schema_input_type=str)]
"""A cron expression in a configuration, normalised."""
