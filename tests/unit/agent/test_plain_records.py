"""Plain Python values become the Arrow of their kind, or an error that names the record."""

from datetime import UTC, datetime, timedelta, timezone
from math import isnan

import pandas as pd  # type: ignore[import-untyped]  # it has no types of its own
import pyarrow as pa
import pytest

from lakehead.agent import plain_records
from lakehead.agent.errors import BadRecord
from lakehead.agent.plain_records import PlainRecord, record_batch
from lakehead.wire.record_schemas import LOGS_V1, SAMPLES_V2, FrameKind
from tests.unit.wire.frames import LOGS, SAMPLES

NINE = 1_763_454_600_000_000_000
"""2025-11-18T08:30:00Z."""


def sample(**changed: object) -> dict[str, object]:
    return {"time": NINE, "metric": "up", "value": 1} | changed


def only_time(record: PlainRecord) -> int:
    [time] = record_batch(FrameKind.SAMPLES, [record]).column("time").cast("int64").to_pylist()
    return int(time)


def test_a_mapping_and_a_tuple_are_the_same_sample() -> None:
    mapping = {"time": NINE, "metric": "up", "labels": {"zone": "b", "host": "a"}, "value": 1}

    batch = record_batch(FrameKind.SAMPLES, [mapping, (NINE, "up", [("host", "a"), ("zone", "b")], 1.0)])

    first, second = batch.to_pylist()
    assert first == second
    assert (first["metric"], first["type"], first["value"]) == ("up", "unknown", 1.0)
    assert first["labels"] == [("host", "a"), ("zone", "b")]
    assert batch.schema.equals(SAMPLES_V2, check_metadata=True)


def test_a_log_record_may_be_a_tuple_with_or_without_attributes() -> None:
    batch = record_batch(FrameKind.LOGS, [(NINE, "began"), (NINE, "ended", {"code": "0"}), {"time": NINE}])

    assert [row["body"] for row in batch.to_pylist()] == ["began", "ended", None]
    assert [row["attributes"] for row in batch.to_pylist()] == [[], [("code", "0")], []]
    assert batch.schema.equals(LOGS_V1, check_metadata=True)


def test_every_column_of_both_kinds_is_taken() -> None:
    assert record_batch(FrameKind.SAMPLES, SAMPLES).num_rows == len(SAMPLES)
    assert record_batch(FrameKind.LOGS, LOGS).num_rows == len(LOGS)


@pytest.mark.parametrize(
    ("time", "ns"),
    [
        (NINE, NINE),
        ("2025-11-18T08:30:00Z", NINE),
        ("2025-11-18 09:30:00+01:00", NINE),
        ("2025-11-18T08:30:00.123456789Z", NINE + 123_456_789),
        ("2025-11-18T08:30:00.5z", NINE + 500_000_000),
        ("1969-12-31T23:59:59.999999999Z", -1),
        (datetime(2025, 11, 18, 8, 30, 0, 1, tzinfo=UTC), NINE + 1_000),
        (pd.Timestamp("2025-11-18T08:30:00.123456789Z"), NINE + 123_456_789),
        (pd.Timestamp("1969-12-31T23:59:59.999999999Z"), -1),
        (datetime(2025, 11, 18, 9, 30, tzinfo=timezone(timedelta(hours=1))), NINE),
    ],
)
def test_a_time_is_exact_in_each_of_its_forms(time: object, ns: int) -> None:
    assert only_time(sample(time=time)) == ns


def test_numbers_that_json_does_not_have_are_taken_as_text() -> None:
    records = [sample(value=text) for text in ("NaN", "+Inf", "-Inf")]

    nan, most, least = record_batch(FrameKind.SAMPLES, records).column("value").to_pylist()

    assert isnan(nan)
    assert (most, least) == (float("inf"), float("-inf"))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"metric": "up", "value": 1}, "It has no time"),
        ({"time": NINE, "value": 1}, "It has no metric"),
        (sample(labels=None, metric=None), "It has no metric"),
        (sample(vlaue=1), "There is no column vlaue"),
        (sample(time="2025-11-18T08:30:00"), "Give ISO text with an offset"),
        (sample(time="2025-13-18T08:30:00Z"), "month must be in 1..12"),
        (sample(time=1.5), "time is 1.5"),
        (sample(time=True), "time is True"),
        (sample(time=datetime(2025, 11, 18)), "aware datetime"),  # noqa: DTZ001 - that is what is refused
        (sample(time=2**63), "from 1677 to 2262"),
        (sample(time="9999-12-31T23:59:59Z"), "from 1677 to 2262"),
        (sample(value=10**400), "too large"),
        (sample(value="x" * 10_000), "^.{,300}$"),
        (sample(**{"x" * 10_000: 1}), "There is no column x{,80}. Known are .{,300}$"),
        (sample(monotonic="x" * 10_000), "^.{,420}…$"),
        (sample(labels="x" * 10_000), "^.{,300}$"),
        (sample(value=None, type="exponential_histogram", distribution={"count": 1, "scale": 1.5}), "scale is 1.5"),
        (
            sample(
                value=None,
                type="exponential_histogram",
                distribution={"count": 1, "scale": 1} | {"positive_indexes": [0.5], "positive_counts": [1]},
            ),
            "positive_indexes",
        ),
        (sample(value="1"), "Give a number"),
        (sample(value=True), "Give a number"),
        (sample(value=None), "no value"),
        (sample(metric=7), "got a 'int' object"),
        (sample(metric=b"up"), "Decode it to text"),
        (sample(metric="\ud800"), "surrogates"),
        (sample(labels={"code": 200}), "Both must be text"),
        (sample(labels=["host"]), "mapping of text to text"),
        (sample(labels=[("a", "1"), ("a", "2")]), "or one is twice"),
        (sample(type="gage"), "A type is none of"),
        (sample(value=None, type="histogram", distribution={"count": 1, "buckets": [1]}), "no field of distribution"),
        ((NINE,), "It is a tuple of 1"),
        ((NINE, "up", {}, 1, 2), "It is a tuple of 5"),
        ("up 1", "It is a str"),
    ],
)
def test_a_record_that_is_wrong_is_named_with_its_reason(record: PlainRecord, reason: str) -> None:
    with pytest.raises(BadRecord, match=reason) as refused:
        record_batch(FrameKind.SAMPLES, [sample(), sample(), record])

    assert refused.value.index == 2


@pytest.mark.parametrize("name", ["severity_number", "flags"])
def test_a_fraction_is_not_made_a_whole_number(name: str) -> None:
    with pytest.raises(BadRecord, match=f"{name} is 1.5. Give a whole number"):
        record_batch(FrameKind.LOGS, [{"time": NINE, name: 1.5}])

    assert record_batch(FrameKind.LOGS, [{"time": NINE, name: 2.0}]).column(name).to_pylist() == [2]


@pytest.mark.parametrize("place", [0, 1, 6, 7, 99])
def test_the_first_wrong_record_of_many_is_found_in_few_looks(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, check = list[int](), plain_records._checked_batch

    def counted(kind: FrameKind, rows: list[dict[str, object]]) -> pa.RecordBatch:
        looks.append(len(rows))
        return check(kind, rows)

    monkeypatch.setattr(plain_records, "_checked_batch", counted)
    records = [sample() for _ in range(100)]
    for wrong in (place, 99):
        records[wrong] = sample(unit=7)

    with pytest.raises(BadRecord) as refused:
        record_batch(FrameKind.SAMPLES, records)

    assert refused.value.index == place
    assert len(looks) < 12
