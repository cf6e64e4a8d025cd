"""Two sides of one table: what either of Spark and PyIceberg writes, merges or compacts, both read the same."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, LongType, NestedField, UUIDType
from pyspark.sql import DataFrame, SparkSession

from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.lake.audits import NoDuplicates
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Unit, UnitRemainder
from lakehead.lake.merge import MergeStager
from lakehead.lake.ports import AuditFailed
from lakehead.lake.staged_rows import Change
from lakehead.lake.stagers import FrameStager
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed
from tests.support.commands import lakehead_command
from tests.support.spark import shared_session

pytestmark = pytest.mark.timeout(300)  # the very first start fetches jars and prepares quicker ones

NAN = float("nan")
BEFORE = datetime(1969, 12, 31, 23, 59, 59, 999_999)  # noqa: DTZ001 - without a zone on purpose
NOON = datetime(2026, 11, 16, 12)  # noqa: DTZ001 - without a zone on purpose


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory, seaweed: Seaweed) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("interop")
    more = {"rest": seaweed.rest_catalog(), "s3": seaweed.sqlite_catalog(folder / "s3.sqlite")}
    settings = Lakehouse.settings(folder, more)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


def reader(columns: dict[str, pa.Array]) -> Callable[[UnitRemainder], Iterable[pa.RecordBatch]]:
    """Whatever the unit, these rows."""

    def read(_: UnitRemainder) -> Iterable[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict(columns)

    return read


def land(lakehouse: Lakehouse, table: IcebergTable, unit: str, columns: dict[str, pa.Array]) -> None:
    assert lakehouse.land(table, unit, stager=lakehouse.arrow_stager(table, read=reader(columns)))


def read_by_spark(frame: DataFrame) -> tuple[int, int]:
    """How many data files Spark opens to read a frame, and how many rows it finds."""
    rows = len(frame.collect())
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    planned = [leaves.apply(place).metrics().apply("resultDataFiles").value() for place in range(leaves.size())]
    return sum(map(int, planned)), rows


TRANSFORMED = {
    "text": pa.array(["a", "b", None, "ü"]),
    "flag": pa.array([True, False, None, True]),
    "day": pa.array([date(1969, 12, 31), date(2026, 11, 16), None, date(1, 1, 1)]),
    "month": pa.array([date(1969, 12, 31), date(2026, 11, 16), None, date(1, 1, 1)]),
    "year": pa.array([BEFORE, NOON, None, NOON], pa.timestamp("us")),
    "hour": pa.array([BEFORE, NOON, None, NOON], pa.timestamp("us", "UTC")),
    "number": pa.array([-1, 2**62, None, -11], pa.int64()),
    "cut": pa.array(["abcdef", "ünïcödé", None, ""]),
    "price": pa.array([Decimal("-1.05"), Decimal("10.50"), None, Decimal("0.00")]),
    "shortened": pa.array([-1, 25, None, -11], pa.int32()),
    "binary": pa.array([b"\xff\xfe\xfd", b"", None, b"abcd"]),
}


def test_a_row_is_in_the_same_partition_whoever_writes_it_and_both_sides_skip_the_others(lakehouse: Lakehouse) -> None:
    spark = lakehouse.session
    table = lakehouse.create(
        "transforms",
        "text string, flag boolean, day date, month date, year timestamp_ntz, hour timestamp, number bigint, "
        "cut string, price decimal(9, 2), shortened int, binary binary",
        "PARTITIONED BY (text, flag, days(day), months(month), years(year), hours(hour), bucket(5, number), "
        "truncate(3, cut), bucket(7, price), truncate(10, shortened), truncate(2, binary))",
    )
    spark.sql("ALTER TABLE lake.t.transforms WRITE LOCALLY ORDERED BY number DESC NULLS LAST, truncate(2, cut)")
    table = lakehouse.table("transforms")

    land(lakehouse, table, "ours", TRANSFORMED)
    spark.createDataFrame(pa.table(TRANSFORMED)).writeTo("lake.t.transforms").append()

    told = spark.sql(
        "SELECT e.snapshot_id, f.partition FROM lake.t.transforms.files f JOIN lake.t.transforms.entries e "
        "ON f.file_path = e.data_file.file_path"
    ).collect()
    by_writer: dict[int, list[Any]] = {}
    for row in told:
        by_writer.setdefault(row.snapshot_id, []).append(tuple(row.partition))
    ours, theirs = by_writer.values()
    assert len(ours) == 4
    assert Counter(ours) == Counter(theirs)

    for where in (
        "text = 'ü'",
        "day = DATE '1969-12-31'",
        "hour < TIMESTAMP '1970-01-01 00:00:00'",
        "number = 4611686018427387904",
        "binary = X'FFFEFD'",
        "text IS NULL",
    ):
        found = read_by_spark(spark.table("lake.t.transforms").where(where))
        assert found == (2, 2), f"one file of each writer, with one row, where {where}"
    for where in ("text == 'ü'", "day == '1969-12-31'", "number == 4611686018427387904", "cut == 'abcdef'"):
        assert len(list(table.load().scan(where).plan_files())) == 2
        assert table.load().scan(where).to_arrow().num_rows == 2


EVERY_TYPE = {
    "boolean": pa.array([True, False, None]),
    "int": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
    "long": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
    "float": pa.array([0.5, NAN, None], pa.float32()),
    "double": pa.array([float("-inf"), NAN, float("inf")], pa.float64()),
    "d9": pa.array([Decimal("-9999999.99"), Decimal("0.01"), None]),
    "d18": pa.array([Decimal("-1.5"), Decimal("99999999999999.9999"), None]),
    "d38": pa.array([Decimal("-1.0000000001"), Decimal("9999999999999999999999999999.9999999999"), None]),
    "date": pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
    "moment": pa.array([BEFORE.replace(tzinfo=UTC), NOON.replace(tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    "plain_moment": pa.array([BEFORE, NOON, None]),
    "text": pa.array(["", "ü\U0001f600" * 30, None]),
    "binary": pa.array([b"", b"\xff" * 40, None]),
    "list": pa.array([["a", None], [], None], pa.list_(pa.string())),
    "map": pa.array([[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int64())),
    # PyIceberg reads a null list of structs as an empty one, whoever wrote it.
    "struct": pa.array([{"x": 1, "deep": [{"y": 1.5}, None]}, {"x": None, "deep": []}, None]),
    "a dotted.nämé": pa.array(["a", "b", None]),
}


def plain(value: Any) -> Any:
    """A value such that it is the same for either side's way of telling it."""
    match value:
        case [(_, _), *_]:
            return {key: plain(each) for key, each in sorted(value)}
        case [] | dict() if not value:
            return "nothing inside"
        case dict():
            return {key: plain(each) for key, each in sorted(value.items())}
        case list():
            return [plain(each) for each in value]
        case datetime():
            return value.replace(tzinfo=None).isoformat()
        case bytearray() | bytes():
            return bytes(value)
        case Decimal():
            return f"{value:.10f}"
        case _:
            return value


def plain_rows(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted(repr({name: plain(value) for name, value in row.items()}) for row in rows)


def test_every_type_is_read_as_it_was_landed_by_both_sides(lakehouse: Lakehouse) -> None:
    table = lakehouse.create(
        "types",
        "boolean boolean, int int, long bigint, float float, double double, d9 decimal(9, 2), d18 decimal(18, 4), "
        "d38 decimal(38, 10), date date, moment timestamp, plain_moment timestamp_ntz, text string, binary binary, "
        "list array<string>, map map<string, bigint>, "
        "struct struct<x: bigint, deep: array<struct<y: double>>>, `a dotted.nämé` string",
    )
    landed = plain_rows(pa.table(EVERY_TYPE).to_pylist())

    land(lakehouse, table, "ours", EVERY_TYPE)

    spark = lakehouse.session
    assert plain_rows(row.asDict(recursive=True) for row in spark.table("lake.t.types").collect()) == landed
    assert plain_rows(table.load().scan().to_arrow().to_pylist()) == landed

    # What Spark has read of ours it writes again: its own files hold the same.
    spark.sql("CREATE TABLE lake.t.types_again USING iceberg AS SELECT * FROM lake.t.types")
    again = lakehouse.table("types_again")
    assert plain_rows(again.load().scan().to_arrow().to_pylist()) == landed

    frame = FrameStager(session=spark, table=again, ids=RandomIds(), frame=lambda *_: spark.table("lake.t.types"))
    assert lakehouse.land(again, "a frame", stager=frame)
    assert plain_rows(again.load().scan().to_arrow().to_pylist()) == sorted(landed * 2)


def test_types_that_only_pyiceberg_makes_are_read_by_spark(lakehouse: Lakehouse) -> None:
    one, other = UUID(int=1), UUID(int=2**128 - 1)
    lakehouse.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.t")
    lakehouse.catalog().create_table(
        "t.rare",
        Schema(NestedField(1, "u", UUIDType()), NestedField(2, "f", FixedType(3)), NestedField(3, "v", LongType())),
    )
    table = lakehouse.table("rare")
    columns = {
        "u": pa.array([one.bytes, other.bytes, None, one.bytes], pa.uuid()),
        "f": pa.array([b"abc", b"\xff\xff\xff", None, b"abc"]),
        "v": pa.array([1, 2, 3, 4]),
    }

    land(lakehouse, table, "ours", columns)

    rows = lakehouse.session.table("lake.t.rare").orderBy("v").collect()
    assert [row.u for row in rows] == [str(one), str(other), None, str(one)]
    assert [row.f if row.f is None else bytes(row.f) for row in rows] == [b"abc", b"\xff\xff\xff", None, b"abc"]
    stager = lakehouse.arrow_stager(table, read=reader(columns))
    (unit,) = lakehouse.progress().take(table.uuid, [Unit("twice")])
    for key in ("u", "f"):
        lander = lakehouse.lander(table, stager, audits=[NoDuplicates(lakehouse.session, table, (key,))])
        with pytest.raises(AuditFailed, match=rf"Some keys \({key}\) of t\.rare are duplicated"):
            asyncio.run(lander.land([unit]))


@pytest.mark.parametrize("numbers", [[1, 2], [1, 1]])
def test_keys_are_audited_whatever_their_columns_are_called(lakehouse: Lakehouse, numbers: list[int]) -> None:
    keys = ("count", "a.b", "it`s")
    name = "odd_keys" if len(set(numbers)) == 2 else "odd_keys_doubled"
    table = lakehouse.create(name, "`count` bigint, `a.b` bigint, `it``s` bigint")
    stager = lakehouse.arrow_stager(table, read=reader({key: pa.array(numbers) for key in keys}))
    lander = lakehouse.lander(table, stager, audits=[NoDuplicates(lakehouse.session, table, keys)])
    (unit,) = lakehouse.progress().take(table.uuid, [Unit("ours")])

    if name == "odd_keys":
        assert asyncio.run(lander.land([unit])) is not None
    else:
        with pytest.raises(AuditFailed, match=r"are duplicated: \(1, 1, 1\)"):
            asyncio.run(lander.land([unit]))


COLUMNS = "part string, key bigint, value string"
Row = tuple[str | None, int, str]


@dataclass
class Both:
    """A table and what it should hold; after each operation both sides are asked."""

    lakehouse: Lakehouse
    table: IcebergTable
    rows: dict[int, Row] = field(default_factory=dict)
    units: int = 0

    @property
    def name(self) -> str:
        return f"{self.table.catalog.name}.{self.table.name}"

    def sql(self, statement: str) -> None:
        self.lakehouse.session.sql(statement.format(t=self.name))

    def unit(self) -> str:
        self.units += 1
        return f"unit-{self.units}"

    def batch(self, rows: Sequence[Row]) -> dict[str, pa.Array]:
        kinds = (pa.string(), pa.int64(), pa.string())
        return {
            name: pa.array([row[place] for row in rows], kinds[place])
            for place, name in enumerate(("part", "key", "value"))
        }

    def holds(self, rows: Iterable[Row]) -> None:
        self.rows.update({row[1]: row for row in rows})

    def arrow(self, rows: Sequence[Row], change: Change = Change.APPEND) -> None:
        stager = self.lakehouse.arrow_stager(self.table, read=reader(self.batch(rows)), change=change)
        assert self.lakehouse.land(self.table, self.unit(), stager=stager)
        if change is Change.REPLACE:
            self.rows.clear()
        if change is Change.OVERWRITE_PARTITIONS:
            gone = {row[0] for row in rows}
            self.rows = {key: row for key, row in self.rows.items() if row[0] not in gone}
        self.holds(rows)

    def frame(self, rows: Sequence[Row]) -> None:
        def frame(*_: object) -> DataFrame:
            return self.lakehouse.session.createDataFrame(pa.table(self.batch(rows))).repartition(2)

        stager = FrameStager(session=self.lakehouse.session, table=self.table, ids=RandomIds(), frame=frame)
        assert self.lakehouse.land(self.table, self.unit(), stager=stager)
        self.holds(rows)

    def merge(self, rows: Sequence[Row]) -> None:
        def merge(session: SparkSession, target: str, _: Sequence[UnitRemainder]) -> None:
            values = ", ".join(
                f"({'NULL' if part is None else repr(part)}, {key}, {value!r})" for part, key, value in rows
            )
            session.sql(
                f"MERGE INTO {target} t USING (SELECT * FROM VALUES {values} AS s(part, key, value)) s "  # noqa: S608 - ours
                "ON t.key = s.key WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )

        stager = MergeStager(
            session=self.lakehouse.session.newSession(), table=self.table, ids=RandomIds(), merge=merge
        )
        assert self.lakehouse.land(self.table, self.unit(), stager=stager)
        self.holds(rows)

    def spark_insert(self, rows: Sequence[Row]) -> None:
        self.lakehouse.session.createDataFrame(pa.table(self.batch(rows))).writeTo(self.name).append()
        self.holds(rows)

    def pyiceberg_append(self, rows: Sequence[Row]) -> None:
        self.table.load().append(pa.table(self.batch(rows)))
        self.holds(rows)

    def spark_delete(self, *keys: int) -> None:
        self.sql(f"DELETE FROM {{t}} WHERE key IN ({', '.join(map(str, keys))})")  # noqa: S608 - ours
        for key in keys:
            del self.rows[key]

    def compact(self) -> None:
        catalog, name = self.table.catalog.name, self.table.name
        self.sql(f"CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")

    def check(self, after: str) -> None:
        should = sorted(self.rows.values(), key=lambda row: row[1])
        spark = [tuple(row) for row in self.lakehouse.session.table(self.name).orderBy("key").collect()]
        pyiceberg = self.table.load().scan().to_arrow().sort_by("key").to_pylist()
        assert spark == should, f"Spark, after {after}"
        assert [tuple(row.values()) for row in pyiceberg] == should, f"PyIceberg, after {after}"


def some(keys: Iterable[int], value: str) -> list[Row]:
    return [(("a", "b", None)[key % 3], key, value) for key in keys]


COPY = "'write.merge.mode' = 'copy-on-write', 'write.delete.mode' = 'copy-on-write'"
MARK = (
    "'write.merge.mode' = 'merge-on-read', 'write.delete.mode' = 'merge-on-read', "
    "'commit.manifest.min-count-to-merge' = '2', 'commit.manifest-merge.enabled' = 'true'"
)


@pytest.mark.parametrize(
    ("catalog", "mode"),
    [
        ("rest", MARK),
        pytest.param("lake", MARK, marks=pytest.mark.soak),
        pytest.param("rest", COPY, marks=pytest.mark.soak),
        pytest.param("s3", MARK, marks=pytest.mark.soak),
    ],
)
def test_a_table_written_by_one_side_is_read_merged_and_compacted_by_the_other(
    lakehouse: Lakehouse, catalog: str, mode: str
) -> None:
    name = f"both_{RandomIds().uuid()[:8]}"
    both = Both(lakehouse, lakehouse.create(name, COLUMNS, f"TBLPROPERTIES ({mode})", catalog=catalog))
    both.sql("ALTER TABLE {t} ADD PARTITION FIELD part")  # SeaweedFS refuses to create a table with partitions
    steps: list[tuple[str, Callable[[], None]]] = [
        ("a first merge into nothing", lambda: both.merge(some(range(2), "merged first"))),
        ("our append", lambda: both.arrow(some(range(2, 12), "ours"))),
        ("Spark's insert", lambda: both.spark_insert(some(range(12, 18), "spark"))),
        ("PyIceberg's append", lambda: both.pyiceberg_append(some(range(18, 24), "pyiceberg"))),
        ("a merge", lambda: both.merge(some([0, 5, 13, 19, 24], "merged"))),
        ("Spark's delete", lambda: both.spark_delete(1, 2, 5, 14, 20)),
        ("our append after deletes", lambda: both.arrow(some([1, 2, 5], "back"))),
        ("our overwrite of partitions", lambda: both.arrow(some([30, 31], "over"), Change.OVERWRITE_PARTITIONS)),
        ("a frame", lambda: both.frame(some(range(40, 46), "frame"))),
        ("Spark's compaction", both.compact),
        ("a merge after compaction", lambda: both.merge(some([31, 41, 50], "merged again"))),
        ("our replacement", lambda: both.arrow(some(range(60, 63), "replaced"), Change.REPLACE)),
        ("Spark's delete of ours", lambda: both.spark_delete(61)),
        ("the last append", lambda: both.arrow(some([61, 70], "last"))),
    ]
    for after, step in steps:
        step()
        both.check(after)
    summaries = [
        snapshot.summary.additional_properties for snapshot in both.table.load().snapshots() if snapshot.summary
    ]
    tokens = [summary["lakehead.token"] for summary in summaries if "lakehead.token" in summary]
    assert len(set(tokens)) == len(tokens) == both.units, "each landing has a token of its own"


def test_a_table_with_marks_of_deleted_rows_is_overwritten_and_replaced(lakehouse: Lakehouse) -> None:
    both = Both(lakehouse, lakehouse.create("marked", COLUMNS, f"PARTITIONED BY (part) TBLPROPERTIES ({MARK})"))
    both.arrow(some(range(12), "ours"))
    both.spark_delete(0, 1, 2)
    deletes = "SELECT count(*) FROM {t}.delete_files"
    assert lakehouse.session.sql(deletes.format(t=both.name)).first() != (0,)

    both.arrow([("a", 100, "over")], Change.OVERWRITE_PARTITIONS)
    both.check("an overwrite of one partition: the marks in the others still count")
    both.arrow(some(range(3), "back"))
    both.check("the same keys again: marks do not count for what came after them")
    both.arrow([("b", 200, "replaced")], Change.REPLACE)
    both.check("a replacement")


def test_a_table_whose_partitioning_has_changed_is_replaced_but_not_overwritten(lakehouse: Lakehouse) -> None:
    both = Both(lakehouse, lakehouse.create("evolved", COLUMNS, "PARTITIONED BY (part)"))
    both.spark_insert(some(range(6), "old"))
    both.sql("ALTER TABLE {t} ADD PARTITION FIELD value")

    with pytest.raises(Misconfigured, match="files of an earlier partitioning"):
        both.arrow(some([1], "refused"), Change.OVERWRITE_PARTITIONS)
    both.check("a refusal")
    both.arrow(some(range(6, 12), "new"))
    both.check("an append under the new partitioning")

    both.compact()
    unit = lakehouse.arrow_stager(
        both.table, read=reader(both.batch([("a", 6, "new")])), change=Change.OVERWRITE_PARTITIONS
    )
    assert lakehouse.land(both.table, both.unit(), stager=unit)
    del both.rows[9]  # the other one in the partition ("a", "new")
    both.check("an overwrite where compaction has brought all files to the new partitioning")

    both.sql("ALTER TABLE {t} DROP PARTITION FIELD part")
    both.arrow([(None, 1, "whole")], Change.REPLACE)
    both.check("a replacement")


def test_a_table_of_format_version_3_is_refused_at_once_by_landings_and_maintenance(lakehouse: Lakehouse) -> None:
    lakehouse.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.t")
    lakehouse.session.sql("CREATE TABLE lake.t.v3 (unit string) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    refused = "The table t.v3 has format version 3, and Lakehead writes version 2"

    with pytest.raises(Misconfigured, match=refused):
        lakehouse.table("v3")

    options = ["t.v3", f"--lakehouse={lakehouse.folder}/lakehouse", "--dry-run"]
    state, ledger = f"--state=sqlite:///{lakehouse.folder}/state.sqlite", f"--ledger=file://{lakehouse.folder}/records"
    commands = [
        ["maintain", "sweep", *options],
        ["maintain", "compact", *options, state],
        ["maintain", "expire", *options, state, ledger],
    ]
    for words in commands:
        ended = lakehead_command(*words)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert refused in ended.stderr
