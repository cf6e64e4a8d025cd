"""What is to be done with one table of a source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lakehead.extract.planning.axis import Kind
from lakehead.source.port import TableName
from lakehead.state.model import Value


class Rule(StrEnum):
    """What becomes of rows that lack a value."""

    INCLUDE = "include"
    EXCLUDE = "exclude"
    FAIL = "fail"


class LateCommits(StrEnum):
    """What becomes of a table that may lose rows which are committed late, because its source does not tell of them."""

    REFUSE = "refuse"
    """It is not read, unless a lag protects it."""

    ACCEPT = "accept"
    """It is read all the same."""


class Finalize(StrEnum):
    """What a full refresh becomes for its readers."""

    TABLE = "table"
    """A table of its own."""

    VIEW = "view"
    """A view of the newest raw rows: nothing is written twice."""


class Reader(StrEnum):
    """How rows are read."""

    AUTO = "auto"
    ARROW = "arrow"
    JDBC = "jdbc"


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of a partition spec, in Iceberg's words."""

    column: str
    transform: str
    """identity, year, month, day, hour, bucket or truncate."""

    size: int | None = None
    """The number of buckets, or the length to which is truncated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """One table, and how it is kept. Names of columns are as somebody wrote them; the source's catalogue decides."""

    name: str
    """What the table is called in commands, events and the sink."""

    source: TableName
    mode: str
    """The strategy that loads it."""

    incremental_column: str | None = None
    """The column whose values only grow when a row is written; for the modes that read what is new."""

    incremental_kind: Kind | None = None
    """What that column holds. Default: what the source's catalogue says."""

    initial_watermark: Value | None = None
    """Where the first reading starts. Default: at the first value."""

    lag_seconds: int = 0
    """How late a row may be committed after its value was taken."""

    late_commits: LateCommits = LateCommits.REFUSE
    max_held_back_seconds: int = 86_400
    """How long an open transaction may hold the table back before that is a failure; 0: for ever."""

    primary_keys: tuple[str, ...] = ()
    """The columns that name a row."""

    tiebreak_columns: tuple[str, ...] = ()
    """Which of two rows of one key and one watermark is newer: the one with the larger value in the first of these."""

    source_filter: str | None = None
    """One condition of the table's columns, not parsed yet. Default: all rows."""

    as_text: tuple[str, ...] = ()
    as_decimal: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    null_watermarks: Rule = Rule.FAIL
    null_keys: Rule = Rule.FAIL
    partition_by: tuple[PartitionField, ...] = ()
    """How the mirror or the final table is partitioned. Raw is partitioned by load date."""

    merge_filters: tuple[str, ...] = ()
    """Conditions that all rows of the mirror that a merge may meet satisfy, not parsed yet."""

    finalize: Finalize | None = Finalize.TABLE
    """What a full refresh becomes; None ends it with raw."""

    allow_empty: bool = False
    """Whether a full refresh may leave a table without rows."""

    reader: Reader = Reader.AUTO
    read_partitions: int | None = None
    """Parts that one reading is divided into. Default: as many as tasks run side by side."""

    fetch_rows: int = 10_000
    """Rows that a JDBC driver fetches at a time."""

    reload: bool = False
    """Whether it is loaded anew, whatever was loaded before."""
