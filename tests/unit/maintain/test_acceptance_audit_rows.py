"""Rows of tables are compared with accepted batches by sequence number: each is there once, and no other is."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import DataScan, FileScanTask, Table

from lakehead.consume.decode.frames import landed_columns
from lakehead.lake.tables import by_day, create_table, with_field_ids
from lakehead.maintain.acceptance_audit import AuditParts
from lakehead.maintain.acceptance_audit_numbers import AcceptedNumbers, GrowingSpans
from lakehead.maintain.acceptance_audit_report import AuditReport, FindingKind
from lakehead.maintain.acceptance_audit_rows import RowsUnread, TableRows, compare_rows, folded, read_rows
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.spans import merged
from tests.support.async_tests import async_test
from tests.unit.lake.local_table import local_catalog
from tests.unit.maintain.audit_support import BOOT, Authority, found, landed

COLUMNS = landed_columns(FrameKind.SAMPLES)
OTHER = ("agent-b", "boot-2")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with local_catalog(tmp_path) as opened:
        yield opened


@pytest.fixture
def table(catalog: Catalog) -> Table:
    schema = with_field_ids(COLUMNS)
    create_table(catalog, "t.samples", schema, partition=by_day(schema, "time"))
    return catalog.load_table("t.samples")


def rows(*numbers: int, boot: tuple[str | None, str | None] = BOOT) -> pa.Table:
    """Rows of a boot with these sequence numbers, on two days."""
    day = 86_400_000_000
    data = {
        "time": pa.array([number % 2 * day for number in numbers], pa.timestamp("us", "UTC")),
        "agent": pa.array([boot[0]] * len(numbers), pa.string()),
        "boot": pa.array([boot[1]] * len(numbers), pa.string()),
        "seq": pa.array(numbers, pa.int64()),
    }
    return pa.table({name: data.get(name, pa.nulls(len(numbers), COLUMNS.field(name).type)) for name in COLUMNS.names})


def reader(table: Table) -> Callable[..., TableRows]:
    return lambda _kind, *, progress: read_rows(table.refresh(), progress=progress)


def test_rows_are_folded_into_ranges_by_boot_whatever_files_they_are_in(table: Table) -> None:
    table.append(rows(*range(0, 20, 2), *range(100, 110)))
    table.append(rows(*range(1, 20, 2)))
    table.append(pa.concat_tables([rows(7, 3, 5, boot=OTHER), rows(4, 6, boot=(BOOT[0], OTHER[1]))]))
    seen: list[int] = []

    read = read_rows(table, progress=seen.append)

    assert read.boots == {
        BOOT: ((0, 20), (100, 110)),
        OTHER: ((3, 4), (5, 6), (7, 8)),
        (BOOT[0], OTHER[1]): ((4, 5), (6, 7)),
    }
    assert (read.doubled, read.rows, read.without_identity) == ({}, 35, 0)
    assert seen == sorted(seen)
    assert seen[-1] == 35


def test_doubled_rows_are_found_within_a_file_and_between_files(table: Table) -> None:
    table.append(rows(2, 4, 4, 4, 6))
    table.append(rows(6, 8))

    assert read_rows(table).doubled == {BOOT: ((4, 5), (6, 7))}


def test_rows_that_are_no_record_are_counted(table: Table) -> None:
    table.append(pa.concat_tables([rows(1, 2), rows(3, boot=(None, "b")), rows(4, boot=("a", None))]))

    read = read_rows(table)

    assert (read.boots, read.without_identity) == ({BOOT: ((1, 3),)}, 2)


def test_deletes_by_position_are_applied(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append(rows(0, 2, 4, 6))
    [task] = table.scan().plan_files()
    file = tmp_path / "deletes.parquet"
    places = {"file_path": [task.file.file_path] * 2, "pos": pa.array([1, 3], pa.int64())}
    pq.write_table(pa.table(places), file)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=str(file),
        file_format=FileFormat.PARQUET,
        partition=task.file.partition,
        record_count=2,
        file_size_in_bytes=file.stat().st_size,
    )
    monkeypatch.setattr(DataScan, "plan_files", lambda _: [FileScanTask(task.file, delete_files={deletes})])

    assert read_rows(table).boots == {BOOT: ((0, 1), (4, 5))}


def test_folding_equals_counting() -> None:
    random = Random(7)
    for _ in range(300):
        numbers = [random.randrange(30) for _ in range(random.randrange(1, 40))]
        spans, doubled = folded(np.array(numbers, np.int64))
        assert spans == merged((each, each + 1) for each in numbers)
        assert doubled == merged((each, each + 1) for each in numbers if numbers.count(each) > 1)


def test_numbers_grow_as_if_they_were_merged() -> None:
    random = Random(7)
    for _ in range(300):
        spans = [(start, start + random.randrange(1, 9)) for start in random.choices(range(60), k=12)]
        growing = GrowingSpans()
        for span in spans:
            growing.add(*span)
        assert growing.merged == merged(spans)


@async_test
async def test_a_deep_audit_finds_rows_that_are_missing_doubled_and_of_no_batch(table: Table, tmp_path: Path) -> None:
    authority = Authority()
    await authority.accept_many(5)
    await authority.accept(BatchIdentity(*OTHER, 0, 9), kind="logs")
    with landed(tmp_path, authority.store, (0, 50)) as (_, check):
        parts = AuditParts(landed=check, rows=reader(table))
        table.append(rows(*range(50)))
        clean = await authority.audit(parts, deep=True)
        shallow_parts = await authority.audit(parts)
        table.delete("seq = 17")
        table.append(rows(30, 31, 70))
        table.append(rows(5, boot=OTHER))
        report = await authority.audit(parts, deep=True)
        of_others = await authority.audit(parts, deep=True, agents=("agent-c",))

    assert (clean.counts, clean.rows, shallow_parts.rows) == ({}, 50, 0)
    named = found(report)
    named[FindingKind.ROWS_UNKNOWN].sort()
    assert named == {
        FindingKind.ROWS_MISSING: ["agent 'agent-a', boot 'boot-1', 17-17"],
        FindingKind.ROWS_DOUBLED: ["agent 'agent-a', boot 'boot-1', 30-31"],
        FindingKind.ROWS_UNKNOWN: [
            "agent 'agent-a', boot 'boot-1', 70-70",
            "agent 'agent-b', boot 'boot-2', 5-5",
        ],
    }
    assert of_others.counts == {}


@async_test
async def test_what_is_discarded_needs_no_row_and_an_overlap_needs_one(table: Table, tmp_path: Path) -> None:
    authority = Authority()
    first = await authority.accept(BatchIdentity(*BOOT, 0, 9))
    second = await authority.accept(BatchIdentity(*BOOT, 5, 14))
    await authority.overlap(second, first)
    discarded = await authority.accept(BatchIdentity(*BOOT, 15, 19))
    await authority.discard(discarded)
    table.append(rows(*range(15)))
    with landed(tmp_path, authority.store, (0, 15)) as (_, check):
        report = await authority.audit(AuditParts(landed=check, rows=reader(table)), deep=True)

    assert found(report) == {FindingKind.DISCARDED: [discarded.key]}


@async_test
async def test_rows_of_batches_that_were_accepted_after_the_scan_are_not_told(table: Table, tmp_path: Path) -> None:
    authority = Authority()
    await authority.accept_many(1)
    table.append(rows(*range(30)))

    with landed(tmp_path, authority.store, (0, 30)) as (_, check):

        def read(_kind: FrameKind, *, progress: Callable[[int], object]) -> TableRows:
            asyncio.run(authority.accept_many(2))
            return read_rows(table, progress=progress)

        report = await authority.audit(AuditParts(landed=check, rows=read), deep=True)

    assert found(report) == {FindingKind.ROWS_UNKNOWN: ["agent 'agent-a', boot 'boot-1', 20-29"]}


@async_test
async def test_a_table_that_cannot_be_read_is_a_problem_and_the_rest_is_told(tmp_path: Path) -> None:
    authority = Authority()
    await authority.accept_many(1)

    def read(_kind: FrameKind, *, progress: object) -> TableRows:
        raise RowsUnread(f"equality deletes {progress is None}")

    with landed(tmp_path, authority.store, (0, 10)) as (_, check):
        report = await authority.audit(AuditParts(landed=check, rows=read), deep=True)

    assert found(report) == {FindingKind.UNREADABLE: ["the table of samples"]}


def test_rows_without_an_identity_are_rows_of_no_batch() -> None:
    report = AuditReport(begun_at_unix_ns=0)

    compare_rows(FrameKind.SAMPLES, TableRows(rows=3, without_identity=2), AcceptedNumbers(), report)

    assert found(report) == {FindingKind.ROWS_UNKNOWN: ["2 rows in the table of samples"]}
