"""What a strategy asks of the place where a table is kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol

import pyarrow as pa

from lakehead.errors import LakeheadError
from lakehead.extract.merging import Newest
from lakehead.extract.planning.windows import Slice
from lakehead.extract.rows import SLICE
from lakehead.extract.table import Reader, TableSettings
from lakehead.source.port import Column, Query, Source, TableInfo, TableName
from lakehead.state.model import ReadBy, Watermark


class Overtaken(LakeheadError):
    """Another run has brought the table further since this was decided. Nothing was published; look again."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a table is, in raw and for its readers, as its snapshots say."""

    raw: Watermark | None = None
    published: Watermark | None = None
    """Of the mirror or the final table: its slice is the last of raw's that readers see."""

    @property
    def generation(self) -> int:
        """How often the table was loaded anew. A raw table that was made again is such a time too."""
        if self.raw is not None:
            return self.raw.generation
        return 0 if self.published is None else self.published.generation + 1

    @property
    def last_slice(self) -> int:
        """The highest number that a slice ever had."""
        return max(mark.slice or 0 for mark in (self.raw, self.published) if mark) if self.raw or self.published else 0

    @property
    def same_generation(self) -> bool:
        """Whether readers see rows of raw's own generation."""
        return bool(self.raw and self.published and self.raw.generation == self.published.generation)

    @property
    def complete(self) -> bool:
        """Whether readers see all that raw has. They may see more, after raw was put back to an earlier slice."""
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
    """How many parts. Default: as many as tasks run side by side."""

    fetch_rows: int = 10_000
    read_by: ReadBy | None = None
    """What the watermark that is reached by it will say that it was read by."""

    @property
    def told(self) -> str:
        """What is read, as it may be said aloud."""
        return f"{self.source.settings} {self.query.table}"

    @property
    def by_jdbc(self) -> bool:
        """Whether Spark reads it, and not tasks of ours."""
        return self.reader is Reader.JDBC or (self.reader is Reader.AUTO and not self.source.can.arrow)

    def ask_again(self) -> None:
        """Raise what is wrong with the source, if it is: one that has gone says so better than tasks that it left."""
        table = self.query.table
        self.source.catalogue(TableName(table.name, table.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What has become visible, and where."""

    rows: int | None
    """None where nobody has counted them."""

    slice: int
    location: str
    snapshot: int | None = None
    detail: Mapping[str, object] = field(default_factory=dict)


LOADED_IN_FULL = ReadBy(SLICE)
"""What the watermark of a table was read by that is loaded in full: it counts the loads, and means no column."""


def is_full_load(raw: Watermark | None) -> bool:
    """Whether raw's newest slice is a whole source table. Of older versions only the number of the load says it."""
    if raw is None or raw.read_by is None:
        return raw is not None and raw.value == raw.slice
    return raw.read_by == LOADED_IN_FULL


class TableSink(Protocol):
    """Where one table is kept: raw, and the mirror or the final table for its readers.

    Its methods are used by one thread. Each that writes is exactly once, whoever else runs the table: it waits for
    another run that is at the same work, and answers None where that has done it.
    """

    @property
    def id(self) -> str | None:
        """Under which the state knows the table; None before it was ever prepared."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of raw's columns."""
        ...

    def prepare(self, columns: pa.Schema) -> None:
        """Make what is not there yet for rows of these columns. Raises `Misconfigured` where they do not fit."""
        ...

    def standing(self) -> Standing:
        """How far the table is, after everything published was settled."""
        ...

    def has_published(self) -> bool:
        """Whether what readers read is there: the mirror, the final or its view may have been removed since."""
        ...

    def write_raw(self, load_date: date, generation: int, reading: Reading) -> Written | None:
        """Bring a whole source table to raw, as the unit of that day."""
        ...

    def finalize_full(self) -> Written | None:
        """Let readers see raw's newest slice, whole and at once."""
        ...

    def stage_incremental_slice(
        self, part: Slice, generation: int, reading: Reading, *, replace: bool = False
    ) -> Written | None:
        """Bring one slice to raw. Raises `Overtaken` unless raw stands exactly where the slice begins.

        With `replace` it takes the place of all that raw had.
        """
        ...

    def commit_incremental(self, newest: Newest) -> Written | None:
        """Let readers see all slices of raw: the newest row of each key."""
        ...

    def close(self) -> None:
        """Give back what was opened."""
        ...


def known_by(columns: Iterable[str], table: str) -> TableInfo:
    """A table of these columns, to be asked for them by names as somebody wrote them."""
    known = tuple(Column(name=name, declared="", arrow=None) for name in columns)
    return TableInfo(schema=None, name=table, quoted=table, columns=known)


def keys_of(settings: TableSettings, columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that name a row, as they are spelled among these."""
    known = known_by(columns, settings.name)
    return tuple(known.column(key).name for key in settings.primary_keys)


def check_order(raw: Watermark | None, part: Slice, generation: int, table: str) -> None:
    """Whether a slice may land on raw as it is: raw stands at the slice's beginning, or the slice begins anew."""
    begins = part.after is None and (raw is None or raw.generation < generation)
    follows = raw is not None and (raw.generation, raw.value) == (generation, part.after)
    if not (begins or follows):
        raise Overtaken(f"The plan of {table} does not go on where its raw table stands: another run was further.")
