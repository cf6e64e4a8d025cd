"""The payload of every event can be written as JSON."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import ClassVar

import pytest

from lakehead.telemetry import events
from lakehead.telemetry.events import Event, TablePlanned, TableStart, TableStep, as_json


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


def test_every_event_has_a_kind_of_its_own() -> None:
    defined = [each for each in vars(events).values() if isinstance(each, type) and issubclass(each, Event)]
    names = [each.kind for each in defined if each is not Event]

    assert len(names) == len(set(names)) >= 10
    assert all(name.isidentifier() and len(name) <= 64 for name in names), "a name is a key in the state"


def test_fields_without_a_value_are_left_out_and_a_date_is_text() -> None:
    assert TableStep(step="reading", rows=0).payload() == {"step": "reading", "rows": 0}
    assert TableStart(mode="full", load_date=date(2026, 3, 1), reload=False).payload() == {
        "mode": "full",
        "load_date": "2026-03-01",
        "reload": False,
    }


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC), "2026-03-01T12:00:00.123456+00:00"),
        (Decimal("1.10"), "1.10"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (2**70, 2**70),
        (timedelta(minutes=1), 60.0),
        (Colour.RED, "red"),
        (Size.BIG, 3),
        (PurePosixPath("/a"), "/a"),
        ((1, [2, {"x": None}]), [1, [2, {"x": None}]]),
        (frozenset({5}), [5]),
        (MappingProxyType({date(2026, 3, 1): Decimal(2)}), {"2026-03-01": "2"}),
    ],
)
def test_whatever_a_detail_holds_json_can_write_it(value: object, written: object) -> None:
    payload = TablePlanned(slices=1, done=0, resumed=False, planner={"why": value}).payload()

    assert payload["planner"] == {"why": written}
    assert json.loads(json.dumps(payload, allow_nan=False)) == payload
    assert type(as_json(value)) in {str, int, float, list, dict}, "and nothing that only looks like one of these"


def test_an_event_of_another_package_is_written_the_same_way() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Rained(Event):
        kind: ClassVar[str] = "rained"
        litres: Decimal

    assert Rained(litres=Decimal("0.5")).payload() == {"litres": "0.5"}
