"""Records that break a rule of their kind are refused, and name it."""

from contextlib import nullcontext
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import BadFrame
from lakehead.wire.frame import decode_frame, encode_frame
from lakehead.wire.ipc_payload import write_batch
from lakehead.wire.record_schemas import FrameKind, as_oldest, newest_schema
from tests.unit.wire.frames import LOGS, SAMPLES, STALE, around, logs, same, samples

NUMBER, HISTOGRAM, EXPONENTIAL, SUMMARY = SAMPLES[0], SAMPLES[3], SAMPLES[4], SAMPLES[5]


def distribution(row: dict[str, object], **changes: object) -> dict[str, object]:
    found = row["distribution"]
    assert isinstance(found, dict)
    return {**row, "distribution": {**found, **changes}}


def refused(kind: FrameKind, records: pa.RecordBatch) -> str:
    """What both the encoder and the decoder say."""
    identity = BatchIdentity("a", "b", 0, len(records) - 1)
    with pytest.raises(BadFrame) as encoding:
        encode_frame(identity, kind, records)
    version, stored = as_oldest(kind, records)
    body = around(write_batch(stored).to_pybytes(), kind=kind, identity=identity, version=version)
    with pytest.raises(BadFrame) as decoding:
        decode_frame(body)
    assert encoding.value.code == decoding.value.code == "bad_records"
    assert str(encoding.value) == str(decoding.value)
    return str(decoding.value)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**NUMBER, "time": None}, "time has nulls"),
        ({**NUMBER, "metric": None}, "metric has nulls"),
        ({**NUMBER, "labels": None}, "labels has nulls"),
        ({**NUMBER, "type": None}, "type has nulls"),
        ({**NUMBER, "labels": [("b", "1"), ("a", "2")]}, "labels of a record are not ascending"),
        ({**NUMBER, "labels": [("a", "1"), ("a", "1")]}, "one is twice"),
        ({**NUMBER, "labels": [("a", None)]}, "value of labels is null"),
        ({**NUMBER, "labels": [("\U0001f600", ""), ("\uffff", "")]}, "not ascending"),
        ({**NUMBER, "type": "counter"}, "A type is none of unknown, gauge, sum"),
        ({**NUMBER, "temporality": "unspecified"}, "temporality is none of"),
        ({**NUMBER, "value": None}, "has no value"),
        ({**NUMBER, "distribution": {"count": 1.0}}, "or a distribution besides"),
        ({**HISTOGRAM, "value": 1.0}, "lacks it"),
        ({**HISTOGRAM, "distribution": None}, "lacks it"),
        (distribution(HISTOGRAM, count=None), "no count"),
        (distribution(HISTOGRAM, counts=[1.0, 2.0]), "one count more than bounds"),
        (distribution(HISTOGRAM, bounds=[], counts=[1.0, 2.0]), "one count more than bounds"),
        (distribution(HISTOGRAM, bounds=[1.0], counts=[]), "one count more than bounds"),
        (distribution(HISTOGRAM, bounds=[5.0, 1.0]), "bounds of a record are not ascending"),
        (distribution(HISTOGRAM, bounds=[1.0, float("nan")]), "bounds of a record are not ascending"),
        (distribution(HISTOGRAM, counts=None, bounds=None), "has no counts"),
        (distribution(HISTOGRAM, counts=[1.0, None, 2.0]), "item of counts is null"),
        (distribution(HISTOGRAM, scale=1), "has scale, but it is not of the type exponential_histogram"),
        (distribution(HISTOGRAM, quantiles=[]), "has quantiles, but it is not of the type summary"),
        (distribution(HISTOGRAM, reset_hint="maybe"), "reset_hint is none of"),
        (distribution(EXPONENTIAL, scale=None), "has no scale"),
        (distribution(EXPONENTIAL, counts=[]), "has counts, but it is not of the type histogram"),
        (distribution(EXPONENTIAL, positive_counts=[1.0]), "as many positive_indexes as positive_counts"),
        (distribution(EXPONENTIAL, negative_counts=None), "as many negative_indexes as negative_counts"),
        (distribution(EXPONENTIAL, positive_indexes=[7, 7]), "positive_indexes of a record are not ascending"),
        (distribution(SUMMARY, quantile_values=[1.0]), "as many quantiles as quantile_values"),
        (distribution(SUMMARY, quantiles=None, quantile_values=None), "has no quantiles"),
    ],
)
@pytest.mark.parametrize("others", [[], SAMPLES], ids=["alone", "among others"])
def test_a_sample_that_breaks_a_rule_is_refused(
    row: dict[str, object], reason: str, others: list[dict[str, object]]
) -> None:
    assert reason in refused(FrameKind.SAMPLES, samples([*others, row]))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"time": None}, "time has nulls"),
        ({"attributes": None}, "attributes has nulls"),
        ({"attributes": [("b", ""), ("a", "")]}, "attributes of a record are not ascending"),
        ({"resource_attributes": [("a", ""), ("a", "")]}, "resource_attributes of a record are not ascending"),
        ({"scope_attributes": [("b", ""), ("a", "")]}, "scope_attributes of a record are not ascending"),
        ({"severity_number": 0}, "severity_number is not between 1 and 24"),
        ({"severity_number": 25}, "severity_number is not between 1 and 24"),
        ({"flags": -1}, "flags is not between"),
        ({"flags": 2**32}, "flags is not between"),
        ({"trace_id": "0" * 31}, "trace_id is not 32 lowercase hex digits"),
        ({"trace_id": "0" * 32 + "\n"}, "trace_id is not 32 lowercase hex digits"),
        ({"trace_id": "A" * 32}, "trace_id is not 32 lowercase hex digits"),
        ({"span_id": "0" * 32}, "span_id is not 16 lowercase hex digits"),
        ({"span_id": ""}, "span_id is not 16 lowercase hex digits"),
    ],
)
@pytest.mark.parametrize("others", [[], LOGS], ids=["alone", "among others"])
def test_a_log_record_that_breaks_a_rule_is_refused(
    changes: dict[str, object], reason: str, others: list[dict[str, object]]
) -> None:
    assert reason in refused(FrameKind.LOGS, logs([*others, {**LOGS[1], **changes}]))


def test_labels_are_ordered_by_their_bytes_within_a_record_only() -> None:
    rows = [
        {**NUMBER, "labels": [("z", "1")]},
        {**NUMBER, "labels": []},
        {**NUMBER, "labels": [("\uffff", "1"), ("\U0001f600", "2")]},
        {**NUMBER, "labels": [("a", "1"), ("a ", "1"), ("ab", "1"), ("b", "2")], "value": STALE},
    ]
    records = samples(rows)

    decoded = decode_frame(encode_frame(BatchIdentity("a", "b", 0, 3), FrameKind.SAMPLES, records)).records

    assert same(decoded, records)


@pytest.mark.parametrize("count", range(2, 20))
def test_each_pair_of_labels_must_ascend_and_no_pair_of_two_records(count: int) -> None:
    names = [f"{number:02}" for number in range(count)]
    for place in range(count - 1):
        changed = [*names[:place], names[place + 1], names[place], *names[place + 2 :]]
        rows = [{**NUMBER, "labels": [(name, "") for name in each]} for each in (names, changed, names)]
        assert "labels of a record are not ascending" in refused(FrameKind.SAMPLES, samples(rows))
        apart = [[(name, "") for name in part] for part in (changed[: place + 1], [], changed[place + 1 :])]
        records = samples([{**NUMBER, "labels": each} for each in (*apart, [(name, "") for name in names])])
        newest_schema(FrameKind.SAMPLES).check(records)


def test_rules_are_checked_on_records_that_are_a_part_of_others() -> None:
    part = samples([{**NUMBER, "labels": [("b", ""), ("a", "")]}, *SAMPLES]).slice(1)

    assert same(
        decode_frame(encode_frame(BatchIdentity("a", "b", 0, 6), FrameKind.SAMPLES, part)).records, samples(SAMPLES)
    )


def test_labels_of_other_records_in_the_same_memory_are_not_looked_at() -> None:
    whole = samples([{**NUMBER, "labels": [("b", ""), ("a", "")]}, *SAMPLES])
    rules = newest_schema(FrameKind.SAMPLES)

    rules.check(whole.slice(1))
    rules.check(whole.slice(2, 1))
    with pytest.raises(BadFrame, match="not ascending"):
        rules.check(whole.slice(0, 1))


@given(st.lists(st.lists(st.text("abé\U0001f600", max_size=2), max_size=4), min_size=1, max_size=12), st.integers(0, 3))
def test_labels_are_taken_exactly_if_those_of_each_record_ascend_by_their_bytes(
    names: list[list[str]], left: int
) -> None:
    rows = [{**NUMBER, "labels": [(name, "") for name in each]} for each in names]
    part, seen = samples(rows).slice(left), names[left:]
    ascend = all(one.encode() < other.encode() for each in seen for one, other in pairwise(each))

    expected = nullcontext() if ascend else pytest.raises(BadFrame, match="labels of a record are not ascending")

    with expected:
        newest_schema(FrameKind.SAMPLES).check(part)
