"""Two frames with the same records, but for some: exactly those are found, whatever column they differ in."""

import struct
from copy import deepcopy
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from lakehead.consume.decode.record_comparison import differing_rows, spans_of
from lakehead.wire.record_schemas import LOGS_V1, SAMPLES_V2
from tests.unit.wire.frames import LOGS, NOON, SAMPLES, STALE

Row = dict[str, object]


def batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def changed(row: Row, column: str, value: object) -> Row:
    return {**deepcopy(row), column: value}


def nan(bits: int) -> float:
    found: float = struct.unpack("<d", bits.to_bytes(8, "little"))[0]
    return found


SAMPLE: Row = {"time": NOON, "metric": "m", "labels": [("a", "b"), ("c", "d")], "type": "gauge", "value": 0.0}
HISTOGRAM = next(row for row in SAMPLES if row["type"] == "histogram")
DISTRIBUTION = HISTOGRAM["distribution"]
LOG: Row = {"time": NOON, "body": "b", "attributes": [], "resource_attributes": [("k", "v")], "scope_attributes": []}


@pytest.mark.parametrize(("rows", "schema"), [(SAMPLES, SAMPLES_V2), (LOGS, LOGS_V1)])
def test_records_equal_themselves_also_when_they_are_nan(rows: list[Row], schema: pa.Schema) -> None:
    assert not differing_rows(batch(rows, schema), batch(deepcopy(rows), schema)).any()


@pytest.mark.parametrize(
    ("row", "column", "value", "schema"),
    [
        (SAMPLE, "time", NOON + 1, SAMPLES_V2),
        (SAMPLE, "start_time", 0, SAMPLES_V2),
        (SAMPLE, "metric", "M", SAMPLES_V2),
        (SAMPLE, "value", -0.0, SAMPLES_V2),
        (SAMPLE, "value", STALE, SAMPLES_V2),
        (SAMPLE, "value", None, SAMPLES_V2),
        (SAMPLE, "monotonic", False, SAMPLES_V2),
        (SAMPLE, "labels", [("a", "b")], SAMPLES_V2),
        (SAMPLE, "labels", [("a", "b"), ("c", "e")], SAMPLES_V2),
        (SAMPLE, "labels", [("a", "b"), ("d", "d")], SAMPLES_V2),
        (SAMPLE, "labels", [], SAMPLES_V2),
        (HISTOGRAM, "distribution", None, SAMPLES_V2),
        (HISTOGRAM, "distribution", {**DISTRIBUTION, "sum": None}, SAMPLES_V2),  # type: ignore[dict-item]
        (HISTOGRAM, "distribution", {**DISTRIBUTION, "counts": [1.0, 2.0, 4.0]}, SAMPLES_V2),  # type: ignore[dict-item]
        (HISTOGRAM, "distribution", {**DISTRIBUTION, "bounds": [1.0]}, SAMPLES_V2),  # type: ignore[dict-item]
        (HISTOGRAM, "distribution", {**DISTRIBUTION, "bounds": None}, SAMPLES_V2),  # type: ignore[dict-item]
        (LOG, "body", None, LOGS_V1),
        (LOG, "body", "", LOGS_V1),
        (LOG, "flags", 0, LOGS_V1),
        (LOG, "attributes", [("", "")], LOGS_V1),
        (LOG, "resource_attributes", [("k", "V")], LOGS_V1),
    ],
)
def test_the_one_record_that_differs_is_found_among_others(
    row: Row, column: str, value: object, schema: pa.Schema
) -> None:
    around = SAMPLES if schema is SAMPLES_V2 else LOGS
    one = batch([*around, row, *around, row], schema)
    other = batch([*around, changed(row, column, value), *around, row], schema)
    expected = [(len(around), len(around) + 1)]
    assert spans_of(differing_rows(one, other)) == expected
    assert spans_of(differing_rows(other, one)) == expected


def test_two_nans_of_other_bits_differ() -> None:
    one, other = (batch([changed(SAMPLE, "value", nan(bits))], SAMPLES_V2) for bits in (0x7FF8 << 48, 0x7FF8 << 48 | 1))
    assert differing_rows(one, other).tolist() == [True]


def test_slices_of_longer_batches_are_compared_by_their_own_rows() -> None:
    random = Random(1)
    rows = [random.choice(SAMPLES) for _ in range(60)]
    different = [changed(row, "labels", [("other", "x")]) if n % 7 == 3 else row for n, row in enumerate(rows)]
    one, other = batch(rows, SAMPLES_V2), batch(different, SAMPLES_V2)
    found = differing_rows(one.slice(10, 40), other.slice(10, 40))
    assert np.flatnonzero(found).tolist() == [n - 10 for n in range(10, 50) if n % 7 == 3]
    assert spans_of(found, first=110)[0] == (110, 111)


def test_a_column_that_one_of_them_lacks_is_null() -> None:
    """As an older version of a schema lacks a column of a newer one."""
    rows = batch([SAMPLE, changed(SAMPLE, "unit", "s")], SAMPLES_V2)
    assert differing_rows(rows, rows.drop_columns(["unit"])).tolist() == [False, True]
