"""A table kept as Parquet directories: outside of the landing protocol, each unit once all the same."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from hashlib import sha256
from typing import TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lakehead.errors import Misconfigured
from lakehead.extract.audits import check_keys, check_not_emptied
from lakehead.extract.file_marks import FileMark, decode_mark, encode_mark
from lakehead.extract.merging import Newest, newest_of, whole_keys
from lakehead.extract.planning.windows import Slice
from lakehead.extract.rows import raw_schema
from lakehead.extract.sink import LOADED_IN_FULL, Reading, Standing, Written, check_order, keys_of
from lakehead.extract.staging import frame_of
from lakehead.extract.surroundings import Shared
from lakehead.extract.table import Rule, TableSettings
from lakehead.lake.filesink.published import label_of, published
from lakehead.lake.filesink.sink import FileSink, Result, Staged
from lakehead.lake.landing import Unit
from lakehead.lake.lane import StagingFailed, disk_full, task_reason
from lakehead.spark.names import quoted
from lakehead.state.model import Mark, Watermark

T = TypeVar("T")

READERS_READ = "published"
"""The unit of a mirror or a final: each newer generation takes the place of the one before."""


@dataclass(frozen=True, slots=True)
class ViewRows:
    """The rows of a temporary view."""

    view: str
    columns: tuple[str, ...]

    def sql(self, *conditions: str) -> str:
        """The statement that reads those that satisfy all conditions."""
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return f"SELECT {', '.join(map(quoted, self.columns))} FROM {quoted(self.view)}{where}"  # noqa: S608 - quoted names


@dataclass
class FileTableSink:
    """One table of a source: raw's directories, and those that its readers read.

    Runs take turns at a table. What a directory brought the table to stands in its label, so the directories are the
    truth here, as snapshots are elsewhere. The table's id stands there too: when raw's directories are removed, what
    is loaded next is another table, of which the state knows nothing.
    """

    settings: TableSettings
    raw: FileSink
    out: FileSink | None
    shared: Shared
    _marks: dict[str, FileMark] = field(default_factory=dict)
    _columns: pa.Schema | None = None
    _id: str | None = None
    _new_id: str | None = None

    @property
    def id(self) -> str | None:
        """What raw's directories say; before the first one is there, an id of this run's own.

        Directories of versions that wrote no id belong to a table whose id is a hash of raw's place.
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

    def prepare(self, columns: pa.Schema) -> None:
        """Check that rows of these columns fit those that are there, by name and type."""
        self._columns = columns
        slices = self._slices()
        if not slices:
            self._new_id = self._new_id or self.shared.ids.uuid()
            return
        wanted = from_arrow_schema(raw_schema(columns), prefer_timestamp_ntz=True)
        if faults := _differences(wanted, self._read([slices[-1][1]]).schema):
            folders = " and ".join(sink.root for sink in (self.raw, self.out) if sink)
            raise Misconfigured(
                f"The files of {self.settings.name} do not fit their source, which has changed: {'; '.join(faults)}. "
                f"Nothing was written. Give the table another name, or remove {folders}, and load it anew."
            )

    def has_published(self) -> bool:
        """Whether what readers read is there."""
        return bool(self._marked(self.out or self.raw))

    def standing(self) -> Standing:
        """How far the table is, as the labels say."""
        for sink in (self.raw, self.out):
            if sink is not None:
                sink.recover()
        raw = [mark for mark, _ in self._slices()]
        newest = max(raw, key=lambda mark: (mark.generation, mark.slice), default=None)
        shown = self._marked(self.out) if self.out else []
        return Standing(self._watermark(newest), self._watermark(shown[-1][0] if shown else None))

    def write_raw(self, load_date: date, generation: int, reading: Reading) -> Written | None:
        """Bring a whole source table to raw, as the unit of that day."""

        def mark() -> FileMark:
            number = self.standing().last_slice + 1
            return FileMark(
                value=number,
                slice=number,
                generation=generation,
                load_date=load_date,
                table=self.id,
                read_by=LOADED_IN_FULL,
            )

        unit = Unit(load_date.isoformat(), generation)
        return self._turn(lambda: self._land(unit, reading, mark, [self._not_emptied]))

    def finalize_full(self) -> Written | None:
        """Let readers see raw's newest slice, whole and at once."""
        keys = keys_of(self.settings, self.columns) if self.settings.null_keys is Rule.EXCLUDE else ()
        return self._turn(lambda: self._publish(lambda _, new: new.where(" AND ".join(whole_keys(keys)) or "true"), 1))

    def stage_incremental_slice(
        self, part: Slice, generation: int, reading: Reading, *, replace: bool = False
    ) -> Written | None:
        """Bring one slice to raw, if raw stands exactly where the slice begins."""
        if replace:
            raise Misconfigured(
                f"The table {self.settings.name} of mode append cannot be loaded anew into a sink of files. Give it "
                "another name."
            )

        def mark() -> FileMark:
            standing = self.standing()
            check_order(standing.raw, part, generation, self.settings.name)
            return FileMark(
                value=part.watermark,
                slice=standing.last_slice + 1,
                generation=generation,
                load_date=self.shared.load_date,
                table=self.id,
                read_by=reading.read_by,
            )

        return self._turn(lambda: self._land(Unit(part.unit, generation), reading, mark))

    def commit_incremental(self, newest: Newest) -> Written | None:
        """Let readers see all slices of raw: the newest row of each key, old and new."""
        if newest.filters:
            raise Misconfigured(
                f"A sink of files writes mirrors whole. Take merge_filters out of {self.settings.name}."
            )

        def merged(old: DataFrame | None, new: DataFrame) -> DataFrame:
            rows = new if old is None else old.unionByName(new)
            rows.createOrReplaceTempView("lakehead_rows")
            return self.shared.session.sql(
                newest_of(self.shared.session, ViewRows("lakehead_rows", tuple(rows.columns)), newest)
            )

        return self._turn(lambda: self._publish(merged, None))

    def close(self) -> None:
        """Nothing is open."""

    # --- directories

    def _slices(self) -> list[tuple[FileMark, str]]:
        return self._marked(self.raw)

    def _marked(self, sink: FileSink) -> list[tuple[FileMark, str]]:
        """The published directories with what they say, in the order of their slices."""
        found = []
        for directory in published(sink.root, files=sink.files):
            if directory not in self._marks:
                told = label_of(directory, files=sink.files).watermark
                self._marks[directory] = decode_mark(told, directory=directory)
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
        return self.shared.session.read.parquet(*directories)

    # --- landing

    def _turn(self, work: Callable[[], T]) -> T:
        """Have the table's place to ourselves. Raises `Unavailable` if another run has it all the time."""

        async def turn() -> T:
            async with self.shared.turns().at(self._place, self.settings.name):
                return work()

        return asyncio.run(turn())

    def _land(
        self,
        unit: Unit,
        reading: Reading,
        mark: Callable[[], FileMark],
        checks: Sequence[Callable[[int], None]] = (),
    ) -> Written | None:
        if self.raw.find(unit) is not None:
            return None
        reached = mark()
        with ExitStack() as held:
            rows = frame_of(
                self.shared.session,
                reading,
                self.shared.ingest(reading.told, reached.slice, unit.generation),
                held,
            )
            try:
                staged = self._stage(self.raw, unit, rows, reached)
            except StagingFailed:
                reading.ask_again()
                raise
        return self._checked(staged, reached, checks)

    def _checked(self, staged: Staged, reached: FileMark, checks: Sequence[Callable[[int], None]]) -> Written | None:
        """Publish what was staged, once it has been looked at."""
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
            return None
        detail: dict[str, object] = {"null_keys": dict(lacking)} if lacking else {}
        return Written(rows=counted, slice=reached.slice, location=landed.directory, detail=detail)

    def _publish(self, made: Callable[[DataFrame | None, DataFrame], DataFrame], last: int | None) -> Written | None:
        """Make what readers read of raw's slices: of the last ones, or of all that it has not got."""
        standing = self.standing()
        raw, shown = standing.raw, standing.published
        if self.out is None or raw is None or standing.complete or (shown and (shown.slice or 0) > (raw.slice or 0)):
            return None
        theirs = [(mark, directory) for mark, directory in self._slices() if mark.generation == raw.generation]
        anew = last is not None or not standing.same_generation
        after = 0 if anew or shown is None else shown.slice or 0
        new = [directory for mark, directory in theirs[-(last or 0) :] if mark.slice > after]
        old = [] if anew else [directory for _, directory in self._marked(self.out)]
        rows = made(self._read(old) if old else None, self._read(new))
        reached = FileMark(
            value=raw.slice or 0,
            slice=raw.slice or 0,
            generation=raw.generation,
            load_date=raw.last_loaded or self.shared.load_date,
            table=self.id,
        )
        staged = self._stage(self.out, Unit(READERS_READ, reached.slice), rows, reached)
        counted = self._read([staged.directory]).count()
        landed = self.out.publish(staged)
        if landed.result is not Result.PUBLISHED:
            return None
        return Written(rows=counted, slice=reached.slice, location=landed.directory, detail={"total": counted})

    def _stage(self, sink: FileSink, unit: Unit, rows: DataFrame, mark: FileMark) -> Staged:
        try:
            return sink.stage(unit, rows.write.parquet, watermark=encode_mark(mark))
        except (PySparkException, Py4JJavaError) as error:
            raise disk_full(error, sink.root) or StagingFailed(
                f"The tasks that write rows for {self.settings.name} failed: {task_reason(error)}. Nothing was "
                "published; mend the cause and run it again."
            ) from error

    def _not_emptied(self, rows: int) -> None:
        before = self._slices()
        check_not_emptied(self.settings, rows, self._read([before[-1][1]]).count() if before and not rows else 0)


def _differences(wanted: StructType, there: StructType) -> list[str]:
    """What of the source's columns is not as in the files, each in a few words."""
    comes = {field.name: field.dataType.simpleString() for field in wanted}
    has = {field.name: field.dataType.simpleString() for field in there}
    faults = [f"there is a new column {name!r}" for name in comes if name not in has]
    faults += [f"there is no column {name!r} any more" for name in has if name not in comes]
    faults += [
        f"column {name!r} is {kind} in the source and {has[name]} in the files"
        for name, kind in comes.items()
        if has.get(name, kind) != kind
    ]
    if not faults and list(comes) != list(has):
        faults = [f"the columns stand in another order, which was {', '.join(has)}"]
    return faults


def _counted(rows: DataFrame, keys: Sequence[str]) -> tuple[int, Mapping[str, int]]:
    """How many rows there are, and how many lack a value in each of the keys."""
    [found] = rows.agg(f.count(f.lit(1)), *(f.count_if(f.col(quoted(key)).isNull()) for key in keys)).collect()
    return found[0], {key: nulls for key, nulls in zip(keys, found[1:], strict=True) if nulls}
