"""Publishing files without a JVM: what is appended, what is overwritten, and what is said of each file."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.lake.commits import Changes, publication
from lakehead.lake.datafiles import Key, same_partition
from lakehead.lake.iceberg_table import COMMITS, IcebergTable, head_of
from lakehead.lake.ports import HistoryBroken, Moved
from lakehead.lake.staged_rows import Change
from lakehead.lake.stagers import target_of
from lakehead.maintain.places import place
from tests.unit.lake.local_table import create, local_catalog, publish, stage

NOON = datetime(2026, 11, 16, 12)  # noqa: DTZ001 - without a zone on purpose
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001
NAN = float("nan")
PLAIN = Schema(NestedField(1, "p", StringType()), NestedField(2, "v", LongType()))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with local_catalog(tmp_path) as opened:
        yield opened


def by(transform: str, source: int = 1) -> PartitionSpec:
    return PartitionSpec(PartitionField(source, 1000, parse_transform(transform), "part"))


def rows(table: IcebergTable, partitions: list[Any], value: int) -> pa.RecordBatch:
    schema = target_of(table.load()).schema
    columns = [pa.array(partitions, schema.field("p").type), pa.array([value] * len(partitions), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def content(table: IcebergTable) -> list[tuple[Any, int]]:
    read = table.load().scan().to_arrow()
    return sorted(zip(read["p"].to_pylist(), read["v"].to_pylist(), strict=True), key=repr)


def alike(some: Iterable[tuple[Any, int]]) -> Counter[tuple[Any, ...]]:
    """Rows such that NaN is itself."""
    return Counter(same_partition(row) for row in some)


def summary(table: IcebergTable) -> dict[str, str]:
    snapshot = table.load().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}


OVERWRITTEN: list[tuple[IcebergType, str, list[Any]]] = [
    (BooleanType(), "identity", [True, False, None]),
    (IntegerType(), "identity", [-5, 2, None]),
    (LongType(), "identity", [-5, 2**62, None]),
    (FloatType(), "identity", [0.5, NAN, None]),
    (DoubleType(), "identity", [NAN, float("inf"), -0.0, 0.0]),
    (DoubleType(), "identity", [0.0, -0.0, NAN]),
    (DecimalType(9, 2), "identity", [Decimal("-1.05"), Decimal("3.00"), None]),
    (DecimalType(38, 10), "identity", [Decimal("-1.0500000000"), Decimal(3), None]),
    (DateType(), "identity", [date(1969, 1, 1), date(2026, 1, 1), None]),
    (TimestampType(), "identity", [BEFORE, NOON, None]),
    (TimestamptzType(), "identity", [BEFORE.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC), None]),
    (TimeType(), "identity", [time(1), time(2), None]),
    (StringType(), "identity", ["ü", "", "a'b", None]),
    (BinaryType(), "identity", [b"\xff", b"", None]),
    (UUIDType(), "identity", [UUID(int=5), UUID(int=2**127), None]),
    (FixedType(3), "identity", [b"abc", b"\xff\xff\xff", None]),
    (TimestampType(), "year", [BEFORE, NOON, None]),
    (TimestampType(), "month", [BEFORE, NOON, None]),
    (TimestampType(), "day", [BEFORE, NOON, None]),
    (TimestamptzType(), "hour", [BEFORE.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC), None]),
    (DateType(), "month", [date(1969, 1, 1), date(2026, 1, 1), None]),
    (LongType(), "truncate[10]", [-5, 25, None]),
    (StringType(), "truncate[2]", ["aaa", "bbb", None]),
    (BinaryType(), "truncate[2]", [b"aaa", b"bbb", None]),
    (DecimalType(9, 2), "truncate[100]", [Decimal("-1.05"), Decimal("3.00"), None]),
    (UUIDType(), "bucket[16]", [UUID(int=5), UUID(int=2**127), None]),
    (StringType(), "bucket[16]", ["a", "b", None]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "transform", "values"), OVERWRITTEN, ids=str)
def test_the_partitions_that_new_rows_are_in_lose_what_they_held_and_the_others_keep_it(
    catalog: Catalog, kind: IcebergType, transform: str, values: list[Any]
) -> None:
    schema = Schema(NestedField(1, "p", kind), NestedField(2, "v", LongType()))
    table = create(catalog, "parted", schema, partition_spec=by(transform))
    publish(table, rows(table, values, 1))
    publish(table, rows(table, values, 2))

    publish(table, rows(table, [values[0], values[-1]], 3), change=Change.OVERWRITE_PARTITIONS)

    kept = [(value, number) for value in values[1:-1] for number in (1, 2)]
    assert alike(content(table)) == alike([*kept, (values[0], 3), (values[-1], 3)])

    publish(table, rows(table, [values[1]], 4), change=Change.REPLACE)

    assert alike(content(table)) == alike([(values[1], 4)])


def test_a_table_without_partitions_is_one_partition(catalog: Catalog) -> None:
    table = create(catalog, "whole", PLAIN)
    for number in range(3):
        publish(table, rows(table, ["a"], number))

    publish(table, rows(table, ["b"], 9), change=Change.OVERWRITE_PARTITIONS)

    assert content(table) == [("b", 9)]
    assert summary(table)["operation"] == "overwrite"
    assert (summary(table)["total-records"], summary(table)["deleted-data-files"]) == ("1", "3")


@pytest.mark.parametrize(
    ("change", "left"),
    [(Change.APPEND, [("a", 1)]), (Change.OVERWRITE_PARTITIONS, [("a", 1)]), (Change.REPLACE, [])],
)
def test_no_rows_are_a_snapshot_all_the_same(catalog: Catalog, change: Change, left: list[tuple[str, int]]) -> None:
    table = create(catalog, "empty", PLAIN, partition_spec=by("identity"))
    publish(table, change=change)
    assert len(table.load().metadata.snapshots) == 1
    publish(table, rows(table, ["a"], 1))

    publish(table, change=change)

    assert content(table) == left
    assert summary(table)["lakehead.token"] == "token"
    assert len(table.load().metadata.snapshots) == 3


def test_partitions_are_not_overwritten_one_by_one_where_files_of_an_earlier_partitioning_are(catalog: Catalog) -> None:
    table = create(catalog, "evolved", PLAIN, partition_spec=by("identity"))
    publish(table, rows(table, ["a", "b"], 1))
    with table.load().update_spec() as update:
        update.add_field("v", BucketTransform(4), "v_bucket")

    with pytest.raises(Misconfigured, match=r"files of an earlier partitioning.*rewrite_data_files"):
        publish(table, rows(table, ["a"], 2), change=Change.OVERWRITE_PARTITIONS)
    assert content(table) == [("a", 1), ("b", 1)]

    publish(table, rows(table, ["c"], 3))
    assert content(table) == [("a", 1), ("b", 1), ("c", 3)]
    publish(table, rows(table, ["d"], 4), change=Change.REPLACE)
    assert content(table) == [("d", 4)]


def test_a_table_that_was_partitioned_once_is_replaced_as_a_whole(catalog: Catalog) -> None:
    table = create(catalog, "once", PLAIN, partition_spec=by("identity"))
    publish(table, rows(table, ["a", None], 1))
    with table.load().update_spec() as update:
        update.remove_field("part")
    publish(table, rows(table, ["b"], 2))

    publish(table, rows(table, ["c"], 3), change=Change.REPLACE)

    assert content(table) == [("c", 3)]


EVERYTHING = Schema(
    NestedField(1, "boolean", BooleanType()),
    NestedField(2, "int", IntegerType()),
    NestedField(3, "long", LongType(), required=True),
    NestedField(4, "float", FloatType()),
    NestedField(5, "double", DoubleType()),
    NestedField(6, "d9", DecimalType(9, 2)),
    NestedField(7, "d18", DecimalType(18, 4)),
    NestedField(8, "d38", DecimalType(38, 10)),
    NestedField(9, "date", DateType()),
    NestedField(10, "time", TimeType()),
    NestedField(11, "moment", TimestampType()),
    NestedField(12, "moment in a zone", TimestamptzType()),
    NestedField(13, "text", StringType()),
    NestedField(14, "uuid", UUIDType()),
    NestedField(15, "fixed", FixedType(3)),
    NestedField(16, "binary", BinaryType()),
    NestedField(17, "list", ListType(18, StringType(), element_required=False)),
    NestedField(19, "map", MapType(20, StringType(), 21, LongType(), value_required=False)),
    NestedField(
        22,
        "struct",
        StructType(
            NestedField(23, "x", LongType()),
            NestedField(24, "deep", ListType(25, DoubleType(), element_required=False)),
        ),
    ),
    NestedField(26, "always null", StringType()),
    NestedField(27, "ünï cödé", StringType()),
)


def everything(table: IcebergTable) -> pa.RecordBatch:
    long_text = "ü" * 40
    values: dict[str, list[Any]] = {
        "boolean": [True, False, None],
        "int": [-(2**31), 2**31 - 1, None],
        "long": [-(2**63), 2**63 - 1, 0],
        "float": [0.5, NAN, None],
        "double": [float("-inf"), 0.1, None],
        "d9": [Decimal("-9999999.99"), Decimal("0.01"), None],
        "d18": [Decimal("-1.5"), Decimal("99999999999999.9999"), None],
        "d38": [Decimal("-1.0000000001"), Decimal("9999999999999999999999999999.9999999999"), None],
        "date": [date(1, 1, 1), date(9999, 12, 31), None],
        "time": [time(), time(23, 59, 59, 999_999), None],
        "moment": [BEFORE, NOON, None],
        "moment in a zone": [BEFORE.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC), None],
        "text": ["", long_text, None],
        "uuid": [UUID(int=0), UUID(int=2**128 - 1), None],
        "fixed": [b"\0\0\0", b"\xff\xff\xff", None],
        "binary": [b"", b"\xff" * 40, None],
        "list": [["a", None], [], None],
        "map": [[("k", 1), ("l", None)], [], None],
        "struct": [{"x": 1, "deep": [1.5, NAN]}, {"x": None, "deep": None}, None],
        "always null": [None, None, None],
        "ünï cödé": ["a", "b", None],
    }
    schema = target_of(table.load()).schema
    return pa.RecordBatch.from_arrays([pa.array(values[field.name], field.type) for field in schema], schema=schema)


def told_of_files(table: IcebergTable) -> list[dict[str, Any]]:
    """What the manifests say of each file, other than its name."""
    iceberg = table.load()
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    files = [
        entry.data_file
        for manifest in snapshot.manifests(iceberg.io)
        for entry in manifest.fetch_manifest_entry(iceberg.io)
    ]
    words = ["content", "file_format", "partition", "record_count", "spec_id", "sort_order_id"]
    by_column = ["value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"]
    told = [
        {word: getattr(file, word) for word in words}
        | {word: dict(sorted((getattr(file, word) or {}).items())) for word in by_column}
        for file in files
    ]
    return sorted(told, key=repr)


@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, by("bucket[4]", 3), by("identity", 13)], ids=str)
@pytest.mark.parametrize("metrics", [{}, {"write.metadata.metrics.default": "full"}], ids=str)
def test_our_files_are_told_of_as_pyiceberg_tells_of_its_own(
    catalog: Catalog, spec: PartitionSpec, metrics: dict[str, str]
) -> None:
    ours = create(catalog, "ours", EVERYTHING, partition_spec=spec, properties=metrics)
    twin = create(catalog, "twin", EVERYTHING, partition_spec=spec, properties=metrics)

    publish(ours, everything(ours))
    twin.load().append(pa.Table.from_batches([everything(ours)]))

    assert told_of_files(ours) == told_of_files(twin)
    read, twins = (table.load().scan().to_arrow().sort_by("long").to_pylist() for table in (ours, twin))
    assert repr(read) == repr(twins), "as text, where NaN is itself"
    assert summary(ours)["total-records"] == summary(twin)["total-records"] == "3"


def test_pyiceberg_skips_our_files_by_partition_and_by_bounds(catalog: Catalog) -> None:
    table = create(catalog, "pruned", PLAIN, partition_spec=by("identity"))
    publish(table, rows(table, ["a", "b", "c"], 1))
    publish(table, rows(table, ["a"], 2))

    planned = {where: len(list(table.load().scan(where).plan_files())) for where in ("p == 'a'", "v > 1", "v > 2")}

    assert planned == {"p == 'a'": 2, "v > 1": 1, "v > 2": 0}


def test_how_files_are_written_is_read_from_the_table(catalog: Catalog, tmp_path: Path) -> None:
    table = create(
        catalog,
        "told",
        PLAIN,
        partition_spec=PartitionSpec(
            PartitionField(2, 1000, BucketTransform(8), "bucket"), PartitionField(1, 1001, IdentityTransform(), "p")
        ),
        sort_order=SortOrder(SortField(2, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST), SortField(1)),
        properties={
            "write.data.path": f"file://{tmp_path}/elsewhere/",
            "write.target-file-size-bytes": "1000",
            "write.parquet.row-group-limit": "7",
            "write.parquet.compression-codec": "gzip",
        },
    )

    target = target_of(table.load())

    assert (target.uri, target.folder) == (f"file://{tmp_path}/elsewhere", f"{tmp_path}/elsewhere")
    assert target.partition == (Key("v", "bucket[8]"), Key("p"))
    assert target.order == (Key("v", descending=True, nulls_first=False), Key("p"))
    assert (target.file_bytes, target.row_group_rows, target.parquet["compression"]) == (1000, 7, "gzip")
    publish(table, rows(table, ["a"], 1))
    (file,) = table.load().inspect.files().to_pylist()
    assert file["file_path"].startswith(f"file://{tmp_path}/elsewhere/")
    assert file["sort_order_id"] == 1


def test_a_table_partitioned_by_what_is_inside_a_column_is_refused(catalog: Catalog) -> None:
    schema = Schema(NestedField(1, "s", StructType(NestedField(2, "x", LongType()))))
    table = create(catalog, "inside", schema, partition_spec=by("identity", 2))

    with pytest.raises(Misconfigured, match=r"partitioned or sorted by 's\.x', which is a nested field"):
        target_of(table.load())


def test_files_of_an_older_schema_are_published_under_it(catalog: Catalog) -> None:
    table = create(catalog, "wider", PLAIN)
    staged = stage(table, rows(table, ["a"], 1))
    with table.load().update_schema() as update:
        update.add_column("more", StringType())

    asyncio.run(table.publish(staged, staged.at))

    assert table.load().scan().to_arrow().to_pylist() == [{"p": "a", "v": 1, "more": None}]


def test_a_property_that_changes_between_staging_and_publishing_is_no_trouble(catalog: Catalog) -> None:
    table = create(catalog, "property", PLAIN)
    staged = stage(table, rows(table, ["a"], 1))

    def changes(iceberg: Any) -> Any:
        made = publication(iceberg, staged.rows, {})
        with catalog.load_table(table.name).transaction() as transaction:  # this commit has looked, and is not made yet
            transaction.set_properties({"somebody": "was here"})
        return made

    table.commit(staged.at, changes)

    assert content(table) == [("a", 1)]
    assert table.load().properties["somebody"] == "was here"


def test_a_commit_that_was_refused_is_made_anew_while_main_stays(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = create(catalog, "refused", PLAIN)
    staged = stage(table, rows(table, ["a"], 1))
    commit = catalog.commit_table
    refusals: list[Any] = []

    def refuse_twice(*asked: Any) -> Any:
        if len(refusals) < 2:
            refusals.append(asked)
            raise CommitFailedException("other metadata was in the way")
        return commit(*asked)

    monkeypatch.setattr(catalog, "commit_table", refuse_twice)
    asyncio.run(table.publish(staged, staged.at))

    assert content(table) == [("a", 1)]


def test_files_are_not_published_where_main_has_moved(catalog: Catalog) -> None:
    table = create(catalog, "moved", PLAIN)
    staged = stage(table, rows(table, ["a"], 1))
    publish(table, rows(table, ["b"], 2))

    with pytest.raises(Moved, match="moved from snapshot None"):
        asyncio.run(table.publish(staged, staged.at))
    assert content(table) == [("b", 2)]


@pytest.mark.parametrize(("moves", "error"), [(True, Moved), (False, FileNotFoundError)])
def test_files_of_metadata_that_an_expiry_takes_during_a_commit_mean_that_main_has_moved(
    catalog: Catalog,
    moves: bool,  # noqa: FBT001 - a case
    error: type[Exception],
) -> None:
    table = create(catalog, "taken", PLAIN)
    publish(table, rows(table, ["a"], 1))
    staged = stage(table, rows(table, ["a"], 2))

    def overtaken(seen: Iceberg) -> Changes:
        if moves:
            publish(table, rows(table, ["a"], 3))
        (main,) = seen.metadata.snapshots
        Path(place(main.manifest_list)).unlink()
        return publication(seen, staged.rows, {})

    with pytest.raises(error):
        table.commit(staged.at, overtaken)


def test_files_are_not_published_where_the_partitioning_has_changed(catalog: Catalog) -> None:
    table = create(catalog, "respecified", PLAIN)
    staged = stage(table, rows(table, ["a"], 1))
    with table.load().update_spec() as update:
        update.add_field("p", IdentityTransform(), "p")

    with pytest.raises(Moved, match="partitions were changed"):
        asyncio.run(table.publish(staged, staged.at))
    assert table.load().current_snapshot() is None


def test_files_are_not_published_into_a_table_that_has_taken_the_others_name(catalog: Catalog) -> None:
    table = create(catalog, "again", PLAIN)
    staged = stage(table, rows(table, ["a"], 1))
    catalog.drop_table("t.again")
    with pytest.raises(HistoryBroken, match="was dropped while it was in use"):
        asyncio.run(table.publish(staged, staged.at))

    other = create(catalog, "again", PLAIN)

    with pytest.raises(HistoryBroken, match="was replaced while it was in use"):
        asyncio.run(table.publish(staged, staged.at))
    assert head_of(other.load().metadata).snapshot is None


def test_what_a_catalog_answers_is_told_apart(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(catalog, "answers", PLAIN)
    staged = stage(table, rows(table, ["a"], 1))
    refusals = []

    def refuse(*_: Any) -> None:
        refusals.append(1)
        raise CommitFailedException("somebody was faster")

    def vanish(*_: Any) -> None:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(catalog, "commit_table", refuse)
    with pytest.raises(Unavailable, match="somebody was faster"):
        asyncio.run(table.publish(staged, staged.at))
    assert len(refusals) == COMMITS.attempts

    monkeypatch.setattr(catalog, "commit_table", vanish)
    with pytest.raises(OutcomeUnknown, match=r"did not say whether a commit to t\.answers was made"):
        asyncio.run(table.publish(staged, staged.at))


def test_a_table_of_the_first_format_is_refused_with_what_to_do(catalog: Catalog) -> None:
    with pytest.raises(Misconfigured, match=r"ALTER TABLE lake\.t\.old SET TBLPROPERTIES"):
        create(catalog, "old", PLAIN, properties={"format-version": "1"})


def with_format(table: IcebergTable, version: int) -> None:
    """Let a table have another format version, as after another writer's commit."""
    file = Path(table.load().metadata_location.removeprefix("file://"))
    raised = file.with_name(f"99999-raised-{version}.metadata.json")
    raised.write_text(json.dumps({**json.loads(file.read_text()), "format-version": version, "next-row-id": 0}))
    table.catalog.drop_table(table.name)
    table.catalog.register_table(table.name, raised.as_uri())


def test_a_table_of_a_later_format_is_refused_before_anything_is_staged(catalog: Catalog) -> None:
    table = create(catalog, "later", PLAIN)
    with_format(table, 3)

    with pytest.raises(Misconfigured, match=r"t\.later has format version 3, and Lakehead writes version 2"):
        IcebergTable(catalog, "t.later", table._ledger)


def test_a_table_whose_format_is_raised_while_it_is_in_use_is_refused_with_the_same_words(catalog: Catalog) -> None:
    table = create(catalog, "raised", PLAIN)
    staged = stage(table, rows(table, ["a"], 1))
    with_format(table, 3)

    with pytest.raises(Misconfigured, match=r"t\.raised has format version 3, and Lakehead writes version 2"):
        asyncio.run(table.publish(staged, staged.at))


def test_a_table_that_is_not_there_is_missed_by_name(catalog: Catalog) -> None:
    table = create(catalog, "there", PLAIN)

    with pytest.raises(Misconfigured, match=r"no table t\.absent in the catalog lake"):
        IcebergTable(catalog, "t.absent", table._ledger)


def test_bounds_cover_row_groups_whose_values_are_too_long_for_statistics(catalog: Catalog) -> None:
    texts = Schema(NestedField(1, "p", StringType()), NestedField(2, "v", LongType()))
    table = create(catalog, "long", texts, properties={"write.parquet.row-group-limit": "2"})
    last = "z" * 5_000
    publish(table, rows(table, ["a", "b", last, "c"], 1))

    [task] = table.load().scan().plan_files()
    assert pq.ParquetFile(task.file.file_path.removeprefix("file://")).num_row_groups == 2
    assert (1 in (task.file.lower_bounds or {}), 2 in (task.file.lower_bounds or {})) == (False, True)
    assert table.load().scan(row_filter=f"p = '{last}'").to_arrow().num_rows == 1
