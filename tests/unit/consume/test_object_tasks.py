"""What a task makes of objects: which share files, and what one that fails leaves behind."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from lakehead.consume import object_tasks
from lakehead.consume.decode import decode, lines
from lakehead.consume.decode.rows import LANDED_AT, RESCUED, ROW, URI, FormatName, ObjectFormat
from lakehead.consume.object_reader import ObjectReader, OpenedObject
from lakehead.consume.object_tasks import ObjectToRead, ReadingJob, TaskReport, read_objects
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.lake.conform import conform
from lakehead.lake.datafiles import DataFile, DataFiles, Key, Target
from lakehead.lake.landing import Unit

NOON_US = 1_800_000_000_000_000
OURS = [
    pa.field(URI, pa.string()),
    pa.field(ROW, pa.int64()),
    pa.field(LANDED_AT, pa.timestamp("us", "UTC")),
    pa.field(RESCUED, pa.string()),
]


def a_job(folder: Path, *columns: pa.Field, partition: tuple[Key, ...] = ()) -> ReadingJob:
    fields = [
        field.with_metadata({"PARQUET:field_id": str(number)})
        for number, field in enumerate([*columns, *OURS], start=1)
    ]
    target = Target(
        filesystem=LocalFileSystem(),
        folder=f"{folder}/data",
        uri=f"file://{folder}/data",
        schema=pa.schema(fields),
        partition=partition,
    )
    return ReadingJob(
        target=target, format=ObjectFormat(name=FormatName.NDJSON), stores={}, landed_at_us=NOON_US, split_bytes=2**20
    )


def an_object(unit: str, *rows: object, uri: str = "") -> ObjectToRead:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return ObjectToRead(unit=Unit(unit), uri=uri or unit, content=content, size=len(content))


def in_files(files: list[DataFile]) -> list[tuple[str, int]]:
    """The URI and row of all that is in files, in order."""
    tables = [pq.read_table(file.path) for file in files]
    return sorted(
        (uri, row) for table in tables for uri, row in zip(*(table[c].to_pylist() for c in (URI, ROW)), strict=True)
    )


N = pa.field("n", pa.int64())


def test_small_objects_share_a_file(tmp_path: Path) -> None:
    report = read_objects(a_job(tmp_path, N), "task", [an_object("a", {"n": 1}, {"n": 2}), an_object("b", {"n": 3})])

    assert len(report.files) == 1
    assert in_files(report.files) == [("a", 0), ("a", 1), ("b", 0)]
    assert [(each.unit.id, each.rows) for each in report.read] == [("a", 2), ("b", 1)]
    assert report.own_files == {Unit("a"): [], Unit("b"): []}
    assert pq.read_table(report.files[0].path)[LANDED_AT][0].value == NOON_US


def test_an_object_without_rows_is_read_and_has_no_file(tmp_path: Path) -> None:
    report = read_objects(a_job(tmp_path, N), "task", [an_object("a")])

    assert report.files == []
    assert [(each.unit.id, each.rows, each.bytes) for each in report.read] == [("a", 0, 0)]


def test_no_objects_are_no_files(tmp_path: Path) -> None:
    assert read_objects(a_job(tmp_path, N), "task", []) == TaskReport()


def test_an_object_that_fails_leaves_no_row_in_shared_files(tmp_path: Path) -> None:
    broken = ObjectToRead(unit=Unit("bad"), uri="bad", content=b'{"n": 1}\n{"n": 2}\n{nonsense\n')

    report = read_objects(a_job(tmp_path, N), "task", [an_object("a", {"n": 1}), broken, an_object("b", {"n": 2})])

    assert in_files(report.files) == [("a", 0), ("b", 0)]
    assert list(report.failed) == [Unit("bad")]
    assert not report.failed[Unit("bad")].temporary
    assert "3" in report.failed[Unit("bad")].reason


def test_a_large_object_has_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_tasks, "HELD_BYTES", 1_000)
    large = an_object("large", *({"n": number} for number in range(500)))

    report = read_objects(a_job(tmp_path, N), "task", [an_object("a", {"n": 1}), large])

    assert in_files(report.files) == [("a", 0)]
    assert in_files(report.own_files[Unit("large")]) == [("large", number) for number in range(500)]
    assert len({file.path for file in (*report.files, *report.own_files[Unit("large")])}) == 2


@pytest.mark.slow
def test_a_large_object_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_tasks, "HELD_BYTES", 1_000)
    monkeypatch.setattr("lakehead.consume.decode.rows.BATCH_BYTES", 1_000)
    lines = b"".join(b'{"n": %d}\n' % number for number in range(700_000))
    large = ObjectToRead(unit=Unit("large"), uri="large", content=lines + b"{nonsense\n")

    report = read_objects(a_job(tmp_path, N), "task", [large, an_object("a", {"n": 1})])

    assert list(report.failed) == [Unit("large")]
    assert Unit("large") not in report.own_files
    assert in_files(report.files) == [("a", 0)]
    assert [path.name for path in (tmp_path / "data").iterdir()] == [Path(report.files[0].path).name]


def test_new_columns_discard_everything_that_the_task_wrote(tmp_path: Path) -> None:
    report = read_objects(a_job(tmp_path, N), "task", [an_object("a", {"n": 1}), an_object("b", {"n": 1, "new": True})])

    assert report.new_columns == {"new": [pa.bool_()]}
    assert report.files == []
    assert list((tmp_path / "data").glob("*")) == []


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], LakeheadError | None]) -> list[str]:
    """Let the opening of objects fail. Returns the list of those that were asked for."""
    asked: list[str] = []

    def opened(_: ObjectReader, uri: str, *, version: str | None = None, etag: str | None = None) -> OpenedObject:
        del version, etag
        asked.append(uri)
        if (error := fails(uri)) is not None:
            raise error
        return OpenedObject(pa.BufferReader(b'{"n": 1}\n'), 9, None)

    monkeypatch.setattr(ObjectReader, "open", opened)
    return asked


def stored(*uris: str) -> list[ObjectToRead]:
    return [ObjectToRead(unit=Unit(uri), uri=uri) for uri in uris]


def test_a_bucket_that_does_not_answer_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = failing(monkeypatch, lambda uri: Unavailable("No answer.") if uri.startswith("s3://silent/") else None)

    report = read_objects(
        a_job(tmp_path, N), "task", stored("s3://silent/a", "s3://good/b", "s3://silent/c", "s3://good/d")
    )

    assert asked == ["s3://silent/a", "s3://good/b", "s3://good/d"]
    assert {unit.id for unit in report.failed} == {"s3://silent/a", "s3://silent/c"}
    assert all(failure.temporary for failure in report.failed.values())
    assert in_files(report.files) == [("s3://good/b", 0), ("s3://good/d", 0)]


def test_an_object_that_may_not_be_read_does_not_cost_the_others_of_its_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 forbids an object that does not exist, if the bucket may not be listed."""
    failing(monkeypatch, lambda uri: Misconfigured("Access denied.") if uri.endswith("/a") else None)

    report = read_objects(a_job(tmp_path, N), "task", stored("s3://bucket/a", "s3://bucket/b"))

    assert {unit.id: failure.temporary for unit, failure in report.failed.items()} == {"s3://bucket/a": True}
    assert in_files(report.files) == [("s3://bucket/b", 0)]


def test_a_file_that_does_not_answer_costs_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, lambda uri: Unavailable("Stale file handle.") if uri.endswith("/a") else None)

    report = read_objects(a_job(tmp_path, N), "task", stored("file:///in/a", "file:///in/b"))

    assert in_files(report.files) == [("file:///in/b", 0)]


def test_rows_that_cannot_be_written_fail_the_task_and_not_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written of the shared files is not known then: rows of objects that were read may be missing in them."""
    write, calls = DataFiles.write, []

    def breaks(self: DataFiles, batch: pa.RecordBatch) -> None:
        calls.append(batch)
        if len(calls) == 2:
            raise OSError("the connection was reset")
        write(self, batch)

    monkeypatch.setattr(DataFiles, "write", breaks)

    with pytest.raises(OSError, match="reset"):
        read_objects(a_job(tmp_path, N), "task", [an_object("a", {"n": 1}), an_object("b", {"n": 2})])
    assert list((tmp_path / "data").glob("*")) == []


def test_an_object_of_a_newer_format_is_not_a_failed_one_and_is_named(tmp_path: Path) -> None:
    job = replace(a_job(tmp_path, N), format=ObjectFormat(name=FormatName.KEY_VALUE))
    newer = ObjectToRead(unit=Unit("new"), uri="s3://bucket/new", content=b"LKB2 and what nobody knows yet")

    report = read_objects(job, "task", [newer])

    assert report.newer_format is not None
    assert report.newer_format.startswith("s3://bucket/new: ")
    assert (report.failed, report.read) == ({}, [])


def test_an_error_of_a_decoder_costs_its_object_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = decode.read_object

    def mistaken(source: pa.NativeFile, *args: object, **more: object) -> object:
        if source.size() == 9:
            raise ZeroDivisionError("oh")
        return real(source, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(object_tasks, "read_object", mistaken)

    report = read_objects(a_job(tmp_path, N), "task", [an_object("a", {"n": 1}), an_object("b", {"n": 12})])

    assert report.failed[Unit("a")].reason == "ZeroDivisionError: oh"
    assert in_files(report.files) == [("b", 0)]


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("change", ["truncated", "overwritten"])
def test_a_file_that_is_changed_while_it_is_read_is_read_again_and_leaves_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, size: str
) -> None:
    path, rows = tmp_path / "in.json", 50_000
    path.write_bytes(b'{"n": 1}\n' * rows)
    monkeypatch.setattr(object_tasks, "HELD_BYTES", 2**30 if size == "small" else 1)
    monkeypatch.setattr(lines, "BATCH_BYTES", 1_000)

    def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        monkeypatch.setattr(object_tasks, "conform", conform)
        with path.open("r+b") as file:
            file.write(b'{"n": 2}\n' * rows if change == "overwritten" else b"")
            file.truncate()
        return conform(batch, schema)

    monkeypatch.setattr(object_tasks, "conform", conformed)
    wanted = ObjectToRead(unit=Unit("u"), uri=path.as_uri())
    report = read_objects(a_job(tmp_path, N), "task", [wanted, an_object("a", {"n": 1})])

    assert report.failed[Unit("u")].temporary
    assert "replaced" in report.failed[Unit("u")].reason
    assert report.own_files.keys() == {Unit("a")}
    assert in_files([*report.files, *report.own_files[Unit("a")]]) == [("a", 0)]


def test_a_file_that_is_deleted_while_it_is_read_lands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "in.json"
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n')

    def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        path.unlink()
        return conform(batch, schema)

    monkeypatch.setattr(object_tasks, "conform", conformed)
    report = read_objects(a_job(tmp_path, N), "task", [ObjectToRead(unit=Unit("u"), uri=path.as_uri())])

    assert in_files(report.files) == [(path.as_uri(), 0), (path.as_uri(), 1)]
