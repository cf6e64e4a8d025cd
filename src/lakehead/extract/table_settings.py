"""The settings of one table of a source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from lakehead.extract.modes import Mode
from lakehead.extract.planning.axis import Kind
from lakehead.extract.protection_rules import Protection
from lakehead.state.model import Value

if TYPE_CHECKING:
    from lakehead.source.port import TableName


class Rule(StrEnum):
    """What to do with rows that have NULL in a key or watermark column."""

    INCLUDE = "include"
    EXCLUDE = "exclude"
    FAIL = "fail"


class LateCommits(StrEnum):
    """What to do with a table that may miss rows committed late, because its source does not show all transactions."""

    REFUSE = "refuse"
    """Do not read it, unless a lag protects it."""

    ACCEPT = "accept"
    """Read it anyway."""


class Finalize(StrEnum):
    """How a full refresh is published."""

    TABLE = "table"
    """A table of its own."""

    VIEW = "view"
    """A view of the newest raw rows, so that no row is written twice."""


class Reader(StrEnum):
    """How rows are read."""

    AUTO = "auto"
    ARROW = "arrow"
    JDBC = "jdbc"


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of an Iceberg partition spec."""

    column: str
    transform: str
    """identity, year, month, day, hour, bucket or truncate."""

    size: int | None = None
    """The number of buckets, or the width to truncate to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """One table, and how it is loaded. Column names are as configured; the source's catalogue has their spelling."""

    name: str
    """What the table is called in commands, events and the sink."""

    source: "TableName"
    mode: Mode

    incremental_column: str | None = None
    """The column whose values only grow when a row is written; for the modes that read what is new."""

    incremental_kind: Kind | None = None
    """The kind of that column. Default: from the source's catalogue."""

    initial_watermark: Value | None = None
    """Where the first load starts. Default: at the lowest value."""

    lag_seconds: int = 0
    """How long after it took its value a row may be committed."""

    late_commits: LateCommits = LateCommits.REFUSE
    max_held_back_seconds: int = 86_400
    """How long an open transaction may hold the table back before the load fails; 0: without limit."""

    primary_keys: tuple[str, ...] = ()
    """The columns that identify a row."""

    tiebreak_columns: tuple[str, ...] = ()
    """Of two rows with the same key and watermark, the one with larger values in these columns, in order, is newer."""

    source_filter: str | None = None
    """A condition on the table's columns, not parsed yet. Default: all rows."""

    as_text: tuple[str, ...] = ()
    as_decimal: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    columns: Mapping[str, Protection] = field(default_factory=dict)
    """Columns that are left out, masked or hashed."""

    null_watermarks: Rule = Rule.FAIL
    null_keys: Rule = Rule.FAIL
    partition_by: tuple[PartitionField, ...] = ()
    """How the mirror or the final table is partitioned. Raw is partitioned by load date."""

    merge_filters: tuple[str, ...] = ()
    """Conditions that every mirror row that a merge may match satisfies, not parsed yet."""

    finalize: Finalize | None = Finalize.TABLE
    """How a full refresh is published; None: readers read raw."""

    allow_empty: bool = False
    """Whether a full refresh may leave a table without rows."""

    reader: Reader = Reader.AUTO
    read_partitions: int | None = None
    """The number of parts that a read is divided into. Default: Spark's default parallelism."""

    fetch_rows: int = 10_000
    """Rows that a JDBC driver fetches at a time."""

    reload: bool = False
    """Whether to load it again from the start, whatever was loaded before."""
