"""Frames as rows of tables: which records, which columns, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehead.consume.decode.decode import infer_columns, read_object
from lakehead.consume.decode.frames import AcceptedFrame, landed_columns
from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectRefused, ReadReport
from lakehead.consume.object_tasks import ObjectToRead, ReadingJob, read_objects
from lakehead.lake.conform import RowsRejected
from lakehead.lake.landing import Unit
from lakehead.wire.batch_identity import MAX_SEQUENCE, BatchIdentity
from lakehead.wire.errors import NewerFormat
from lakehead.wire.frame import encode_frame, frame_sha256
from lakehead.wire.record_schemas import SAMPLES_V1, FrameKind
from tests.unit.consume.test_object_tasks import a_job, in_files
from tests.unit.wire.frames import IDENTITY, LOGS, NOON, SAMPLES, STALE, frame, samples, with_number

FORMAT = ObjectFormat(name=FormatName.FRAMES)
VERSION_AT = 8
"""Where the wire version of a frame is."""


def accepted(body: bytes, kind: FrameKind = FrameKind.SAMPLES, **more: Any) -> AcceptedFrame:
    return AcceptedFrame(**{"identity": IDENTITY, "kind": kind, "sha256": frame_sha256(body), **more})


def read(
    body: bytes, wanted: AcceptedFrame | None, columns: pa.Schema | None = None
) -> tuple[list[dict[str, Any]], ReadReport]:
    report = ReadReport()
    columns = columns or landed_columns(wanted.kind if wanted else FrameKind.SAMPLES)
    rows: list[dict[str, Any]] = []
    for batch in read_object(pa.BufferReader(body), FORMAT, columns, report, accepted=wanted):
        batch.validate(full=True)
        assert batch.schema.names == [*columns.names, "_row", "_rescued"]
        assert batch.schema.types[:-2] == columns.types
        rows += batch.to_pylist()
    assert report.rows == len(rows)
    return rows, report


def test_each_record_is_a_row_with_agent_boot_and_sequence_number() -> None:
    rows, _ = read(frame(), accepted(frame()))

    assert [(row["agent"], row["boot"], row["seq"]) for row in rows] == [
        ("agent-a", "boot-uuid", seq) for seq in range(10, 17)
    ]
    assert [row["_row"] for row in rows] == list(range(7))
    for row, record in zip(rows, SAMPLES, strict=True):
        assert row["labels"] == record["labels"]
        assert (row["metric"], row["type"]) == (record["metric"], record["type"])
        assert (row["distribution"] is None) == ("distribution" not in record)
    assert rows[3]["distribution"]["counts"] == [1.0, 2.0, 3.0]


def test_values_keep_every_bit() -> None:
    body = frame()
    [batch] = read_object(
        pa.BufferReader(body), FORMAT, landed_columns(FrameKind.SAMPLES), ReadReport(), accepted=accepted(body)
    )

    wanted = samples().column("value")
    assert batch.column("value").buffers()[1].slice(0, 56).equals(wanted.buffers()[1].slice(0, 56))
    assert STALE != STALE  # noqa: PLR0124 - only its bits tell it from another NaN


def test_a_time_is_cut_to_the_microsecond_before_it_and_kept_to_the_nanosecond_beside() -> None:
    times = [NOON + 1_999, -1, -1_000, -1_001, 2**63 - 1, -(2**63)]
    rows = [{**SAMPLES[0], "time": time} for time in times]
    rows[0]["start_time"] = -1
    identity = BatchIdentity("a", "b", 0, 5)
    body = encode_frame(identity, FrameKind.SAMPLES, pa.RecordBatch.from_pylist(rows, schema=SAMPLES_V1))
    [batch] = read_object(
        pa.BufferReader(body),
        FORMAT,
        landed_columns(FrameKind.SAMPLES),
        ReadReport(),
        accepted=accepted(body, identity=identity),
    )

    assert batch.column("time").cast(pa.int64()).to_pylist() == [time // 1_000 for time in times]
    assert batch.column("time_unix_ns").to_pylist() == times
    assert batch.column("start_time").cast(pa.int64()).to_pylist() == [-1, None, None, None, None, None]
    assert batch.column("start_time_unix_ns").to_pylist() == [-1, None, None, None, None, None]


def test_only_the_wanted_records_are_rows_and_they_keep_their_numbers() -> None:
    rows, _ = read(frame(), accepted(frame(), spans=((10, 12), (14, 15), (16, 17))))

    assert [(row["seq"], row["_row"]) for row in rows] == [(10, 0), (11, 1), (14, 4), (16, 6)]
    assert [row["metric"] for row in rows] == [SAMPLES[at]["metric"] for at in (0, 1, 4, 6)]


@pytest.mark.parametrize("span", [(9, 11), (16, 18), (12, 12), (30, 40)])
def test_records_that_the_frame_does_not_have_are_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ObjectRefused, match="It has no records"):
        read(frame(), accepted(frame(), spans=(span,)))


def test_the_largest_sequence_number_is_a_row_of_its_own() -> None:
    identity = BatchIdentity("a", "b", MAX_SEQUENCE - 6, MAX_SEQUENCE)
    body = encode_frame(identity, FrameKind.SAMPLES, samples())
    spans = ((MAX_SEQUENCE, MAX_SEQUENCE + 1),)
    [row], _ = read(body, accepted(body, identity=identity, spans=spans))

    assert (row["seq"], row["_row"]) == (MAX_SEQUENCE, 6)


def test_log_records_have_columns_of_their_own() -> None:
    body = frame(FrameKind.LOGS, compress=True)
    rows, _ = read(body, accepted(body, FrameKind.LOGS))

    assert [row["body"] for row in rows] == [record.get("body") for record in LOGS]
    assert rows[0]["attributes"] == [("a", "1"), ("user", "ann")]
    assert rows[0]["observed_time_unix_ns"] == NOON + 1
    assert {"time", "time_unix_ns", "severity_number", "agent", "boot", "seq"} < rows[0].keys()


def test_another_content_is_refused_with_both_hashes() -> None:
    other = frame(compress=True)

    with pytest.raises(ObjectRefused) as refused:
        read(other, accepted(frame()))
    assert frame_sha256(other) in str(refused.value)
    assert frame_sha256(frame()) in str(refused.value)


def test_the_frame_of_another_batch_is_refused() -> None:
    with pytest.raises(ObjectRefused, match="10 to 16 of agent 'agent-a', boot 'boot-uuid', and not 10 to 17"):
        read(frame(), accepted(frame(), identity=replace(IDENTITY, seq_end=17)))


def test_a_frame_of_another_kind_is_refused() -> None:
    with pytest.raises(ObjectRefused, match="It has samples, and the table takes logs"):
        read(frame(), accepted(frame(), FrameKind.LOGS))


def test_what_is_no_frame_is_refused() -> None:
    body = b"nonsense" * 10

    with pytest.raises(ObjectRefused, match="not a frame"):
        read(body, accepted(body))


def test_a_column_that_the_table_lacks_is_never_dropped_in_silence() -> None:
    columns = landed_columns(FrameKind.SAMPLES)

    with pytest.raises(RowsRejected, match="unit"):
        read(frame(), accepted(frame()), columns.remove(columns.get_field_index("unit")))


def test_columns_of_the_table_that_frames_do_not_have_are_null() -> None:
    rows, _ = read(frame(), accepted(frame()), landed_columns(FrameKind.SAMPLES).append(pa.field("mine", pa.int64())))

    assert {row["mine"] for row in rows} == {None}


def test_a_frame_is_read_without_its_manifest_for_people() -> None:
    assert infer_columns(pa.BufferReader(frame()), FORMAT) == landed_columns(FrameKind.SAMPLES)
    rows, _ = read(frame(), None, pa.schema([("seq", pa.int64()), ("metric", pa.string())]))

    assert [row["seq"] for row in rows] == list(range(10, 17))


# --- in tasks


def a_frame(body: bytes, wanted: AcceptedFrame, unit: str = "accepted/a") -> ObjectToRead:
    return ObjectToRead(unit=Unit(unit), uri="s3://bucket/blob", content=body, frame=wanted)


def frames_job(folder: Path) -> ReadingJob:
    return replace(a_job(folder, *landed_columns(FrameKind.SAMPLES)), format=FORMAT)


def test_a_task_writes_the_wanted_records_and_one_bad_frame_costs_itself_alone(tmp_path: Path) -> None:
    good = a_frame(frame(), accepted(frame(), spans=((12, 14),)))
    bad = a_frame(frame(compress=True), accepted(frame()), unit="accepted/b")

    report = read_objects(frames_job(tmp_path), "task", [bad, good])

    assert in_files(report.files) == [("s3://bucket/blob", 2), ("s3://bucket/blob", 3)]
    assert [(each.unit.id, each.rows) for each in report.read] == [("accepted/a", 2)]
    assert list(report.failed) == [Unit("accepted/b")]
    assert report.failed[Unit("accepted/b")].reason.startswith("Its frame s3://bucket/blob: It is not the frame")


def test_a_frame_that_does_not_exist_fails_its_unit_by_name(tmp_path: Path) -> None:
    missing = ObjectToRead(unit=Unit("u"), uri=(tmp_path / "none").as_uri(), frame=accepted(frame()))

    report = read_objects(frames_job(tmp_path), "task", [missing])

    assert report.failed[Unit("u")].reason == f"Its frame {missing.uri}: It does not exist."


def test_a_frame_of_a_newer_version_is_not_a_failed_one(tmp_path: Path) -> None:
    newer = with_number(frame(), VERSION_AT, 2, 9)
    with pytest.raises(NewerFormat):
        read(newer, accepted(newer))

    report = read_objects(frames_job(tmp_path), "task", [a_frame(newer, accepted(newer))])

    assert report.newer_format is not None
    assert report.failed == {}
