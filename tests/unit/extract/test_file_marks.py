"""How far a table of files is, as labels say it: it comes back as it was, and nothing else is taken for it."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.errors import Misconfigured
from lakehead.extract.file_marks import FileMark, decode_mark, encode_mark
from lakehead.lake.filesink.file_sink import PublishMode
from lakehead.lake.filesink.published import label_of
from lakehead.lake.filesink.records import BrokenRecord
from lakehead.lake.landing import Unit
from lakehead.state.model import ReadBy, Value
from tests.chaos.file_sink_child import DiskFiles, rows_of, sink_at

GOLDEN = Path(__file__).parents[2] / "golden" / "extract" / "file-marks.v1.jsonl"
GOLDEN_READ_BY = GOLDEN.with_name("file-marks-read-by.v1.jsonl")
"""What has been added since: readers of before skip it."""
DIRECTORY = "s3://lake/raw/shop.orders/2026-11-15.g2"
DAY = date(2026, 11, 15)


def mark(value: Value) -> FileMark:
    return FileMark(value=value, slice=7, generation=2, load_date=DAY)


MARKS = [
    mark(-(10**30)),
    mark(Decimal("-1.50E+5")),
    mark(datetime(2026, 3, 29, 2, 30, 0, 1)),  # noqa: DTZ001 - without a zone on purpose
    mark(datetime(2026, 11, 16, 1, 2, 3, 456789, tzinfo=UTC)),
    FileMark(value=date(1, 1, 1), slice=0, generation=0, load_date=date(9999, 12, 31)),
    mark('it\'s "ünï"\x00\ud800'),
    FileMark(value=5, slice=7, generation=2, load_date=DAY, table="0d9e3f3c-0000-4000-8000-000000000000"),
]
"""One of each kind of value, and one of a table that has an id."""

zones = st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30)), timezone(timedelta(hours=14))])
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)  # noqa: DTZ001 - bounds have no zone
values: st.SearchStrategy[Value] = st.one_of(
    st.integers(), st.decimals(allow_nan=False, allow_infinity=False), st.datetimes(), moments, st.dates(), st.text()
)
counts = st.integers(0, 2**63)
ids = st.none() | st.text()
read_by = st.none() | st.builds(ReadBy, st.text(), st.none() | st.text())
marks = st.builds(
    FileMark, value=values, slice=counts, generation=counts, load_date=st.dates(), table=ids, read_by=read_by
)


def meddled(**fields: Any) -> str:
    """What a label says, with some of its fields changed, or taken away by an ellipsis."""
    said = {**json.loads(encode_mark(mark(5))), **fields}
    return json.dumps({name: value for name, value in said.items() if value is not ...})


@given(marks)
def test_a_mark_comes_back_equal_and_of_its_kind(written: FileMark) -> None:
    back = decode_mark(encode_mark(written), directory=DIRECTORY)

    assert back == written
    assert type(back.value) is type(written.value)
    if isinstance(written.value, datetime):
        assert isinstance(back.value, datetime)
        assert (back.value.tzinfo is None) == (written.value.tzinfo is None)


def test_marks_are_written_as_they_always_were() -> None:
    """What is stored outlives every version of ours: a change here is a new format, with a new version beside it."""
    assert "".join(f"{encode_mark(each)}\n" for each in MARKS) == GOLDEN.read_text()


def test_a_mark_says_what_it_was_read_by() -> None:
    marks = [replace(mark(5), read_by=ReadBy("at")), replace(mark(5), read_by=ReadBy("ät", "note = 'a \"b\"'"))]

    assert "".join(f"{encode_mark(each)}\n" for each in marks) == GOLDEN_READ_BY.read_text()
    assert [decode_mark(line, directory=DIRECTORY) for line in GOLDEN_READ_BY.read_text().splitlines()] == marks


def test_marks_that_were_stored_once_are_still_read() -> None:
    assert [decode_mark(line, directory=DIRECTORY) for line in GOLDEN.read_text().splitlines()] == MARKS


@pytest.mark.parametrize("way", PublishMode)
def test_a_mark_comes_back_from_the_label_of_a_published_directory(way: PublishMode, tmp_path: Path) -> None:
    sink, files = sink_at(tmp_path, way), DiskFiles()

    for number, written in enumerate(MARKS):
        landed = sink.land(Unit(f"unit {number}"), rows_of(number), watermark=encode_mark(written))
        said = label_of(landed.directory, files=files).watermark
        assert decode_mark(said, directory=landed.directory) == written


@pytest.mark.parametrize("way", PublishMode)
def test_a_directory_that_was_published_by_somebody_else_has_no_mark(way: PublishMode, tmp_path: Path) -> None:
    sink, files = sink_at(tmp_path, way), DiskFiles()

    for watermark in (None, "2026-11-15"):
        landed = sink.land(Unit(str(watermark)), rows_of(1), watermark=watermark)
        with pytest.raises(BrokenRecord) as refused:
            decode_mark(label_of(landed.directory, files=files).watermark, directory=landed.directory)
        assert landed.directory in str(refused.value)


@given(st.sampled_from(MARKS), st.data())
def test_no_part_of_a_mark_is_taken_for_a_whole(written: FileMark, data: st.DataObject) -> None:
    text = encode_mark(written)

    with pytest.raises(BrokenRecord):
        decode_mark(text[: data.draw(st.integers(0, len(text) - 1))], directory=DIRECTORY)


@pytest.mark.slow
@given(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_whatever_is_no_mark_is_a_broken_record_and_nothing_worse(text: str, instead: object) -> None:
    with pytest.raises(BrokenRecord):
        decode_mark(text, directory=DIRECTORY)
    with pytest.raises(BrokenRecord):
        decode_mark(json.dumps(instead), directory=DIRECTORY)
    with pytest.raises(BrokenRecord):
        decode_mark(meddled(value=[instead]), directory=DIRECTORY)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "no JSON",
        "null",
        "7",
        "[]",
        "{}",
        encode_mark(mark(5)) + "}",
        json.dumps(encode_mark(mark(5))),
        meddled(version=2),
        meddled(version="1"),
        meddled(version=...),
        meddled(kind=...),
        meddled(kind=None),
        meddled(value=...),
        meddled(value=5),
        meddled(value="five"),
        meddled(value="9" * 5_000),
        meddled(slice=...),
        meddled(slice="7"),
        meddled(slice=7.5),
        meddled(slice=None),
        meddled(generation=...),
        meddled(generation=[2]),
        meddled(load_date=...),
        meddled(load_date=20261115),
        meddled(load_date="yesterday"),
        meddled(load_date="2026-13-01"),
        meddled(load_date="2026-11-15T00:00:00"),
        meddled(table=7),
        meddled(table=["t"]),
        meddled(kind="decimal", value="five"),
        meddled(kind="timestamp", value="noon"),
        meddled(kind="timestamptz", value="2026-11-16T25:00:00+00:00"),
        meddled(kind="date", value="2026-02-30"),
        meddled(kind="text", value="unquoted"),
    ],
    ids=lambda text: str(text)[:130] or "nothing",
)
def test_a_label_that_was_meddled_with_says_which_directory_and_what_to_do(text: str | None) -> None:
    with pytest.raises(BrokenRecord) as refused:
        decode_mark(text, directory=DIRECTORY)

    told = str(refused.value)
    assert told.startswith(f"The label of directory {DIRECTORY} has no watermark that this version can read")
    assert "Restore the label, or use the version that wrote it" in told
    assert "\n" not in told


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(meddled(kind="interval"), id="a kind of a newer version"),
        pytest.param("[" * 100_000, id="a label that is nested too deeply"),
        pytest.param(meddled(kind="text", value="[" * 100_000), id="a text that is nested too deeply"),
        pytest.param(meddled(kind="decimal", value="NaN"), id="a value that has no next one"),
    ],
)
def test_these_are_no_marks_either(text: str) -> None:
    with pytest.raises(BrokenRecord, match=DIRECTORY):
        decode_mark(text, directory=DIRECTORY)


@pytest.mark.parametrize("value", [True, Decimal("NaN"), Decimal("-Infinity")])
def test_what_has_no_next_value_is_not_written(value: Value) -> None:
    with pytest.raises(Misconfigured, match="watermark cannot be"):
        encode_mark(mark(value))
