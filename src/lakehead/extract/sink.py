"""The interface of a table's sink, which strategies write to, and the records that they exchange."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol

import pyarrow as pa

from lakehead.extract.merging import DedupRule
from lakehead.extract.planning.windows import Slice
from lakehead.extract.protection_rules import Protection
from lakehead.extract.raw_rows import SLICE
from lakehead.extract.table_settings import Reader, TableSettings
from lakehead.lake.ports import Overtaken
from lakehead.source.port import ColumnNames, Query, ReadPart, Source
from lakehead.state.model import ReadBy, Watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a step has made visible, and where."""

    rows: int | None
    """None if they were not counted."""

    slice: int
    location: str
    snapshot: int | None = None
    detail: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableProgress:
    """How far a table is, in raw and for its readers, according to its snapshots."""

    raw: Watermark | None = None
    published: Watermark | None = None
    """The watermark of the mirror or the final table. Its slice is the last one of raw that readers see."""

    written: Written | None = None
    """What the step that returns this has written; None if another run had done it or nothing was left to do."""

    @property
    def generation(self) -> int:
        """How often the table was reloaded. A raw table that was dropped and created again counts as a reload."""
        if self.raw is not None:
            return self.raw.generation
        return 0 if self.published is None else self.published.generation + 1

    @property
    def last_slice(self) -> int:
        """The highest number that a slice ever had."""
        return max(mark.slice or 0 for mark in (self.raw, self.published) if mark) if self.raw or self.published else 0

    @property
    def same_generation(self) -> bool:
        """Whether readers see rows of raw's current generation."""
        return bool(self.raw and self.published and self.raw.generation == self.published.generation)

    @property
    def complete(self) -> bool:
        """Whether readers see all rows of raw. They may see more, after raw was rolled back to an earlier slice."""
        if self.raw is None or self.published is None:
            return self.raw is None
        return self.same_generation and (self.raw.slice or 0) <= (self.published.slice or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is read from a source, and how."""

    source: Source
    query: Query
    reader: Reader = Reader.AUTO
    parts: int | None = None
    """How many parts. Default: Spark's default parallelism."""

    fetch_rows: int = 10_000
    protections: Mapping[str, Protection] = field(default_factory=dict)
    """Columns that are masked or hashed, by their exact names."""

    read_by: ReadBy | None = None
    """The column and filter to record with the new watermark."""

    verify: Callable[[], None]
    """Asks the source's catalogue again, after the rows were read. Raises if the columns have changed meanwhile, or if
    the source is what made the tasks fail."""

    @property
    def label(self) -> str:
        """The source and its table, without secrets: for logs and raw's `_source` column."""
        return f"{self.source.settings} {self.query.table}"

    @property
    def by_jdbc(self) -> bool:
        """Whether Spark's JDBC reader reads it, instead of our own tasks."""
        return self.reader is Reader.JDBC or (self.reader is Reader.AUTO and not self.source.capabilities.arrow)

    @contextmanager
    def open_parts(self, tasks: int) -> Iterator[tuple[ReadPart, ...]]:
        """The parts to read. All see one snapshot of the source, which is held open until the `with` ends."""
        with self.source.snapshot() as snapshot:
            yield self.source.parts(self.query, self.parts or tasks, snapshot)


LOADED_IN_FULL = ReadBy(SLICE)
"""The `read_by` of a table that is loaded in full: its watermark counts the loads and belongs to no column."""


def is_full_load(raw: Watermark | None) -> bool:
    """Whether raw's newest slice is a whole source table.

    Older versions recorded no `read_by`; theirs is a full load if the watermark equals the slice number.
    """
    if raw is None or raw.read_by is None:
        return raw is not None and raw.value == raw.slice
    return raw.read_by == LOADED_IN_FULL


class TableSink(Protocol):
    """Where one table is stored: raw, and the mirror or the final table for its readers.

    Use it from one thread. Each method that writes does so exactly once, also if other runs load the same table: it
    waits for another run that does the same step. It takes the table's progress and returns the new progress.
    """

    @property
    def id(self) -> str | None:
        """The table's id in the state; None until it is prepared for the first time."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of raw's columns."""
        ...

    @property
    def evolves(self) -> bool:
        """Whether columns can be added to a table that exists, and widened."""
        ...

    @property
    def renewal(self) -> str:
        """What to do so that the table is loaded with other columns, if it does not evolve; else empty."""
        ...

    def source_columns(self) -> pa.Schema | None:
        """Raw's columns without our own; None if it does not exist."""
        ...

    def prepare(self, columns: pa.Schema) -> None:
        """Create what does not exist yet for rows of these columns, and add or widen columns of what does.

        `columns` are all that the table needs, those included that the source no longer has. Raises `Misconfigured` if
        they do not fit.
        """
        ...

    def progress(self) -> TableProgress:
        """The table's progress, including everything that was published up to now."""
        ...

    def has_published(self) -> bool:
        """Whether what readers read exists: the mirror, the final table or its view may have been removed since."""
        ...

    def write_raw(self, load_date: date, generation: int, reading: Reading, progress: TableProgress) -> TableProgress:
        """Land a whole source table in raw, as the unit of that day."""
        ...

    def finalize_full(self, progress: TableProgress) -> TableProgress:
        """Publish raw's newest slice to readers, in one step."""
        ...

    def stage_incremental_slice(
        self, part: Slice, generation: int, reading: Reading, progress: TableProgress, *, replace: bool = False
    ) -> TableProgress:
        """Land one slice in raw. Raises `Overtaken` unless raw's watermark is the slice's lower bound.

        With `replace` it replaces everything in raw.
        """
        ...

    def commit_incremental(self, rule: DedupRule, progress: TableProgress) -> TableProgress:
        """Publish all slices of raw to readers: the newest row of each key. Raises `Overtaken` if another run has."""
        ...

    def close(self) -> None:
        """Release connections and other resources."""
        ...


def keys_of(settings: TableSettings, columns: Iterable[str]) -> tuple[str, ...]:
    """The primary key columns, spelled as in `columns`."""
    known = ColumnNames(settings.name, tuple(columns), settings.name)
    return tuple(known.find(key) for key in settings.primary_keys)


def check_order(raw: Watermark | None, part: Slice, generation: int, table: str) -> None:
    """Raise `Overtaken` unless the slice starts at raw's watermark, or is the first of a new generation."""
    begins = part.after is None and (raw is None or raw.generation < generation)
    follows = raw is not None and (raw.generation, raw.value) == (generation, part.after)
    if not (begins or follows):
        raise Overtaken(f"Another run has loaded more of {table} since this slice was planned.")
