"""A sink that keeps tables in this process: for tests of strategies, without Spark's tasks, a catalog or files."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from threading import RLock
from uuid import uuid4

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.extract.merging import DedupRule
from lakehead.extract.planning.windows import Slice
from lakehead.extract.raw_rows import INGEST_SCHEMA, RawPart, raw_schema, read_rows
from lakehead.extract.row_checks import check_keys, check_not_emptied
from lakehead.extract.sink import LOADED_IN_FULL, Reading, TableProgress, Written, check_order, keys_of
from lakehead.extract.staging import frame_of, ingest_of
from lakehead.extract.table_settings import Rule, TableSettings
from lakehead.lake.conform import conform
from lakehead.lake.ports import Overtaken
from lakehead.lake.run_context import RunContext
from lakehead.state.model import Watermark

Row = dict[str, object]


@dataclass
class MemoryTable:
    """What is kept of one table, from one run to the next."""

    id: str = field(default_factory=lambda: str(uuid4()))
    columns: pa.Schema | None = None
    """Raw's columns, once the table was prepared."""

    units: set[tuple[str, int]] = field(default_factory=set)
    """The units that have landed in raw, with their generations."""

    raw: list[pa.Table] = field(default_factory=list)
    raw_watermark: Watermark | None = None
    published: pa.Table | None = None
    published_watermark: Watermark | None = None
    lock: RLock = field(default_factory=RLock)
    """Held while a step is decided and done, as an Iceberg commit is atomic."""


@dataclass
class MemoryTableSink:
    """`TableSink` over a `MemoryTable`."""

    settings: TableSettings
    table: MemoryTable
    run: RunContext

    @property
    def id(self) -> str | None:
        return self.table.id if self.table.columns is not None else None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns.names)

    @property
    def _columns(self) -> pa.Schema:
        if self.table.columns is None:
            raise Misconfigured(f"The table {self.settings.name} does not exist. Prepare it first.")
        return self.table.columns

    @property
    def renewal(self) -> str:
        return ""

    @property
    def evolves(self) -> bool:
        return True

    def source_columns(self) -> pa.Schema | None:
        if self.table.columns is None:
            return None
        return pa.schema([column for column in self.table.columns if column.name not in INGEST_SCHEMA.names])

    def prepare(self, columns: pa.Schema) -> None:
        columns = raw_schema(columns)
        with self.table.lock:
            self.table.columns = columns
            self.table.raw = [conformed(rows, columns) for rows in self.table.raw]
            if self.table.published is not None:
                self.table.published = conformed(self.table.published, columns)

    def progress(self) -> TableProgress:
        return TableProgress(self.table.raw_watermark, self.table.published_watermark)

    def has_published(self) -> bool:
        return self.table.published is not None

    def write_raw(self, load_date: date, generation: int, reading: Reading, progress: TableProgress) -> TableProgress:
        number = progress.last_slice + 1
        reached = self._watermark(generation, number, number, load_date)
        reached = replace(reached, read_by=LOADED_IN_FULL)
        return self._land((load_date.isoformat(), generation), reading, reached, progress, whole=True)

    def stage_incremental_slice(
        self, part: Slice, generation: int, reading: Reading, progress: TableProgress, *, replace: bool = False
    ) -> TableProgress:
        check_order(progress.raw, part, generation, self.settings.name)
        reached = Watermark(
            table=self.table.id,
            generation=generation,
            value=part.watermark,
            slice=progress.last_slice + 1,
            last_loaded=self.run.load_date,
            read_by=reading.read_by,
        )
        return self._land((part.unit, generation), reading, reached, progress, replace_raw=replace)

    def finalize_full(self, progress: TableProgress) -> TableProgress:
        raw = progress.raw
        if raw is None:
            return progress
        keys = keys_of(self.settings, self.columns) if self.settings.null_keys is Rule.EXCLUDE else ()

        def rows() -> Iterable[Row]:
            newest = (row for row in self._raw_rows() if row["_slice"] == raw.slice)
            return (row for row in newest if all(row[key] is not None for key in keys))

        return self._publish(raw, progress, rows)

    def commit_incremental(self, rule: DedupRule, progress: TableProgress) -> TableProgress:
        raw, published = progress.raw, progress.published
        if raw is None or progress.complete:
            return progress

        def rows() -> Iterable[Row]:
            old = (
                [] if not progress.same_generation or self.table.published is None else self.table.published.to_pylist()
            )
            after = (published.slice or 0) if published and old else 0
            new = [row for row in self._raw_rows() if row["_generation"] == raw.generation and row["_slice"] > after]  # type: ignore[operator] # a number
            return newest_rows([*old, *new], rule)

        return self._publish(raw, progress, rows)

    def close(self) -> None:
        """Nothing is open."""

    def _raw_rows(self) -> list[Row]:
        rows: list[Row] = [row for table in self.table.raw for row in table.to_pylist()]
        return rows

    def _watermark(self, generation: int, value: int, number: int, load_date: date | None) -> Watermark:
        return Watermark(table=self.table.id, generation=generation, value=value, slice=number, last_loaded=load_date)

    def _land(
        self,
        unit: tuple[str, int],
        reading: Reading,
        reached: Watermark,
        progress: TableProgress,
        *,
        whole: bool = False,
        replace_raw: bool = False,
    ) -> TableProgress:
        """Read a unit and add it to raw, if raw's watermark is still the one that was seen."""
        if unit in self.table.units:
            return self.progress()
        rows = self._read(reading, reached)
        keys = keys_of(self.settings, self.columns)
        nulls = {key: rows[key].null_count for key in keys if rows[key].null_count}
        check_keys(self.settings, nulls)
        with self.table.lock:
            if unit in self.table.units:
                return self.progress()
            if self.table.raw_watermark != progress.raw:
                raise Overtaken(f"Another run has loaded more of {self.settings.name} meanwhile.")
            if whole:
                check_not_emptied(self.settings, rows.num_rows, sum(table.num_rows for table in self.table.raw))
            self.table.raw = [rows] if replace_raw else [*self.table.raw, rows]
            self.table.units.add(unit)
            self.table.raw_watermark = reached
        detail: dict[str, object] = {"null_keys": nulls} if nulls else {}
        written = Written(rows=rows.num_rows, slice=reached.slice or 0, location="memory", detail=detail)
        return replace(self.progress(), written=written)

    def _read(self, reading: Reading, reached: Watermark) -> pa.Table:
        ingest = ingest_of(self.run, reading, reached.slice or 0, reached.generation)
        with reading.open_parts(1) as parts:
            if reading.by_jdbc:
                frame = frame_of(self.run.session, reading, parts, ingest)
                return conformed(frame.toArrow(), self._columns)
            batches = [batch for part in parts for batch in read_rows(RawPart(part, ingest, reading.protections))]
        rows = pa.Table.from_batches(batches) if batches else self._columns.empty_table()
        reading.verify()
        return conformed(rows, self._columns)

    def _publish(self, raw: Watermark, progress: TableProgress, rows: Callable[[], Iterable[Row]]) -> TableProgress:
        """Show readers some rows, if they still see what they were seen to see."""
        seen = progress.published
        if seen and (seen.generation, seen.slice or 0) >= (raw.generation, raw.slice or 0):
            return self.progress()
        with self.table.lock:
            if self.table.published_watermark != seen:
                raise Overtaken(f"Another run has published {self.settings.name} meanwhile.")
            table = pa.Table.from_pylist(list(rows()), self._columns)
            self.table.published = table
            number = raw.slice or 0
            self.table.published_watermark = self._watermark(raw.generation, number, number, raw.last_loaded)
        written = Written(rows=table.num_rows, slice=number, location="memory", detail={"total": table.num_rows})
        return replace(self.progress(), written=written)


def conformed(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """The rows with these columns, by name; columns that they lack are NULL."""
    return pa.Table.from_batches([conform(batch, columns) for batch in rows.to_batches()], columns)


def newest_rows(rows: Iterable[Row], rule: DedupRule) -> list[Row]:
    """The newest row of each key: the rule of `DedupRule`, in Python."""

    def rank(row: Row) -> tuple[object, ...]:
        ordered = tuple((row[name] is not None, row[name] if row[name] is not None else 0) for name in rule.order)
        alike = sorted((name, repr(value)) for name, value in row.items() if name not in INGEST_SCHEMA.names)
        return (*ordered, alike)

    newest: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in rule.keys)
        if None in key and not rule.null_keys:
            continue
        if key not in newest or rank(row) > rank(newest[key]):
            newest[key] = row
    return list(newest.values())
