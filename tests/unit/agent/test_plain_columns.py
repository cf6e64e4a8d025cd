"""Records that are made into Arrow a column at a time are the same as one by one, and as wrong."""

from collections import UserDict
from datetime import UTC, datetime
from enum import Enum
from math import copysign, isnan
from struct import pack
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.agent.errors import BadRecord
from lakehead.agent.plain_columns import usual_records
from lakehead.agent.plain_records import one_by_one, record_batch
from lakehead.agent.receive.decoded import STALE_MARKER
from lakehead.wire.record_schemas import FrameKind, newest_schema

NINE = 1_763_454_600_000_000_000
SCHEMAS = {kind: newest_schema(kind).schema for kind in FrameKind}

TEXTS = st.sampled_from(["", "a", "ä", "𝄞", "zone", "\0"]) | st.text(max_size=3)
ODD_TEXTS: list[object] = [None, 0, 7, False, b"a", [], "\ud800"]
TIMES = st.sampled_from([NINE, 0, -1, 2**63 - 1, "2025-11-18T08:30:00Z", datetime(2025, 11, 18, tzinfo=UTC)])
ODD_TIMES: list[object] = [None, 2**63, True, 1.5, "x", np.int64(NINE)]
LABELS = st.dictionaries(TEXTS, TEXTS, max_size=4)
ODD_LABELS: list[object] = [
    None,
    (),
    [("b", "1"), ("a", "2")],
    [("a", "1"), ("a", "2")],
    {"a": 1},
    {1: "a"},
    {"a": None},
]
ODD_LABELS += [UserDict(a="b"), {"\ud800": ""}, {"a": "\ud800"}, "a", b"a", 0, np.zeros(2)]
VALUES = st.floats() | st.sampled_from([1, 0, -0.0, STALE_MARKER, np.float64(1.5)])
ODD_VALUES: list[object] = [None, True, "NaN", "1", 10**400, np.float32(1.5)]
ODD_NUMBERS: list[object] = [None, True, 1.0, 1.5, 0, 2**31, 2**32 + 1, 2**64 + 1, -(2**31) - 1, "1"]
ODD_TRUTHS: list[object] = [None, 1, 0, "true", 1.0]

USUAL: dict[FrameKind, st.SearchStrategy[dict[str, object]]] = {
    FrameKind.SAMPLES: st.fixed_dictionaries(
        {"time": TIMES, "metric": TEXTS, "value": VALUES},
        optional={
            "labels": LABELS,
            "type": st.sampled_from(["gauge", "sum"]),
            "unit": TEXTS,
            "start_time": TIMES,
            "monotonic": st.booleans(),
            "temporality": st.just("delta"),
        },
    ),
    FrameKind.LOGS: st.fixed_dictionaries(
        {"time": TIMES},
        optional={
            "body": TEXTS,
            "attributes": LABELS,
            "severity_number": st.integers(1, 24),
            "flags": st.integers(0, 2**32 - 1),
            "observed_time": TIMES,
            "trace_id": st.just("0" * 32),
        },
    ),
}
ODD: dict[FrameKind, dict[str, list[object]]] = {
    FrameKind.SAMPLES: {
        "time": ODD_TIMES,
        "metric": ODD_TEXTS,
        "labels": ODD_LABELS,
        "value": ODD_VALUES,
        "type": [None, "gage", 7],
        "unit": ODD_TEXTS,
        "start_time": ODD_TIMES,
        "monotonic": ODD_TRUTHS,
        "temporality": [None, ""],
        "distribution": [None, {"count": 1}, {}],
        "other": [None, 1],
    },
    FrameKind.LOGS: {
        "time": ODD_TIMES,
        "body": ODD_TEXTS,
        "attributes": ODD_LABELS,
        "severity_number": ODD_NUMBERS,
        "flags": ODD_NUMBERS,
        "observed_time": ODD_TIMES,
        "trace_id": [None, "0" * 31, 7],
    },
}
IN_TUPLES = {FrameKind.SAMPLES: ("time", "metric", "labels", "value"), FrameKind.LOGS: ("time", "body", "attributes")}


@st.composite
def records_of(draw: st.DrawFn, kind: FrameKind) -> list[Any]:
    """Records of usual forms, and at most one value that is not; all of them mappings, tuples, or some of each."""
    records = draw(st.lists(USUAL[kind], min_size=1, max_size=4))
    if draw(st.booleans()):
        name = draw(st.sampled_from([*ODD[kind]]))
        draw(st.sampled_from(records))[name] = draw(st.sampled_from(ODD[kind][name]))
    form = draw(st.sampled_from(["mappings", "tuples", "both"]))
    size = draw(st.integers(1, len(IN_TUPLES[kind])))
    return [
        tuple(record.get(name, {}) for name in IN_TUPLES[kind][:size])
        if form == "tuples" or (form == "both" and number % 2)
        else record
        for number, record in enumerate(records)
    ]


def outcome(make: Any, kind: FrameKind, records: Any) -> object:
    """The bits of what is made, or the record that is wrong and why."""
    try:
        batch = make(kind, records)
    except BadRecord as error:
        return error.index, error.reason
    batch.validate(full=True)
    values = [] if kind is FrameKind.LOGS else [_bits(each) for each in batch.column("value").to_pylist()]
    others = [name for name in batch.schema.names if name != "value"]
    return batch.select(others).to_pylist(), values


def _bits(value: float | None) -> object:
    """A number that is not one may have any bits, but for the stale marker."""
    bits = None if value is None else pack("<d", value)
    is_other_nan = value is not None and isnan(value) and bits != pack("<d", STALE_MARKER)
    return "NaN" if is_other_nan else bits


@pytest.mark.parametrize("kind", FrameKind)
@given(st.data())
def test_a_column_at_a_time_or_one_by_one_is_the_same(kind: FrameKind, data: st.DataObject) -> None:
    records = data.draw(records_of(kind))

    assert outcome(record_batch, kind, records) == outcome(one_by_one, kind, records)


@pytest.mark.parametrize("kind", FrameKind)
def test_the_usual_forms_are_made_a_column_at_a_time(kind: FrameKind) -> None:
    tuples = [(NINE, "a", {"zone": "b", "host": "a"}), (NINE, "b", {})]
    name = "metric" if kind is FrameKind.SAMPLES else "body"
    mappings = [{"time": "2025-11-18T08:30:00Z", name: "a"}, {"time": NINE, name: "b"}]

    for records in (tuples, mappings):
        names = ("time", name, "labels" if kind is FrameKind.SAMPLES else "attributes")
        defaults = {"labels": {}, "type": "gauge", "attributes": {}, "resource_attributes": {}, "scope_attributes": {}}
        batch = usual_records(SCHEMAS[kind], names, defaults, records)

        assert batch is not None
        assert batch.column(name).to_pylist() == ["a", "b"]
        if records is tuples:
            assert batch.column(names[2]).to_pylist() == [[("host", "a"), ("zone", "b")], []]


def test_zero_keeps_its_sign_and_a_mark_of_staleness_its_bits() -> None:
    batch = record_batch(FrameKind.SAMPLES, [(NINE, "up", {}, -0.0), (NINE, "up", {}, STALE_MARKER)])

    zero, stale = batch.column("value").to_pylist()
    assert copysign(1, zero) == -1
    assert pack("<d", stale) == pack("<d", STALE_MARKER)


class LabelName(str, Enum):  # noqa: UP042 - of programs older than StrEnum, whose text form is another
    HOST = "host"


def test_labels_may_be_named_by_an_enum_of_texts() -> None:
    batch = record_batch(FrameKind.SAMPLES, [(NINE, "up", {"zone": "z", LabelName.HOST: "a"}, 1.0)])

    assert batch.column("labels").to_pylist() == [[("host", "a"), ("zone", "z")]]


def test_what_is_false_but_no_text_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(BadRecord, match="0"):
        record_batch(FrameKind.SAMPLES, [{"time": NINE, "metric": 0, "value": 1.0}])
