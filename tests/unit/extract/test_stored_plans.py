"""A plan that was stored is resumed as it was."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from lakehead.errors import Misconfigured
from lakehead.extract.planning.planner import Plan, PlannerMetadata
from lakehead.extract.planning.stored import from_state, to_state
from lakehead.extract.planning.windows import Bound, Slice, Window
from lakehead.state.model import Value
from tests.unit.extract.column_values import TODAY, plain

REASONS = PlannerMetadata(current_literal="7", load_date=TODAY)


@pytest.mark.parametrize(
    "value",
    [
        7,
        -(10**30),
        Decimal("1.500"),
        date(2024, 2, 29),
        plain(2024, 3, 31, 2, 30, 0, 123456),
        datetime(2024, 3, 31, 2, 30, 0, 123456, tzinfo=UTC),
        "ü\x00'",
    ],
)
def test_slices_come_back_equal_through_json(value: Value) -> None:
    slices = (
        Slice(window=Window(None, Bound(value, included=False)), after=None, estimated_rows=3),
        Slice(window=Window(Bound(value, included=True), Bound(value, included=True)), after=value),
    )

    stored = to_state(Plan(slices, REASONS), plan_id="p", table="uuid", generation=2)

    assert (stored.id, stored.table, stored.generation) == ("p", "uuid", 2)
    assert stored.detail["current_literal"] == "7"
    again = [replace(each, bounds=json.loads(json.dumps(each.bounds))) for each in stored.slices]
    assert tuple(map(from_state, again)) == slices
    assert [each.unit for each in again] == [each.unit for each in slices]


@pytest.mark.parametrize(
    "damage",
    [
        {"lower": 5},
        {"lower": {"value": ["integer", "1"]}},
        {"upper": None},
        {"upper": {"value": ["integer", "seven"], "included": True}},
        {"upper": {"value": ["decimal", "seven"], "included": True}},
        {"after": "7"},
        {"after": ["roman", "VII"]},
        {"estimated_rows": "many"},
    ],
)
def test_a_stored_slice_that_is_not_whole_is_refused_and_never_read_as_a_wider_one(damage: dict[str, Any]) -> None:
    whole = Slice(window=Window(Bound(1, included=True), Bound(7, included=False)), after=1)
    [stored] = to_state(Plan((whole,), REASONS), plan_id="p", table="uuid", generation=0).slices

    with pytest.raises(Misconfigured):
        from_state(replace(stored, bounds={**stored.bounds, **damage}))


def test_a_unit_is_named_by_the_watermarks_between_which_it_lies() -> None:
    first = Slice(window=Window(None, Bound(7, included=True)), after=None)
    later = Slice(window=Window(Bound(6, included=True), Bound(9, included=True)), after=7)

    assert (first.unit, later.unit) == ("start..7", "7..9")
