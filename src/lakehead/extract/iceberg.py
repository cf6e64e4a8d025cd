"""A table kept in Iceberg: every landing of it goes through the landing protocol."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyspark.sql import SparkSession

from lakehead.errors import Misconfigured
from lakehead.extract.audits import check_keys, check_not_emptied
from lakehead.extract.iceberg_counts import counts_of
from lakehead.extract.iceberg_tables import (
    MERGED_OFTEN,
    RAW_PARTITIONS,
    Place,
    Wanted,
    check_same_columns,
    ensure_tables,
    iceberg_schema,
)
from lakehead.extract.iceberg_view import show_slice, shown_slice
from lakehead.extract.merging import Newest, RawRows, merge_newest, overwrite, overwrite_newest, whole_keys
from lakehead.extract.planning.windows import Slice
from lakehead.extract.sink import LOADED_IN_FULL, Overtaken, Reading, Standing, Written, check_order, keys_of
from lakehead.extract.staging import raw_stager
from lakehead.extract.surroundings import Surroundings
from lakehead.extract.table import Finalize, Rule, TableSettings
from lakehead.lake.audits import NoDuplicates, count_nulls, every_row_once
from lakehead.lake.landing import Landing, Reached, Unit
from lakehead.lake.lane import StagingFailed
from lakehead.lake.merge import MergeStager
from lakehead.lake.ports import Staged
from lakehead.lake.protocol import Audit, Reaching
from lakehead.lake.rows import Change, NewFiles
from lakehead.lake.table import IcebergTable
from lakehead.spark.names import quoted
from lakehead.state.model import Mark, Watermark


class IcebergSink:
    """One table of a source, kept as a raw table and, as its mode wants it, a mirror, a final table or a view."""

    def __init__(self, settings: TableSettings, raw: Place, out: Place | None, around: Surroundings) -> None:
        """Open what is there. `out` is the mirror or the final; None where raw is all there is."""
        self._settings = settings
        self._raw_place, self._out_place = raw, out
        self._around = around
        self._raw = self._find(raw)
        self._out = self._find(out) if out and not self._is_view else None

    @property
    def id(self) -> str | None:
        """Raw's uuid: a raw table that is dropped and made again is another."""
        return self._raw.uuid if self._raw else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of raw's columns."""
        return tuple(field.name for field in self._made(self._raw).seen().schema().fields)

    def prepare(self, columns: pa.Schema) -> None:
        """Make the tables that are not there yet."""
        self._ensure(iceberg_schema(columns))

    def standing(self) -> Standing:
        """How far the table is, after everything published was settled."""
        for table in (self._raw, self._out):
            if table is not None:
                self._around.settle(table)
        return self._known()

    def has_published(self) -> bool:
        """Whether what readers read is there."""
        if self._is_view:
            return shown_slice(self._around.session, self._sql(self._out_place or self._raw_place)) is not None
        known = self._known()
        return (known.raw if self._out_place is None else known.published) is not None

    def write_raw(self, load_date: date, generation: int, reading: Reading) -> Written | None:
        """Bring a whole source table to raw, as the unit of that day."""

        def reaching() -> Reached:
            number = self._known().last_slice + 1
            return Reached(watermark=number, slice=number, load_date=load_date, read_by=LOADED_IN_FULL)

        unit = Unit(load_date.isoformat(), generation)
        return self._land_raw(unit, reading, reaching, [self._not_emptied])

    def finalize_full(self) -> Written | None:
        """Let readers see raw's newest slice, whole and at once."""
        raw = self.standing().raw
        if raw is None or raw.slice is None:
            return None
        keys = keys_of(self._settings, self.columns) if self._settings.null_keys is Rule.EXCLUDE else ()
        if self._is_view:
            return self._show(raw, whole_keys(keys))
        if self._out is None:  # it was not wanted when raw was read, or somebody has dropped it
            self._ensure(assign_fresh_schema_ids(self._made(self._raw).seen().schema()))
        rows = self._rows(raw, after=raw.slice - 1)
        return self._land_out(
            raw, f"{raw.slice}", lambda session, target: overwrite(session, target, rows, *whole_keys(keys))
        )

    def stage_incremental_slice(
        self, part: Slice, generation: int, reading: Reading, *, replace: bool = False
    ) -> Written | None:
        """Bring one slice to raw, if raw stands exactly where the slice begins."""

        def reaching() -> Reached:
            known = self._known()
            check_order(known.raw, part, generation, self._settings.name)
            return Reached(
                watermark=part.watermark,
                slice=known.last_slice + 1,
                load_date=self._around.load_date,
                read_by=reading.read_by,
            )

        change = Change.REPLACE if replace else Change.APPEND
        return self._land_raw(Unit(part.unit, generation), reading, reaching, [], change)

    def commit_incremental(self, newest: Newest) -> Written | None:
        """Let readers see all slices of raw: the newest row of each key."""
        standing = self.standing()
        raw, before = standing.raw, standing.published
        if raw is None or standing.complete:
            return None
        if before is None or before.generation < raw.generation:
            rows = self._rows(raw, after=0)
            return self._land_out(
                raw, f"0..{raw.slice}", lambda session, target: overwrite_newest(session, target, rows, newest)
            )
        rows = self._rows(raw, after=before.slice or 0)
        # A filter that leaves out a row which should have been met would bring it in a second time.
        audits = [NoDuplicates(self._around.session, self._made(self._out), newest.keys)] if newest.filters else []
        return self._land_out(
            raw,
            f"{before.slice}..{raw.slice}",
            lambda session, target: merge_newest(session, target, rows, newest),
            audits,
        )

    def close(self) -> None:
        """Close the catalog."""
        self._around.catalog.close()

    @property
    def _is_view(self) -> bool:
        return self._settings.mode == "full" and self._settings.finalize is Finalize.VIEW

    def _ensure(self, schema: Schema) -> None:
        """Make what is not there yet, after all of it was found to fit: what is refused leaves nothing behind."""
        catalog, settings = self._around.catalog, self._settings
        wanted = [Wanted(self._raw_place, RAW_PARTITIONS)]
        if self._out_place and not self._is_view:
            properties = MERGED_OFTEN if settings.mode == "scd1" else {}
            partitions = settings.partition_by
            wanted.append(Wanted(self._out_place, partitions, as_configured=bool(partitions), properties=properties))
        self._around.retries.call(self._catalog, lambda: ensure_tables(catalog, schema, wanted))
        self._raw = self._find(self._raw_place)
        self._out = self._find(self._out_place) if self._out_place and not self._is_view else None

    def _find(self, place: Place) -> IcebergTable | None:
        catalog, retries = self._around.catalog, self._around.retries
        if not retries.call(self._catalog, lambda: catalog.table_exists(place.name)):
            return None
        return IcebergTable(catalog, place.name, self._around.ledger, retries)

    @property
    def _catalog(self) -> str:
        return f"The catalog {self._around.catalog.name}"

    def _made(self, table: IcebergTable | None) -> IcebergTable:
        if table is None:
            raise Misconfigured(f"The tables of {self._settings.name} are not there. Prepare them first.")
        return table

    def _known(self) -> Standing:
        """How far the table is, as the state knows it: after a fence, all that had landed."""
        ids = {table.uuid: table for table in (self._raw, self._out) if table is not None}
        marks = self._around.state.progress.watermarks(ids)
        found = [marks.get((table.uuid, Mark.LANDED)) if table else None for table in (self._raw, self._out)]
        return Standing(*found)

    def _rows(self, raw: Watermark, *, after: int) -> RawRows:
        table = self._made(self._raw)
        snapshot = table.load().metadata.current_snapshot_id
        if snapshot is None or raw.slice is None:
            raise Overtaken(f"The raw table of {self._settings.name} has lost its rows. Run it again.")
        return RawRows(
            table=self._sql(self._raw_place),
            snapshot=snapshot,
            columns=self.columns,
            generation=raw.generation,
            after=after,
            upto=raw.slice,
        )

    def _sql(self, place: Place) -> str:
        return quoted(self._around.catalog.name, *place.name.split("."))

    def _land_raw(
        self,
        unit: Unit,
        reading: Reading,
        reaching: Reaching,
        audits: Sequence[Audit[NewFiles]],
        change: Change = Change.APPEND,
    ) -> Written | None:
        table, keys = self._made(self._raw), keys_of(self._settings, self.columns)
        lacking: dict[str, int] = {}

        def keys_are_whole(staged: Staged[NewFiles]) -> None:
            lacking.clear()
            lacking.update({name: nulls for name, nulls in count_nulls(staged, keys).items() if nulls})
            check_keys(self._settings, lacking)

        with ExitStack() as held:
            stager = raw_stager(
                self._around.session,
                table,
                self._around.ids,
                reading,
                lambda reached: self._around.ingest(reading.told, reached.slice or 0, unit.generation),
                held,
                change,
            )
            checks = [every_row_once, keys_are_whole, *audits]
            try:
                landing = self._around.land(table, unit, stager, reaching, checks)
            except StagingFailed:
                reading.ask_again()
                raise
        if landing is None:
            return None
        return self._written(table, landing, landing.counts["rows"], {"null_keys": dict(lacking)} if lacking else {})

    def _land_out(
        self,
        raw: Watermark,
        unit: str,
        statement: Callable[[SparkSession, str], None],
        audits: Sequence[Audit[Any]] = (),
    ) -> Written | None:
        """Make the mirror or the final table what a statement makes of it; only of slices that it does not have."""
        table, around = self._made(self._out), self._around
        seen = self._known().published
        if seen and (seen.generation, seen.slice or 0) >= (raw.generation, raw.slice or 0):
            return None
        check_same_columns(table.name, self._made(self._raw).seen().schema(), table.seen().schema())

        def reaching() -> Reached:
            if self._known().published != seen:
                raise Overtaken(f"Another run has published {self._settings.name} meanwhile.")
            return Reached(watermark=raw.slice, slice=raw.slice, load_date=raw.last_loaded)

        stager = MergeStager(
            session=around.session,
            table=table,
            ids=around.ids,
            clock=around.clock,
            waiting=around.waiting,
            merge=lambda session, target, _: statement(session, target),
        )
        of_raw = Unit(f"{self.id}/{unit}", raw.generation)
        landing = around.land(table, of_raw, stager, reaching, audits, takes_turns=True)
        if landing is None:
            return None
        mark = around.state.progress.watermark(table.uuid)
        counted = counts_of(self._told(table, mark.snapshot if mark else None))
        return self._written(table, landing, counted.rows, counted.detail)

    def _show(self, raw: Watermark, conditions: Sequence[str]) -> Written | None:
        """Let the view show raw's slice, and look again: nothing keeps a slower run from showing an older one."""
        around, view = self._around, self._sql(self._out_place or self._raw_place)
        shown, number = shown_slice(around.session, view), raw.slice or 0
        if shown is not None and shown >= number:
            return None
        while shown is None or shown < number:
            show_slice(around.session, view, self._sql(self._raw_place), self.columns, number, conditions)
            raw = self.standing().raw or raw
            shown, number = number, raw.slice or number
        rows = None if conditions else counts_of(self._told(self._made(self._raw), raw.snapshot)).rows
        return Written(rows=rows, slice=number, location=view.replace("`", ""))

    def _told(self, table: IcebergTable, snapshot: int | None) -> Mapping[str, str]:
        """What a snapshot says of itself; nothing if it is not there."""
        found = table.seen().metadata.snapshot_by_id(snapshot) if snapshot is not None else None
        return found.summary.additional_properties if found and found.summary else {}

    def _written(
        self, table: IcebergTable, landing: Landing, rows: int | None, detail: Mapping[str, object]
    ) -> Written:
        mark = self._around.state.progress.watermark(table.uuid)
        return Written(
            rows=rows,
            slice=landing.reached.slice or 0,
            location=f"{self._around.catalog.name}.{table.name}",
            snapshot=mark.snapshot if mark else None,
            detail=detail,
        )

    def _not_emptied(self, staged: Staged[NewFiles]) -> None:
        snapshot = self._made(self._raw).seen().metadata.current_snapshot()
        told = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
        check_not_emptied(self._settings, staged.rows.rows, int(told.get("total-records", 0)))
