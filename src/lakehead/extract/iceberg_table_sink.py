"""A sink of Iceberg tables: every write goes through the landing protocol."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import SparkSession

from lakehead.errors import Misconfigured
from lakehead.extract.iceberg_counts import counts_of
from lakehead.extract.iceberg_tables import (
    RAW_PARTITIONS,
    Place,
    TableSpec,
    check_same_columns,
    ensure_tables,
    evolve,
    iceberg_schema,
)
from lakehead.extract.iceberg_view import show_slice, shown_slice
from lakehead.extract.merging import (
    DedupRule,
    RawRows,
    Statement,
    merge_newest,
    merge_stager,
    overwrite,
    overwrite_newest,
    overwrite_stager,
    whole_keys,
)
from lakehead.extract.modes import ReadersTable
from lakehead.extract.planning.windows import Slice
from lakehead.extract.raw_rows import INGEST_SCHEMA
from lakehead.extract.row_checks import check_keys, check_not_emptied
from lakehead.extract.sink import LOADED_IN_FULL, Reading, TableProgress, Written, check_order, keys_of
from lakehead.extract.staging import ingest_of, raw_stager
from lakehead.extract.table_settings import Finalize, Rule, TableSettings
from lakehead.lake.audits import NoDuplicates, count_nulls, every_row_once
from lakehead.lake.iceberg_landing import IcebergLanding
from lakehead.lake.iceberg_table import IcebergTable, summary_of
from lakehead.lake.landing import Landing, NewWatermark, Unit
from lakehead.lake.merge import MergeStager
from lakehead.lake.merge_lane import LaneStager
from lakehead.lake.merged_files import MergedFiles
from lakehead.lake.ports import AuditFailed, Overtaken, Staged
from lakehead.lake.protocol import Audit
from lakehead.lake.raw_floor import floor_of
from lakehead.lake.staged_rows import Branch, Change, NewFiles
from lakehead.lake.stagers import StagingFailed
from lakehead.lake.whole_table import WholeTableStager
from lakehead.spark.names import quoted
from lakehead.state.model import Mark, Watermark


class IcebergTableSink:
    """One table of a source, stored as a raw table and, depending on its mode, a mirror, a final table or a view."""

    def __init__(self, settings: TableSettings, raw: Place, out: Place | None, landing: IcebergLanding) -> None:
        """Open the tables that exist. `out` is the mirror, the final table or the view; None if readers read raw."""
        self._settings = settings
        self._raw_place, self._out_place = raw, out
        self._landing = landing
        self._raw = landing.find(raw.name)
        self._out = landing.find(out.name) if out and not self._is_view else None
        self._just_opened = True

    @property
    def id(self) -> str | None:
        """Raw's uuid: a raw table that is dropped and created again has another one."""
        return self._raw.uuid if self._raw else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of raw's columns."""
        return tuple(field.name for field in self._made(self._raw).seen().schema().fields)

    @property
    def evolves(self) -> bool:
        """True: columns are added and widened by their field ids."""
        return True

    @property
    def renewal(self) -> str:
        """Nothing: it evolves."""
        return ""

    def source_columns(self) -> pa.Schema | None:
        """Raw's columns without our own; None if it does not exist."""
        if self._raw is None:
            return None
        columns = schema_to_pyarrow(self._raw.seen().schema(), include_field_ids=False)
        return pa.schema([column for column in columns if column.name not in INGEST_SCHEMA.names])

    def prepare(self, columns: pa.Schema) -> None:
        """Create the tables that do not exist yet; let raw, and then what readers read, grow to hold the columns."""
        self._ensure(iceberg_schema(columns))

    def progress(self) -> TableProgress:
        """The table's progress, including everything that was published up to now."""
        for table in (self._raw, self._out):
            if table is not None:
                self._landing.settle(table, as_seen=self._just_opened)
        self._just_opened = False
        return self._settled()

    def has_published(self) -> bool:
        """Whether what readers read exists."""
        if self._is_view:
            return shown_slice(self._session, self._sql(self._out_place or self._raw_place)) is not None
        known = self._settled()
        return (known.raw if self._out_place is None else known.published) is not None

    def write_raw(self, load_date: date, generation: int, reading: Reading, progress: TableProgress) -> TableProgress:
        """Land a whole source table in raw, as the unit of that day."""
        number = progress.last_slice + 1
        new_watermark = NewWatermark(watermark=number, slice=number, load_date=load_date, read_by=LOADED_IN_FULL)
        unit = Unit(load_date.isoformat(), generation)
        return self._land_raw(unit, reading, new_watermark, progress.raw, [self._check_not_emptied])

    def stage_incremental_slice(
        self, part: Slice, generation: int, reading: Reading, progress: TableProgress, *, replace: bool = False
    ) -> TableProgress:
        """Land one slice in raw, if raw's watermark is the slice's lower bound."""
        check_order(progress.raw, part, generation, self._settings.name)
        new_watermark = NewWatermark(
            watermark=part.watermark,
            slice=progress.last_slice + 1,
            load_date=self._landing.run.load_date,
            read_by=reading.read_by,
        )
        change = Change.REPLACE if replace else Change.APPEND
        return self._land_raw(Unit(part.unit, generation), reading, new_watermark, progress.raw, [], change)

    def finalize_full(self, progress: TableProgress) -> TableProgress:
        """Publish raw's newest slice to readers, in one step."""
        raw = progress.raw
        if raw is None or raw.slice is None:
            return progress
        keys = keys_of(self._settings, self.columns) if self._settings.null_keys is Rule.EXCLUDE else ()
        if self._is_view:
            return self._show(raw, whole_keys(keys))
        if self._out is None:  # it was not configured when raw was read, or it was dropped since
            self._ensure(assign_fresh_schema_ids(self._made(self._raw).seen().schema()))
        rows = self._rows(raw, after=raw.slice - 1)
        statement = partial(overwrite, rows=rows, conditions=whole_keys(keys))
        by_tasks = partial(self._overwrite_stager, rows=rows, not_null=keys)
        return self._land_out(raw, f"{raw.slice}", statement, by_tasks, progress.published)

    def commit_incremental(self, rule: DedupRule, progress: TableProgress) -> TableProgress:
        """Publish all slices of raw to readers: the newest row of each key."""
        raw, published = progress.raw, progress.published
        if raw is None or progress.complete:
            return progress
        if published is None or published.generation < raw.generation:
            rows = self._rows(raw, after=0)
            statement: Statement = partial(overwrite_newest, rows=rows, rule=rule)
            by_tasks = partial(self._overwrite_stager, rows=rows, rule=rule)
            return self._land_out(raw, f"0..{raw.slice}", statement, by_tasks, published)
        rows = self._rows(raw, after=published.slice or 0)
        statement = partial(merge_newest, rows=rows, rule=rule)
        merged_by_tasks = partial(self._merge_stager, rows=rows, rule=rule)
        # A merge filter that excludes a row which should have matched would insert its key a second time.
        audits = [NoDuplicates(self._session, self._made(self._out), rule.keys)] if rule.filters else []
        return self._land_out(raw, f"{published.slice}..{raw.slice}", statement, merged_by_tasks, published, audits)

    def rebuild_from_raw(self, rule: DedupRule | None, progress: TableProgress, unit: str) -> TableProgress:
        """Write the mirror or the final table anew from raw, up to the slice that it had; `unit` is a name of its own.

        `rule` is None for a table that is loaded in full. A table that does not exist is created. Raises `Overtaken` if
        another run has published meanwhile, and `Misconfigured` if raw lacks rows that retention has removed, or that
        it had before it was rolled back, or dropped and made anew.
        """
        raw, published = progress.raw, progress.published
        if raw is None or raw.slice is None:
            raise Misconfigured(f"The raw table of {self._settings.name} is empty. Load it first.")
        if published is not None and (raw.generation, raw.slice) < (published.generation, published.slice or 0):
            raise Misconfigured(self._raw_lacks(f"its last slice is {raw.slice}, and {published.slice} was published"))
        if self._out is None:
            self._ensure(assign_fresh_schema_ids(self._made(self._raw).seen().schema()))
        # Not beyond what readers have: a reload may have landed a part of a new generation.
        upto = raw if published is None else replace(raw, generation=published.generation, slice=published.slice)
        if rule is None:
            rows = self._rows(upto, after=(upto.slice or 0) - 1)
            keys = keys_of(self._settings, self.columns) if self._settings.null_keys is Rule.EXCLUDE else ()
            statement: Statement = partial(overwrite, rows=rows, conditions=whole_keys(keys))
            by_tasks = partial(self._overwrite_stager, rows=rows, not_null=keys)
        else:
            rows = self._rows(upto, after=0)
            statement = partial(overwrite_newest, rows=rows, rule=rule)
            by_tasks = partial(self._overwrite_stager, rows=rows, rule=rule)
        audits = [self._check_raw_has_rows]
        return self._land_out(upto, f"rebuild/{unit}", statement, by_tasks, published, audits, again=True)

    def close(self) -> None:
        """Close the catalog."""
        self._landing.catalog.close()

    @property
    def _session(self) -> SparkSession:
        return self._landing.run.session

    @property
    def _is_view(self) -> bool:
        return self._settings.mode.readers_table is ReadersTable.FINAL and self._settings.finalize is Finalize.VIEW

    def _ensure(self, schema: Schema) -> None:
        """Create the tables that do not exist, after all were checked, so that an error leaves nothing behind."""
        settings, landing = self._settings, self._landing
        specs = [(TableSpec(self._raw_place, RAW_PARTITIONS), self._raw)]
        if self._out_place and not self._is_view:
            partitions, properties = settings.partition_by, settings.mode.table_properties
            spec = TableSpec(self._out_place, partitions, as_configured=bool(partitions), properties=properties)
            if settings.mode.merges:
                keys = keys_of(settings, (field.name for field in schema.fields))
                spec = replace(spec, keys=keys, null_keys=settings.null_keys is Rule.INCLUDE)
            specs.append((spec, self._out))
        made = ensure_tables(landing, schema, specs)
        self._raw, self._out = made[0], made[1] if len(made) > 1 else None

    def _made(self, table: IcebergTable | None) -> IcebergTable:
        if table is None:
            raise Misconfigured(f"The tables of {self._settings.name} do not exist. Prepare them first.")
        return table

    def _settled(self) -> TableProgress:
        """The table's progress according to the state, which is complete after a landing or a fence."""
        ids = {table.uuid: table for table in (self._raw, self._out) if table is not None}
        marks = self._landing.run.state.progress.watermarks(ids)
        raw, out = (marks.get((table.uuid, Mark.LANDED)) if table else None for table in (self._raw, self._out))
        return TableProgress(raw, out)

    def _rows(self, raw: Watermark, *, after: int) -> RawRows:
        table = self._made(self._raw)
        metadata = table.seen().metadata
        if raw.snapshot is None or metadata.snapshot_by_id(raw.snapshot) is None:
            metadata = table.load().metadata  # another run has landed these slices since raw was last loaded
        snapshot = metadata.current_snapshot_id
        if snapshot is None or raw.slice is None:
            raise Overtaken(f"The raw table of {self._settings.name} has lost its rows. Run it again.")
        floor = floor_of(metadata)
        if floor is not None and floor.misses(raw.generation, after):
            raise Misconfigured(
                f"The raw table {table.name} no longer holds all slices up to {floor.slice}: raw retention has removed "
                f"old ones, so {self._out_place.name if self._out_place else self._settings.name} cannot be made from "
                f"slices above {after}. Nothing was changed. Reload the table from its source: lakehead run CONFIG "
                f"--only-tables {self._settings.name} --reload"
            )
        return RawRows(
            table=self._sql(self._raw_place),
            snapshot=snapshot,
            columns=self.columns,
            absent=self._absent(metadata, snapshot),
            generation=raw.generation,
            after=after,
            upto=raw.slice,
        )

    def _absent(self, metadata: TableMetadata, snapshot: int) -> frozenset[str]:
        """Raw's columns that it did not have yet at a snapshot, whose rows are read under the columns of then."""
        found = metadata.snapshot_by_id(snapshot)
        schema = next((each for each in metadata.schemas if found and each.schema_id == found.schema_id), None)
        return frozenset() if schema is None else frozenset(self.columns) - {field.name for field in schema.fields}

    def _sql(self, place: Place) -> str:
        return quoted(self._landing.catalog.name, *place.name.split("."))

    def _land_raw(
        self,
        unit: Unit,
        reading: Reading,
        new_watermark: NewWatermark,
        expected: Watermark | None,
        audits: Sequence[Audit[NewFiles]],
        change: Change = Change.APPEND,
    ) -> TableProgress:
        """Read a unit from the source and land it in raw, if raw's watermark is still the expected one."""
        table, keys = self._made(self._raw), keys_of(self._settings, self.columns)
        with self._landing.lease(table, unit) as lease:
            if lease is None:
                return self._settled()
            ingest = ingest_of(self._landing.run, reading, new_watermark.slice or 0, unit.generation)
            try:
                with reading.open_parts(self._session.sparkContext.defaultParallelism) as parts:
                    stager = raw_stager(self._landing.run, table, reading, parts, ingest, change)
                    checks: list[Audit[NewFiles]] = [every_row_once, KeyCheck(self._settings, keys), *audits]
                    checks.append(lambda _: reading.verify())
                    staged = lease.land(stager, new_watermark=new_watermark, expected=expected, audits=checks)
            except StagingFailed:
                reading.verify()
                raise
        if staged is None:
            return self._settled()
        nulls = _null_keys(staged, keys)
        return self._written(table, staged.landing, staged.rows.rows, {"null_keys": nulls} if nulls else {})

    def _land_out(
        self,
        raw: Watermark,
        unit: str,
        statement: Statement,
        stager_of: Callable[[MergeStager], MergeStager | LaneStager | WholeTableStager],
        expected: Watermark | None,
        audits: Sequence[Audit[Any]] = (),
        *,
        again: bool = False,
    ) -> TableProgress:
        """Run a statement on the mirror or the final table and land it, unless the table has raw's slices already.

        With `again` also if it has. `stager_of` may replace the stager that runs the statement by one that does the
        same in Arrow.
        """
        table, run = self._made(self._out), self._landing.run
        self._follow_raw()
        if not again and expected and (expected.generation, expected.slice or 0) >= (raw.generation, raw.slice or 0):
            return self._settled()
        by_spark = MergeStager(
            session=run.session,
            table=table,
            ids=run.ids,
            clock=run.clock,
            waiting=run.waiting,
            merge=lambda session, target, _: self._write_out(statement, session, target),
        )
        stager = stager_of(by_spark)
        new_watermark = NewWatermark(watermark=raw.slice, slice=raw.slice, load_date=raw.last_loaded)
        with self._landing.lease(table, Unit(f"{self.id}/{unit}", raw.generation)) as lease:
            if lease is None:
                return self._settled()
            staged = lease.land(stager, new_watermark=new_watermark, expected=expected, audits=audits, exclusive=True)
        if staged is None:
            return self._settled()
        if isinstance(staged.rows, MergedFiles):
            done = staged.rows
            detail = {"inserted": done.inserted, "updated": done.updated}
            return self._written(table, staged.landing, done.inserted + done.updated, detail)
        if isinstance(staged.rows, NewFiles):
            return self._written(table, staged.landing, staged.rows.rows, {"total": staged.rows.rows})
        counted = counts_of(self._summary(table, staged.rows.head))
        return self._written(table, staged.landing, counted.rows, counted.detail)

    def _write_out(self, statement: Statement, session: SparkSession, target: str) -> None:
        """Run a statement if the columns still match: the landing has just loaded the table it writes to."""
        self._check_same_columns()
        statement(session, target)

    def _merge_stager(self, by_spark: MergeStager, rows: RawRows, rule: DedupRule) -> MergeStager | LaneStager:
        raw, check = self._made(self._raw), self._check_same_columns
        return merge_stager(self._landing, by_spark, raw=raw, rows=rows, rule=rule, check=check)

    def _overwrite_stager(
        self, by_spark: MergeStager, rows: RawRows, not_null: Sequence[str] = (), rule: DedupRule | None = None
    ) -> MergeStager | WholeTableStager:
        raw, check = self._made(self._raw), self._check_same_columns
        return overwrite_stager(self._landing, by_spark, raw=raw, rows=rows, not_null=not_null, rule=rule, check=check)

    def _follow_raw(self) -> None:
        """Give what readers read the columns that raw has got: a run may have died between the two."""
        raw, out = self._made(self._raw), self._made(self._out)
        evolve(self._landing, out, raw.seen().schema(), raw)

    def _check_same_columns(self) -> None:
        raw, out = self._made(self._raw), self._made(self._out)
        try:
            check_same_columns(out.name, raw.seen().schema(), out.seen().schema())
        except Misconfigured:
            before = raw.seen().schema()
            if raw.load().schema() == before:
                raise
            raise Overtaken(f"Another run has changed the columns of {raw.name}. Run it again.") from None

    def _show(self, raw: Watermark, conditions: Sequence[str]) -> TableProgress:
        """Point the view at raw's slice, and check again, because a slower run could point it at an older one."""
        session, view = self._session, self._sql(self._out_place or self._raw_place)
        shown, number = shown_slice(session, view), raw.slice or 0
        if shown is not None and shown >= number:
            return self._settled()
        while shown is None or shown < number:
            show_slice(session, view, self._sql(self._raw_place), self.columns, number, conditions)
            raw = self.progress().raw or raw
            shown, number = number, raw.slice or number
        rows = None if conditions else counts_of(self._summary(self._made(self._raw), raw.snapshot)).rows
        return replace(self._settled(), written=Written(rows=rows, slice=number, location=view.replace("`", "")))

    def _summary(self, table: IcebergTable, snapshot: int | None) -> Mapping[str, str]:
        """A snapshot's summary; empty if the snapshot does not exist."""
        return summary_of(table.seen().metadata.snapshot_by_id(snapshot) if snapshot is not None else None)

    def _written(
        self, table: IcebergTable, landing: Landing, rows: int | None, detail: Mapping[str, object]
    ) -> TableProgress:
        """The table's progress after a landing of this run, with what it wrote."""
        progress = self._settled()
        watermark = progress.raw if table is self._raw else progress.published
        written = Written(
            rows=rows,
            slice=landing.new_watermark.slice or 0,
            location=f"{self._landing.catalog.name}.{table.name}",
            snapshot=watermark.snapshot if watermark else None,
            detail=detail,
        )
        return replace(progress, written=written)

    def _check_raw_has_rows(self, staged: Staged[NewFiles] | Staged[Branch]) -> None:
        """An audit of a rebuild: a raw table that was made anew has none of the rows that readers still see."""
        out, rows = self._made(self._out), staged.rows
        before = self._total_rows(out, out.seen().metadata.current_snapshot_id)
        after = rows.rows if isinstance(rows, NewFiles) else self._total_rows(out, rows.head)
        if before and not after:
            raise AuditFailed(self._raw_lacks("it holds none of the slices that were published"))

    def _total_rows(self, table: IcebergTable, snapshot: int | None) -> int:
        return int(self._summary(table, snapshot).get("total-records", "0"))

    def _raw_lacks(self, reason: str) -> str:
        out = self._out_place or self._raw_place
        return (
            f"The raw table {self._raw_place.name} lacks rows that {out.name} has: {reason}, as after a rollback, or "
            f"after it was dropped and made anew. {out.name} was not changed. Load the table first: lakehead run "
            f"CONFIG --only-tables {self._settings.name}"
        )

    def _check_not_emptied(self, staged: Staged[NewFiles]) -> None:
        current = self._made(self._raw).seen().metadata.current_snapshot_id
        before = self._summary(self._made(self._raw), current).get("total-records", "0")
        check_not_emptied(self._settings, staged.rows.rows, int(before))


@dataclass(frozen=True, slots=True)
class KeyCheck:
    """An audit: no staged row has NULL in its key, if the settings forbid that."""

    settings: TableSettings
    keys: tuple[str, ...]

    def __call__(self, staged: Staged[NewFiles]) -> None:
        """Raise `AuditFailed` if one has."""
        check_keys(self.settings, _null_keys(staged, self.keys))


def _null_keys(staged: Staged[NewFiles], keys: tuple[str, ...]) -> dict[str, int]:
    """How many rows have NULL, for each key column that has any."""
    return {name: nulls for name, nulls in count_nulls(staged, keys).items() if nulls}
