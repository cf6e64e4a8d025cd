"""Cron expressions: what is accepted means the same to cron and to systemd."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakehead.run.config.cron_schedule import CronSchedule
from lakehead.run.orchestration_formats import calendar_lines
from tests.servers.schedulers import crontab_says, next_starts

GOOD = [
    "30 2 * * *",
    "*/15 * * * *",
    "0 0 1,15 * mon-fri",
    "5-55/10 8-18 * jan,jul 1-5",
    "0 6 */2 * 1",
    "59 23 31 12 7",
    "0 0 29 2 *",
    "@hourly",
    "@weekly",
]
BAD = ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *"]
BAD += [
    "5/10 * * * *",
    "a * * * *",
    "* * * foo *",
    "*-5 * * * *",
    "0 0 31 2,4 *",
    "@reboot",
    "1,,2 * * * *",
    "\N{ARABIC-INDIC DIGIT ONE} * * * *",
]


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_expression_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        CronSchedule.parse(text)


def test_shorthands_and_names_are_numbers() -> None:
    assert CronSchedule.parse("@Daily").text == "0 0 * * *"
    assert CronSchedule.parse("0 0 * Mar SUN,7,1").weekdays == (0, 1)
    assert CronSchedule.parse("0 0 * mar *").months == (3,)


def test_debians_cron_accepts_what_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    file.write_text("".join(f"{CronSchedule.parse(text)} true\n" for text in GOOD))

    assert crontab_says(file)[0] == 0
    file.write_text("60 * * * * true\n")
    assert crontab_says(file)[0] != 0  # it does look


def starts(cron: CronSchedule, base: datetime, count: int) -> list[str]:
    """The next starts as cron's manual has it, minute by minute."""
    found: list[str] = []
    at = base
    while len(found) < count:
        at += timedelta(minutes=1)
        by_day, by_weekday = at.day in cron.days, at.isoweekday() % 7 in cron.weekdays
        right_day = (by_day or by_weekday) if cron.either_day else (by_day and by_weekday)
        if right_day and at.month in cron.months and at.hour in cron.hours and at.minute in cron.minutes:
            found.append(f"{at:%Y-%m-%d %H:%M}")
    return found


@pytest.mark.parametrize("text", [text for text in GOOD if "29 2" not in text])
def test_systemd_starts_when_cron_does(text: str) -> None:
    cron, base = CronSchedule.parse(text), datetime(2026, 2, 26, 23, 50, tzinfo=UTC)

    found = {at for line in calendar_lines(cron.text) for at in next_starts(line, f"{base:%Y-%m-%d %H:%M}", 8)}

    assert sorted(found)[:8] == starts(cron, base, 8)
