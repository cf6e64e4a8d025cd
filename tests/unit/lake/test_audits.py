"""Audits of files, without a JVM: each fault is planted, and each is told."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from lakehead.lake.audits import at_least, every_row_once, no_null
from lakehead.lake.landing import Landing, Unit, UnitRemainder
from lakehead.lake.ports import AuditFailed, Staged
from lakehead.lake.staged_rows import NewFiles, Read
from tests.unit.lake.local_table import create, local_catalog, stage

A, B, C = Unit("unit-a"), Unit("unit-b"), Unit("unit-c")
READS = (Read(A, 0, 2), Read(A, 1, 1), Read(B, 0, 0))
SCHEMA = Schema(NestedField(1, "key", StringType()), NestedField(2, "other.key", LongType()))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with local_catalog(tmp_path) as opened:
        yield opened


def some_rows(*keys: str | None, others: list[int | None] | None = None) -> pa.RecordBatch:
    columns = [pa.array(keys, pa.string()), pa.array(others or range(len(keys)), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, names=["key", "other.key"])


@pytest.fixture
def staged(catalog: Catalog) -> Staged[NewFiles]:
    """Three rows of two units, as they should be."""
    good = stage(create(catalog, "audited", SCHEMA), some_rows("a", "b", "c"))
    rows = replace(good.rows, reads=READS, parts=3)
    return replace(good, rows=rows, landing=Landing("token", (UnitRemainder(A), UnitRemainder(B))))


def but(staged: Staged[NewFiles], *reads: Read, parts: int = 3) -> Staged[NewFiles]:
    return replace(staged, rows=replace(staged.rows, reads=reads, parts=parts))


def test_rows_that_are_as_they_should_be_pass_every_audit(staged: Staged[NewFiles]) -> None:
    for audit in (every_row_once, no_null(["key", "other.key"]), at_least(3)):
        audit(staged)


def test_a_reader_that_lies_about_its_rows_is_found_out(staged: Staged[NewFiles]) -> None:
    with pytest.raises(AuditFailed, match=r"4 rows were read and 3 were written\."):
        every_row_once(but(staged, *READS[:2], Read(B, 0, 1)))


def test_a_file_that_was_lost_on_the_way_is_missed(staged: Staged[NewFiles]) -> None:
    with pytest.raises(AuditFailed, match=r"3 rows were read and 0 were written\."):
        every_row_once(replace(staged, rows=replace(staged.rows, files=())))


def test_a_part_that_nobody_read_is_missed(staged: Staged[NewFiles]) -> None:
    with pytest.raises(AuditFailed, match=r"3 parts were to be read, and 2 were\."):
        every_row_once(but(staged, *READS[:2]))
    with pytest.raises(AuditFailed, match=r"3 parts were to be read, and 0 were\."):
        every_row_once(but(staged))


def test_a_part_that_was_read_twice_is_found(staged: Staged[NewFiles]) -> None:
    with pytest.raises(AuditFailed, match=r"Unit 'unit-b' was read more than once\."):
        every_row_once(but(staged, READS[0], READS[2], READS[2]))


def test_a_unit_that_was_not_planned_is_found(staged: Staged[NewFiles]) -> None:
    with pytest.raises(AuditFailed, match=r"Unit 'unit-c' was read without being in the plan\."):
        every_row_once(but(staged, *READS[:2], Read(C, 0, 0)))


def test_a_unit_of_another_generation_is_another_unit(staged: Staged[NewFiles]) -> None:
    with pytest.raises(AuditFailed, match="without being in the plan"):
        every_row_once(but(staged, *READS[:2], Read(replace(B, generation=1), 0, 0)))


def test_a_null_in_a_key_is_found_in_whichever_file_and_row_group_it_is(catalog: Catalog) -> None:
    table = create(catalog, "nulls", SCHEMA, properties={"write.parquet.row-group-limit": "2"})
    staged = stage(table, some_rows("a", "b", "c", None, "e", None, others=[1, None, 3, 4, 5, 6]))

    with pytest.raises(AuditFailed, match=r"1 rows of .* have no value in the key column 'key'"):
        no_null(["key"])(staged)
    with pytest.raises(AuditFailed, match=r"no value in the key column 'other\.key'"):
        no_null(["other.key"])(staged)


def test_a_key_that_the_files_do_not_have_is_not_passed_over(staged: Staged[NewFiles]) -> None:
    with pytest.raises(AuditFailed, match="no column 'kye'"):
        no_null(["key", "kye"])(staged)


def test_files_without_statistics_cannot_be_audited(staged: Staged[NewFiles]) -> None:
    told = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": ["a"], "other.key": [1]}), told, write_statistics=False)
    metadata = pa.BufferOutputStream()
    pq.read_metadata(pa.BufferReader(told.getvalue())).write_metadata_file(metadata)
    file = replace(staged.rows.files[0], footer=metadata.getvalue().to_pybytes())

    with pytest.raises(AuditFailed, match="'key' has no statistics to audit"):
        no_null(["key"])(replace(staged, rows=replace(staged.rows, files=(file,))))


def test_fewer_rows_than_expected_are_held_back(staged: Staged[NewFiles]) -> None:
    with pytest.raises(AuditFailed, match=r"3 rows were written, and at least 4 were expected\."):
        at_least(4)(staged)


def test_no_rows_at_all_pass_unless_some_were_expected(catalog: Catalog) -> None:
    nothing = stage(create(catalog, "nothing", SCHEMA))

    every_row_once(nothing)
    no_null(["key"])(nothing)
    with pytest.raises(AuditFailed, match="0 rows"):
        at_least(1)(nothing)
