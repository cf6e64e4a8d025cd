"""What is said of each table."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator, ValidationInfo, field_validator

from lakehead.extract.planning.axis import Kind
from lakehead.run.config.partitions import PartitionBy
from lakehead.run.config.parts import LATER, NAME, Part, Switch, Text, Whole, wrong
from lakehead.run.config.runtime import Count
from lakehead.run.config.watermarks import read_watermark
from lakehead.state.model import Value

INCREMENTAL = ("scd1", "append")
DIGITS = 38

Rule = Literal["include", "exclude", "fail"]


def _decimal(given: object) -> tuple[int, int]:
    found = re.fullmatch(r"decimal\(\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*\)", given) if isinstance(given, str) else None
    if found is None or not (1 <= int(found[1]) <= DIGITS and int(found[2]) <= int(found[1])):
        raise wrong("must be a decimal of at most 38 digits, such as decimal(38, 10).")
    return int(found[1]), int(found[2])


DecimalType = Annotated[tuple[int, int], BeforeValidator(_decimal, json_schema_input_type=str)]
Anything = Annotated[Value | None, PlainValidator(lambda given: given, json_schema_input_type=str | int | float | None)]


class Reconciliation(Part):
    """How a table is compared with its source."""

    counts: Switch = Field(default=True, description=f"Whether rows are counted on both sides. {LATER}")
    sums: tuple[Text, ...] = Field((), description=f"Columns that are summed on both sides. {LATER}")
    checksums: tuple[Text, ...] = Field((), description=f"Columns whose hashes are compared. {LATER}")
    sample_keys: Annotated[Whole, Field(ge=0)] = Field(
        0, description=f"Keys that are drawn and compared row by row. {LATER}"
    )
    tolerated_rows: Annotated[Whole, Field(ge=0)] = Field(0, description=f"Rows by which the sides may differ. {LATER}")


class Table(Part):
    """One table of a source, and how it is kept."""

    schema_name: Text | None = Field(
        None, alias="schema", description="The table's schema in the source. Default: none, the connection's own."
    )
    table: Text = Field(description="The table's name in the source.")
    name: Annotated[str, Field(pattern=NAME)] | None = Field(
        None,
        description="What the table is called in commands, events and the sink: words of letters, digits, _ and -, "
        "with dots between them. Default: schema.table.",
    )
    source: Text | None = Field(None, description="The source it is read from. Default: the only one there is.")
    sink: Text | None = Field(None, description="The sink it is kept in. Default: the only one there is.")
    mode: Literal["full", "scd1", "append"] = Field(
        description="full: read whole each day, and replaced. scd1: what has changed is read and merged by key. "
        "append: what is new is read and added."
    )
    incremental_column: Text | None = Field(
        None, description="The column whose value grows with every change. Needed by scd1 and append."
    )
    incr_col_type: Kind | None = Field(
        None,
        description="What the incremental column holds: integer, decimal, date, timestamp (without a zone), "
        "timestamptz or text. Default: what the source's catalogue says.",
    )
    initial_watermark: Anything = Field(
        None,
        description="Where the first reading starts, in the form of incr_col_type, which is then needed. Default: at "
        "the first value.",
    )
    lag_seconds: Annotated[Whole, Field(ge=0, le=10**9)] = Field(
        0,
        description="Seconds by which a row may be committed after its value was taken: reading ends that much before "
        "the source's time, and a merge starts that much before the watermark. Not for numbers and text.",
    )
    late_commits: Literal["refuse", "accept"] = Field(
        "refuse",
        description="What to do where the source does not tell of all open transactions, whose rows would be missed if "
        "they are committed after the read. refuse: fail, unless there is a lag. accept: read all the same, numbers "
        "and text also while transactions are open.",
    )
    max_held_back_seconds: Annotated[Whole, Field(ge=0, le=10**9)] = Field(
        86_400,
        description="Seconds for which an open transaction, or a standby that does not follow its primary, may hold "
        "the table back; then the table fails. 0: for ever.",
    )
    primary_keys: tuple[Text, ...] = Field(
        (), description="The columns that name a row. Needed by scd1. Default: none."
    )
    tiebreak_columns: tuple[Text, ...] = Field(
        (),
        description="Which of two rows of one key and one watermark is newer: the one with the larger value in the "
        "first of these columns, then in the second. Default: none.",
    )
    source_filter: Text | None = Field(
        None, description="One boolean SQL expression of the table's columns; rows that it is not true for stay behind."
    )
    as_text: tuple[Text, ...] = Field(
        (), description="Columns that are carried as text, where their type has no exact place in the target."
    )
    as_decimal: Mapping[str, DecimalType] = Field(
        {}, description="Columns of unbounded numbers and the decimal(precision, scale) that every value must fit."
    )
    null_watermarks: Rule = Field(
        "fail",
        description="Rows without a watermark: include them each time (not with append), exclude them, or fail. They "
        "are counted.",
    )
    null_keys: Rule = Field(
        "fail",
        description="Rows without a whole key: include them, exclude them from what readers see (not with append), or "
        "fail. They are counted.",
    )
    partition_by: tuple[PartitionBy, ...] = Field(
        (),
        description="How the mirror or the final table is partitioned: columns, or years, months, days, hours(column), "
        "bucket(n, column), truncate(n, column). Raw is partitioned by load date. Default: not.",
    )
    merge_filters: tuple[Text, ...] = Field(
        (),
        description="Boolean SQL expressions of the mirror's columns that all rows to be merged into satisfy, so that "
        "a merge need not look at the others. Default: none.",
    )
    finalize: Literal["table", "view"] = Field(
        "table", description="What a full refresh's final is: a table of its own, or a view of the newest raw rows."
    )
    allow_empty: Switch = Field(default=False, description="Whether a full refresh may leave a table without rows.")
    reader: Literal["auto", "arrow", "jdbc"] = Field(
        "auto",
        description="How rows are read: auto is Arrow where the dialect has a driver for it, and JDBC elsewhere.",
    )
    read_partitions: Count | None = Field(
        None, description="Parts that one reading is divided into, side by side. Default: as many as there are cores."
    )
    fetch_rows: Count = Field(10_000, description="Rows that a JDBC driver fetches at a time.")
    force_reload: Switch = Field(
        default=False, description="Whether every run loads the table anew, as --reload does for one run."
    )
    reconciliation: Reconciliation | None = Field(
        None, description=f"How the table is compared with its source. {LATER}"
    )

    @field_validator("incremental_column")
    @classmethod
    def _incremental_column(cls, column: str | None, info: ValidationInfo) -> str | None:
        mode = info.data.get("mode")
        if column is None and mode in INCREMENTAL:
            raise wrong(f"is missing: mode {mode} reads what is past the largest value of it.")
        return column

    @field_validator("initial_watermark")
    @classmethod
    def _initial_watermark(cls, given: object, info: ValidationInfo) -> Value | None:
        if given is None or "incr_col_type" not in info.data:
            return None
        kind = info.data["incr_col_type"]
        if kind is None:
            raise wrong("needs incr_col_type beside it, which says how it is read.")
        return read_watermark(kind, given)

    @field_validator("lag_seconds")
    @classmethod
    def _lag_seconds(cls, seconds: int, info: ValidationInfo) -> int:
        kind = info.data.get("incr_col_type")
        if seconds and kind is not None and not kind.follows_the_clock:
            raise wrong(f"must be 0: a column of the kind {kind} has no seconds.")
        return seconds

    @field_validator("primary_keys")
    @classmethod
    def _primary_keys(cls, keys: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not keys and info.data.get("mode") == "scd1":
            raise wrong("is missing: mode scd1 merges by it. List the columns that name a row.")
        return keys

    @field_validator("null_watermarks")
    @classmethod
    def _null_watermarks(cls, rule: Rule, info: ValidationInfo) -> Rule:
        if rule == "include" and info.data.get("mode") == "append":
            raise wrong("must be exclude or fail: with mode append such rows would be added again by every run.")
        return rule

    @field_validator("null_keys")
    @classmethod
    def _null_keys(cls, rule: Rule, info: ValidationInfo) -> Rule:
        if rule == "exclude" and info.data.get("mode") == "append":
            raise wrong("must be include or fail: with mode append readers read every row as it was.")
        return rule

    @field_validator("primary_keys", "tiebreak_columns", "as_text", "partition_by", "merge_filters")
    @classmethod
    def _no_duplicates(cls, given: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(given)) < len(given):
            raise wrong("must name each only once.")
        return given

    @property
    def full_name(self) -> str:
        """What the table is called in commands, events and the sink."""
        return self.name or (f"{self.schema_name}.{self.table}" if self.schema_name else self.table)
