"""A sink of Parquet directories: without the landing protocol, but each unit is written exactly once too."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from hashlib import sha256
from typing import TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from lakehead.errors import Misconfigured
from lakehead.extract.file_marks import FileMark, decode_mark, encode_mark
from lakehead.extract.merging import DedupRule, newest_of, whole_keys
from lakehead.extract.planning.windows import Slice
from lakehead.extract.raw_rows import INGEST_SCHEMA, raw_schema
from lakehead.extract.row_checks import check_keys, check_not_emptied
from lakehead.extract.sink import LOADED_IN_FULL, Reading, TableProgress, Written, check_order, keys_of
from lakehead.extract.staging import frame_of, ingest_of
from lakehead.extract.table_settings import Rule, TableSettings
from lakehead.lake.filesink.file_sink import FileSink, Result, StagedDirectory
from lakehead.lake.filesink.published import label_of, published
from lakehead.lake.landing import Unit
from lakehead.lake.ports import Overtaken
from lakehead.lake.run_context import RunContext
from lakehead.lake.stagers import StagingFailed, disk_full, task_reason
from lakehead.spark.names import quoted
from lakehead.state.model import Mark, Watermark

T = TypeVar("T")

READERS_READ = "published"
"""The unit of a mirror or a final table: each newer generation replaces the one before."""


@dataclass(frozen=True, slots=True)
class ViewRows:
    """The rows of a temporary view."""

    view: str
    columns: tuple[str, ...]

    def sql(self, *conditions: str) -> str:
        """The SELECT statement for the rows that satisfy all conditions."""
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {', '.join(map(quoted, self.columns))} FROM {quoted(self.view)}{where}"  # noqa: S608 - quoted names


@dataclass
class FileTableSink:
    """One table of a source: raw's directories, and those that its readers read.

    A lease lets one run at a time write to a table. Each directory's label records the table's watermark, so the
    directories are the source of truth, as snapshots are for Iceberg. The label also has the table's id: if raw's
    directories are removed, the next load is a new table, of which the state has no record.
    """

    settings: TableSettings
    raw: FileSink
    out: FileSink | None
    run: RunContext
    _marks: dict[str, FileMark] = field(default_factory=dict)
    _columns: pa.Schema | None = None
    _id: str | None = None
    _new_id: str | None = None

    @property
    def id(self) -> str | None:
        """The id in the labels of raw's directories; before the first one is written, a new id of this run.

        Directories of versions that wrote no id belong to a table whose id is a hash of raw's location.
        """
        if self._id is None and (marks := [mark for mark, _ in self._slices()]):
            self._id = next((mark.table for mark in marks if mark.table), self._place)
        return self._id or self._new_id

    @property
    def _place(self) -> str:
        return f"files-{sha256(self.raw.root.encode()).hexdigest()[:40]}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of raw's columns."""
        if self._columns is not None:
            return tuple(raw_schema(self._columns).names)
        return tuple(self._read([directory for _, directory in self._slices()[-1:]]).columns)

    @property
    def evolves(self) -> bool:
        """False: files that were written are not changed."""
        return False

    @property
    def renewal(self) -> str:
        """What to do so that the table is loaded with other columns."""
        return f"rename the table, or remove {self._folders}, and load it again"

    @property
    def _folders(self) -> str:
        return " and ".join(sink.root for sink in (self.raw, self.out) if sink)

    def source_columns(self) -> pa.Schema | None:
        """The columns of raw's newest directory, without our own; None if there is none."""
        slices = self._slices()
        if not slices:
            return None
        there = to_arrow_schema(self._read([slices[-1][1]]).schema)
        return pa.schema([column for column in there if column.name not in INGEST_SCHEMA.names])

    def prepare(self, columns: pa.Schema) -> None:
        """Check that these columns are the same, by name and type, as in the existing files."""
        self._columns = columns
        slices = self._slices()
        if not slices:
            self._new_id = self._new_id or self.run.ids.uuid()
            return
        wanted = from_arrow_schema(raw_schema(columns), prefer_timestamp_ntz=True)
        if faults := _differences(wanted, self._read([slices[-1][1]]).schema):
            raise Misconfigured(
                f"The files of {self.settings.name} do not match their source, which has changed: {'; '.join(faults)}. "
                f"Nothing was written. What to do: {self.renewal}."
            )

    def has_published(self) -> bool:
        """Whether what readers read exists."""
        return bool(self._marked(self.out or self.raw))

    def progress(self) -> TableProgress:
        """The table's progress, according to the labels."""
        for sink in (self.raw, self.out):
            if sink is not None:
                sink.recover()
        raw = [mark for mark, _ in self._slices()]
        newest = max(raw, key=lambda mark: (mark.generation, mark.slice), default=None)
        shown = self._marked(self.out) if self.out else []
        return TableProgress(self._watermark(newest), self._watermark(shown[-1][0] if shown else None))

    def write_raw(self, load_date: date, generation: int, reading: Reading, progress: TableProgress) -> TableProgress:
        """Land a whole source table in raw, as the unit of that day."""
        number = progress.last_slice + 1
        mark = FileMark(
            value=number,
            slice=number,
            generation=generation,
            load_date=load_date,
            table=self.id,
            read_by=LOADED_IN_FULL,
        )
        unit = Unit(load_date.isoformat(), generation)
        return self._turn(lambda: self._land(unit, reading, mark, progress.raw, [self._not_emptied]))

    def finalize_full(self, progress: TableProgress) -> TableProgress:
        """Publish raw's newest slice to readers, in one step."""
        del progress  # read again when this run holds the lease
        keys = keys_of(self.settings, self.columns) if self.settings.null_keys is Rule.EXCLUDE else ()
        return self._turn(lambda: self._publish(lambda _, new: new.where(" AND ".join(whole_keys(keys)) or "true"), 1))

    def stage_incremental_slice(
        self, part: Slice, generation: int, reading: Reading, progress: TableProgress, *, replace: bool = False
    ) -> TableProgress:
        """Land one slice in raw, if raw's watermark is the slice's lower bound."""
        if replace:
            raise Misconfigured(
                f"The table {self.settings.name} of mode append cannot be reloaded in a file sink. Rename the table."
            )
        check_order(progress.raw, part, generation, self.settings.name)
        mark = FileMark(
            value=part.watermark,
            slice=progress.last_slice + 1,
            generation=generation,
            load_date=self.run.load_date,
            table=self.id,
            read_by=reading.read_by,
        )
        return self._turn(lambda: self._land(Unit(part.unit, generation), reading, mark, progress.raw))

    def commit_incremental(self, rule: DedupRule, progress: TableProgress) -> TableProgress:
        """Publish all slices of raw to readers: the newest row of each key, old and new."""
        del progress  # read again when this run holds the lease
        if rule.filters:
            raise Misconfigured(f"A file sink rewrites whole mirrors. Remove merge_filters from {self.settings.name}.")

        def merged(old: DataFrame | None, new: DataFrame) -> DataFrame:
            rows = new if old is None else old.unionByName(new)
            rows.createOrReplaceTempView("lakehead_rows")
            view = ViewRows("lakehead_rows", tuple(rows.columns))
            return self.run.session.sql(newest_of(self.run.session, view, rule))

        return self._turn(lambda: self._publish(merged, None))

    def close(self) -> None:
        """Nothing is open."""

    # --- directories

    def _slices(self) -> list[tuple[FileMark, str]]:
        return self._marked(self.raw)

    def _marked(self, sink: FileSink) -> list[tuple[FileMark, str]]:
        """The published directories with their marks, in the order of their slices."""
        found = []
        for directory in published(sink.root, files=sink.files):
            if directory not in self._marks:
                label = label_of(directory, files=sink.files)
                self._marks[directory] = decode_mark(label.watermark, directory=directory)
            found.append((self._marks[directory], directory))
        return sorted(found, key=lambda each: each[0].slice)

    def _watermark(self, mark: FileMark | None) -> Watermark | None:
        if mark is None or self.id is None:
            return None
        return Watermark(
            table=self.id,
            mark=Mark.LANDED,
            generation=mark.generation,
            value=mark.value,
            slice=mark.slice,
            last_loaded=mark.load_date,
            read_by=mark.read_by,
        )

    def _read(self, directories: Sequence[str]) -> DataFrame:
        return self.run.session.read.parquet(*directories)

    # --- landing

    def _turn(self, work: Callable[[], T]) -> T:
        """Do the work while holding the table's lease. Raises `Unavailable` if another run keeps holding it."""

        async def leased() -> T:
            async with self.run.table_leases().at(self._place, self.settings.name):
                return work()

        return asyncio.run(leased())

    def _land(
        self,
        unit: Unit,
        reading: Reading,
        mark: FileMark,
        expected: Watermark | None,
        checks: Sequence[Callable[[int], None]] = (),
    ) -> TableProgress:
        """Read a unit and land it in raw, if raw's watermark is still the expected one."""
        progress = self.progress()
        if self.raw.find(unit) is not None:
            return progress
        if progress.raw != expected:
            raise Overtaken(f"Another run has loaded more of {self.settings.name} since this slice was planned.")
        session = self.run.session
        ingest = ingest_of(self.run, reading, mark.slice, unit.generation)
        try:
            with reading.open_parts(session.sparkContext.defaultParallelism) as parts:
                staged = self._stage(self.raw, unit, frame_of(session, reading, parts, ingest), mark)
        except StagingFailed:
            reading.verify()
            raise
        return self._checked(staged, mark, [*checks, lambda _: reading.verify()])

    def _checked(
        self, staged: StagedDirectory, mark: FileMark, checks: Sequence[Callable[[int], None]]
    ) -> TableProgress:
        """Audit what was staged, and publish it."""
        try:
            counted, lacking = _counted(self._read([staged.directory]), keys_of(self.settings, self.columns))
            check_keys(self.settings, lacking)
            for check in checks:
                check(counted)
        except BaseException:
            self.raw.drop(staged)
            raise
        landed = self.raw.publish(staged)
        if landed.result is not Result.PUBLISHED:
            return self.progress()
        detail: dict[str, object] = {"null_keys": dict(lacking)} if lacking else {}
        written = Written(rows=counted, slice=mark.slice, location=landed.directory, detail=detail)
        return replace(self.progress(), written=written)

    def _publish(self, combine: Callable[[DataFrame | None, DataFrame], DataFrame], last: int | None) -> TableProgress:
        """Publish what `combine` makes of the rows that readers see and raw's newer slices.

        With `last`, only raw's last slices are published, and the rows that readers see are replaced.
        """
        progress = self.progress()
        raw, shown = progress.raw, progress.published
        if self.out is None or raw is None or progress.complete or (shown and (shown.slice or 0) > (raw.slice or 0)):
            return progress
        slices = [(mark, directory) for mark, directory in self._slices() if mark.generation == raw.generation]
        anew = last is not None or not progress.same_generation
        after = 0 if anew or shown is None else shown.slice or 0
        new = [directory for mark, directory in slices[-(last or 0) :] if mark.slice > after]
        old = [] if anew else [directory for _, directory in self._marked(self.out)]
        rows = combine(self._read(old) if old else None, self._read(new))
        mark = FileMark(
            value=raw.slice or 0,
            slice=raw.slice or 0,
            generation=raw.generation,
            load_date=raw.last_loaded or self.run.load_date,
            table=self.id,
        )
        staged = self._stage(self.out, Unit(READERS_READ, mark.slice), rows, mark)
        counted = self._read([staged.directory]).count()
        landed = self.out.publish(staged)
        if landed.result is not Result.PUBLISHED:
            return self.progress()
        written = Written(rows=counted, slice=mark.slice, location=landed.directory, detail={"total": counted})
        return replace(self.progress(), written=written)

    def _stage(self, sink: FileSink, unit: Unit, rows: DataFrame, mark: FileMark) -> StagedDirectory:
        try:
            return sink.stage(unit, rows.write.parquet, watermark=encode_mark(mark))
        except (PySparkException, Py4JJavaError) as error:
            raise disk_full(error, sink.root) or StagingFailed(
                f"The tasks that write rows for {self.settings.name} failed: {task_reason(error)}. Nothing was "
                "published; fix the cause and run it again."
            ) from error

    def _not_emptied(self, rows: int) -> None:
        before = self._slices()
        check_not_emptied(self.settings, rows, self._read([before[-1][1]]).count() if before and not rows else 0)


def _differences(wanted: StructType, there: StructType) -> list[str]:
    """How the source's columns differ from those of the files, one phrase for each difference."""
    source = {field.name: field.dataType.simpleString() for field in wanted}
    files = {field.name: field.dataType.simpleString() for field in there}
    faults = [f"there is a new column {name!r}" for name in source if name not in files]
    faults += [f"there is no column {name!r} any more" for name in files if name not in source]
    faults += [
        f"column {name!r} is {kind} in the source and {files[name]} in the files"
        for name, kind in source.items()
        if files.get(name, kind) != kind
    ]
    if not faults and list(source) != list(files):
        faults = [f"the order of the columns has changed, it was {', '.join(files)}"]
    return faults


def _counted(rows: DataFrame, keys: Sequence[str]) -> tuple[int, Mapping[str, int]]:
    """The number of rows, and for each key column that has NULLs, how many."""
    [found] = rows.agg(f.count(f.lit(1)), *(f.count_if(f.col(quoted(key)).isNull()) for key in keys)).collect()
    return found[0], {key: nulls for key, nulls in zip(keys, found[1:], strict=True) if nulls}
