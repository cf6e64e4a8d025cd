"""Two mirrors of the same raw table: one merged in Arrow, the other with Spark's MERGE. They must stay equal."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import SparkSession

from lakehead.extract.merging import DedupRule, RawRows, merge_newest
from lakehead.ids import RandomIds
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Unit
from lakehead.lake.merge import MergeStager
from lakehead.lake.merge_changes import ColumnRange
from lakehead.lake.merge_lane import Changes, LaneStager
from lakehead.lake.tables import create_table
from lakehead.spark.settings import EMBEDDED
from tests.lakehouse import Lakehouse

START = datetime(2024, 1, 1, tzinfo=UTC)
OWN = ("_slice", "_generation")


@dataclass(frozen=True)
class Shape:
    """What the tables of a history look like."""

    name: str
    keys: tuple[IcebergType, ...] = (LongType(),)
    null_keys: bool = False
    tiebreaks: int = 1
    partition: str = ""
    """A field of Spark's ALTER TABLE … ADD PARTITION FIELD."""
    mode: str = "merge-on-read"
    properties: tuple[tuple[str, str], ...] = ()
    """Of the mirrors."""


LONG = Shape("long")
COPIED = Shape("copied", mode="copy-on-write")
NULLS = Shape("nulls", keys=(StringType(), DecimalType(20, 2)), null_keys=True, partition="bucket(3, `k0`)")
MOVING = Shape("moving", keys=(LongType(), TimestampType()), partition="`v`", tiebreaks=2)
UUIDS = Shape("uuids", keys=(UUIDType(),), partition="day(`at`)")
TEXT = Shape("text", keys=(StringType(),), tiebreaks=0)
SHAPES = (LONG, COPIED, NULLS, MOVING, UUIDS)

VALUES: dict[type[IcebergType], Callable[[int], Any]] = {
    LongType: lambda n: n,
    IntegerType: lambda n: n,
    DoubleType: float,
    StringType: lambda n: "" if n == 0 else f"{'ä' * (n % 20)} key {n}",
    DecimalType: lambda n: Decimal(n % 7) / 4,
    TimestampType: lambda n: (START + timedelta(hours=n, microseconds=n)).replace(tzinfo=None),
    UUIDType: lambda n: UUID(int=(n * 0x9E3779B97F4A7C15F39CC0605CEDC834) % 2**128).bytes,
}


class NoFallback:
    """A stager in place of Spark's MERGE, for merges that must be made in Arrow."""

    def __init__(self) -> None:
        self.asked = 0

    async def stage(self, *_: object, **__: object) -> Any:
        self.asked += 1
        raise AssertionError("Spark was asked to merge.")


@dataclass
class Mirrors:
    """A raw table and two mirrors of it."""

    lakehouse: Lakehouse
    shape: Shape
    random: Random
    name: str
    slice: int = 0
    merged: int = 0
    keys: int = 40
    """Keys are drawn from so many."""
    catalog: str = EMBEDDED
    added: list[str] = field(default_factory=list)
    """Columns that were added later, of whole numbers."""
    is_evolved: bool = False
    """Whether the mirrors' partitions have one field more."""
    landed: list[dict[str, Any]] = field(default_factory=list)
    """What raw has that was not merged yet."""
    raw: IcebergTable = field(init=False)
    lane: IcebergTable = field(init=False)
    merge: IcebergTable = field(init=False)

    def __post_init__(self) -> None:
        self.lakehouse.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}.t")
        self.raw, self.lane, self.merge = (self._create(f"{self.name}_{which}") for which in ("raw", "lane", "merge"))

    @property
    def spark(self) -> SparkSession:
        return self.lakehouse.session

    @property
    def rule(self) -> DedupRule:
        return DedupRule(
            keys=tuple(f"k{n}" for n in range(len(self.shape.keys))),
            watermark="at",
            tiebreaks=tuple(f"tie{n}" for n in range(self.shape.tiebreaks)),
            null_keys=self.shape.null_keys,
        )

    def _create(self, name: str) -> IcebergTable:
        kinds: list[tuple[str, IcebergType]] = [(f"k{n}", kind) for n, kind in enumerate(self.shape.keys)]
        kinds += [("at", TimestamptzType()), *((f"tie{n}", LongType()) for n in range(self.shape.tiebreaks))]
        kinds += [("v", StringType()), ("n", LongType()), *((own, LongType()) for own in OWN)]
        fields = [NestedField(n, name, kind, required=False) for n, (name, kind) in enumerate(kinds, 1)]
        modes = {f"write.{each}.mode": self.shape.mode for each in ("merge", "update", "delete")}
        modes["write.delete.granularity"] = "partition" if self.shape.partition else "file"
        is_raw = name.endswith("raw")
        properties = modes | dict(() if is_raw else self.shape.properties)
        create_table(self.lakehouse.catalog(self.catalog), f"t.{name}", Schema(*fields), properties=properties)
        if self.shape.partition and not is_raw:
            self.spark.sql(f"ALTER TABLE {self.catalog}.t.{name} ADD PARTITION FIELD {self.shape.partition}")
        return self.lakehouse.table(name, catalog=self.catalog)

    def sql_name(self, table: IcebergTable) -> str:
        return f"{self.catalog}.{table.name}"

    def rows(self, count: int, *, keys: Sequence[int] | None = None, late: bool = False) -> list[dict[str, Any]]:
        """Rows of random keys: newer ones, late ones, ones without a watermark, and some that come twice."""
        random, made = self.random, []
        for _ in range(count):
            n = random.choice(keys) if keys else random.randrange(self.keys)
            at = self.slice * 10 + random.randrange(-25 if late else -5, 10)
            row: dict[str, Any] = {
                f"k{number}": None
                if self.shape.null_keys and random.random() < 0.1
                else VALUES[type(kind)](n // (number + 1))
                for number, kind in enumerate(self.shape.keys)
            }
            row["at"] = None if random.random() < 0.1 else START + timedelta(hours=at)
            for number in range(self.shape.tiebreaks):
                row[f"tie{number}"] = random.choice((None, *range(1000)))
            row |= {name: random.choice((None, 1, 2)) for name in self.added}
            made.append(row | {"v": random.choice((None, "a", "b")), "n": random.randrange(10**6)})
        return made

    def land(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append a slice to raw."""
        self.slice += 1
        landed = [row | {"_slice": self.slice, "_generation": 0} for row in rows]
        self._append(self.raw, landed)
        self.landed += landed

    def start(self, *parts: Sequence[dict[str, Any]]) -> None:
        """Give both mirrors the same rows, each part as files of its own."""
        for part in parts:
            rows = [row | dict.fromkeys(OWN, 0) for row in part]
            self.outside(partial(self._append, rows=rows))

    def _append(self, table: IcebergTable, rows: Sequence[dict[str, Any]]) -> None:
        iceberg = table.load()
        schema = schema_to_pyarrow(iceberg.schema())
        iceberg.append(pa.Table.from_pylist(list(rows), schema=schema))
        table.load()

    def outside(self, change: Callable[[IcebergTable], object]) -> None:
        """Let another writer change both mirrors in the same way."""
        for table in (self.lane, self.merge):
            change(table)
            table.load()

    def sql(self, statement: str) -> None:
        """A statement of another writer's for both mirrors, which are `{table}` in it."""
        self.outside(lambda table: self.spark.sql(statement.format(table=self.sql_name(table))))

    def call(self, procedure: str, options: str = "") -> None:
        """Let another writer call one of Iceberg's procedures for both mirrors."""
        call = f"CALL {self.catalog}.system.{procedure}(table => '{{}}'{options})"
        self.outside(lambda table: self.spark.sql(call.format(table.name)))

    def add_column(self, name: str) -> None:
        """Add a column to all three tables."""
        for table in (self.raw, self.lane, self.merge):
            self.spark.sql(f"ALTER TABLE {self.sql_name(table)} ADD COLUMN {name} bigint")
            table.load()
        self.added.append(name)

    def raw_rows(self) -> RawRows:
        snapshot = self.raw.load().metadata.current_snapshot_id
        assert snapshot is not None
        columns = tuple(each.name for each in self.raw.seen().schema().fields)
        return RawRows(
            table=self.sql_name(self.raw),
            snapshot=snapshot,
            columns=columns,
            generation=0,
            after=self.merged,
            upto=self.slice,
        )

    def by_spark(self, table: IcebergTable) -> MergeStager:
        rows, rule = self.raw_rows(), self.rule
        return MergeStager(
            session=self.spark.newSession(),
            table=table,
            ids=RandomIds(),
            merge=lambda session, target, _: merge_newest(session, target, rows=rows, rule=rule),
        )

    def by_lane(self, fallback: Any = None) -> LaneStager:
        rows, rule = self.raw_rows(), self.rule
        return LaneStager(
            session=self.spark,
            table=self.lane,
            ids=RandomIds(),
            changes=Changes(
                table=self.raw,
                snapshot=rows.snapshot,
                conditions=(ColumnRange("_slice", rows.after + 1, rows.upto), ColumnRange("_generation", 0, 0)),
                keys=rule.keys,
                order=rule.order,
                null_keys=rule.null_keys,
            ),
            fallback=cast(Any, fallback or NoFallback()),
        )

    def merge_both(self, fallback: Any = None) -> None:
        """Merge what is new in raw into both mirrors."""
        unit = f"{self.merged}..{self.slice}"
        expected = self.expected()
        self.land_by(self.by_lane(fallback), unit)
        if fallback is None:  # else Spark decides which of equal rows is merged
            assert sorted(map(repr, self._rows(self.lane))) == sorted(map(repr, expected))
        self.landed.clear()
        self.land_by(self.by_spark(self.merge), unit)
        self.merged = self.slice

    def land_by(self, stager: Any, unit: str) -> Any:
        table, progress = stager.table, self.lakehouse.progress()
        units = progress.take(table.uuid, [Unit(unit)])
        return asyncio.run(self.lakehouse.lander(table, stager, audits=[]).land(units))

    def check(self) -> None:
        """Both mirrors have the same rows, whether Spark or PyIceberg reads them, and the totals are right."""
        expected = self.by_spark_read(self.merge)
        assert self.by_spark_read(self.lane) == expected
        assert sorted(map(repr, self._read(self.lane))) == sorted(map(repr, self._read(self.merge)))
        check_totals(self.lane)

    def by_spark_read(self, table: IcebergTable) -> list[str]:
        return sorted(repr(tuple(row)) for row in self.spark.table(self.sql_name(table)).collect())

    def expected(self) -> list[dict[str, Any]]:
        """What the mirror has to hold after the merge, in plain Python."""
        found = dict(enumerate(self._rows(self.lane)))
        names, keys, order = list(self._rows_schema().names), self.rule.keys, self.rule.order
        there = {tuple(row[key] for key in keys): number for number, row in found.items()}

        def rank(row: dict[str, Any]) -> list[tuple[bool, Any]]:
            return [(row[name] is not None, row[name] if row[name] is not None else 0) for name in order]

        for change in map(self._comparable, self.landed):
            key = tuple(change[key] for key in keys)
            if None in key and not self.rule.null_keys:
                continue
            number = there.setdefault(key, len(found))
            if number not in found or rank(change) > rank(found[number]):
                found[number] = {name: change.get(name) for name in names}
        return list(found.values())

    def _rows_schema(self) -> pa.Schema:
        return schema_to_pyarrow(self.lane.load().schema())

    def _rows(self, table: IcebergTable) -> list[dict[str, Any]]:
        return [self._comparable(row) for row in table.load().scan().to_arrow().to_pylist()]

    def _comparable(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: _plain(value) for name, value in row.items()}

    def _read(self, table: IcebergTable) -> list[tuple[Any, ...]]:
        rows = table.load().scan().to_arrow()
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, Decimal):
        return Fraction(value)  # exact, whatever its trailing zeros
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


def check_totals(table: IcebergTable) -> None:
    """The head's summary counts what its manifests have."""
    iceberg = table.load()
    head = iceberg.current_snapshot()
    assert head is not None
    assert head.summary is not None
    entries = [
        entry.data_file
        for manifest in head.manifests(iceberg.io)
        for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=True)
    ]
    data = [file for file in entries if file.content is DataFileContent.DATA]
    deletes = [file for file in entries if file.content is DataFileContent.POSITION_DELETES]
    found = {
        "total-data-files": len(data),
        "total-delete-files": len(deletes),
        "total-records": sum(file.record_count for file in data),
        "total-position-deletes": sum(file.record_count for file in deletes),
        "total-files-size": sum(file.file_size_in_bytes for file in entries),
    }
    assert {name: int(head.summary[name] or -1) for name in found} == found
