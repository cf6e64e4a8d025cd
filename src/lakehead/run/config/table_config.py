"""The configuration of one table."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lakehead.extract.modes import MODES, ReadersTable
from lakehead.extract.planning.axis import Kind
from lakehead.run.config.base import TABLE_NAME, ConfigModel, NonEmptyText, SecretField, invalid
from lakehead.run.config.cron_schedule import ScheduleText
from lakehead.run.config.initial_watermark import parse_watermark
from lakehead.run.config.metadata_config import MAX_DIGITS, GuardrailsConfig, SchemaPolicyConfig
from lakehead.run.config.partition_fields import PartitionFieldText
from lakehead.run.config.runtime_config import Count
from lakehead.state.model import Value

NullRule = Literal["include", "exclude", "fail"]
if TYPE_CHECKING:
    ModeName = str
else:
    ModeName = Literal[tuple(MODES)]  # so that the JSON schema lists them


def _decimal(given: object) -> tuple[int, int]:
    found = re.fullmatch(r"decimal\(\s*([0-9]{1,2})\s*,\s*([0-9]{1,2})\s*\)", given) if isinstance(given, str) else None
    if found is None or not (1 <= int(found[1]) <= MAX_DIGITS and int(found[2]) <= int(found[1])):
        raise invalid("must be a decimal of at most 38 digits, such as decimal(38, 10).")
    return int(found[1]), int(found[2])


DecimalType = Annotated[tuple[int, int], BeforeValidator(_decimal, json_schema_input_type=str)]
AnyValue = Annotated[Value | None, PlainValidator(lambda given: given, json_schema_input_type=str | int | float | None)]


def _age(given: object) -> timedelta:
    found = re.fullmatch(r"([1-9][0-9]{0,5})\s*([smhd])", given.strip()) if isinstance(given, str) else None
    if found is None:
        raise invalid("must be a number and s, m, h or d, such as 90m, 6h or 2d.")
    return timedelta(seconds=int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]])


AgeText = Annotated[timedelta, BeforeValidator(_age, json_schema_input_type=str)]


class ReconciliationConfig(ConfigModel):
    """How a table is compared with its source (`recon`)."""

    counts: StrictBool = Field(default=True, description="Whether to compare row counts where rows cannot be hashed.")
    sums: tuple[NonEmptyText, ...] = Field((), description="Number columns whose sums, minima and maxima are compared.")
    checksums: tuple[NonEmptyText, ...] = Field(
        (), description="Columns whose values are hashed and compared, besides the key. Default: all that can be."
    )
    sample_keys: Annotated[StrictInt, Field(ge=0)] = Field(
        0, description="About how many sampled keys have their rows hashed. 0: all."
    )
    tolerated_rows: Annotated[StrictInt, Field(ge=0)] = Field(
        0, description="How many rows may differ without an error."
    )


class ProtectedColumnConfig(ConfigModel):
    """A column whose values do not reach the lakehouse as they are: by one of leave_out, mask and hash."""

    leave_out: StrictBool = Field(default=False, description="true: the column is not read.")
    mask: str | None = Field(
        None,
        description="The text that takes the place of every value; values that are not text become NULL. Default: not "
        "masked.",
    )
    hash: Literal["sha256"] | None = Field(
        None,
        description="sha256: every value becomes the HMAC-SHA-256 of its text under the secret, in hexadecimal. Equal "
        "values have equal hashes. Default: not hashed.",
    )
    secret: SecretField | None = Field(None, description="The secret of the hash, which needs one. Never change it.")

    @model_validator(mode="after")
    def _one_of_them(self) -> "ProtectedColumnConfig":
        given = [name for name in ("leave_out", "mask", "hash") if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise invalid("must have exactly one of leave_out, mask and hash.")
        if (self.hash is None) != (self.secret is None):
            raise invalid("must have hash and secret together: without a secret, values could be guessed.")
        return self


class TableConfig(ConfigModel):
    """One table of a source, and how it is loaded."""

    schema_name: NonEmptyText | None = Field(
        None,
        alias="schema",
        description="The schema of the table in the source. Default: the connection's default schema.",
    )
    table: NonEmptyText = Field(description="The name of the table in the source.")
    name: Annotated[str, Field(pattern=TABLE_NAME)] | None = Field(
        None,
        description="The name of the table in commands, events and the sink: words of letters, digits, _ and -, "
        "separated by dots. Default: schema.table.",
    )
    source: NonEmptyText | None = Field(None, description="The name of the source. Default: the only source.")
    sink: NonEmptyText | None = Field(None, description="The name of the sink. Default: the only sink.")
    mode: ModeName = Field(description=" ".join(f"{mode.name}: {mode.description}." for mode in MODES.values()))
    incremental_column: NonEmptyText | None = Field(
        None, description="A column whose value grows with every change. Required by scd1 and append."
    )
    incr_col_type: Kind | None = Field(
        None,
        description="The type of the incremental column: integer, decimal, date, timestamp (without time zone), "
        "timestamptz or text. Default: its type in the source.",
    )
    initial_watermark: AnyValue = Field(
        None,
        description="Where the first load starts, as a value of incr_col_type, which is then required. Default: at the "
        "lowest value.",
    )
    lag_seconds: Annotated[StrictInt, Field(ge=0, le=10**9)] = Field(
        0,
        description="How many seconds after its watermark value a row may be committed. A load ends that much before "
        "the source's current time, and a merge starts that much before the last watermark. Not for numbers and text.",
    )
    late_commits: Literal["refuse", "accept"] = Field(
        "refuse",
        description="What to do if the source does not report all open transactions, whose rows may be missed if they "
        "commit after the read. refuse: fail, unless there is a lag. accept: read anyway; numbers and text also while "
        "transactions are open.",
    )
    max_held_back_seconds: Annotated[StrictInt, Field(ge=0, le=10**9)] = Field(
        86_400,
        description="How many seconds an open transaction, or a lagging standby, may hold the table back before it "
        "fails. 0: no limit.",
    )
    primary_keys: tuple[NonEmptyText, ...] = Field(
        (), description="The columns of the primary key. Required by scd1. Default: none."
    )
    tiebreak_columns: tuple[NonEmptyText, ...] = Field(
        (),
        description="Which of two rows with the same key and watermark is newer: the one with the larger value in the "
        "first of these columns, then in the second. Default: none.",
    )
    source_filter: NonEmptyText | None = Field(
        None, description="A boolean SQL expression over the table's columns. Only rows for which it is true are read."
    )
    as_text: tuple[NonEmptyText, ...] = Field(
        (), description="Columns that are read as text, because their type has no exact counterpart."
    )
    as_decimal: Mapping[str, DecimalType] = Field(
        {}, description="For unbounded numeric columns: the decimal(precision, scale) that every value must fit."
    )
    null_watermarks: NullRule = Field(
        "fail",
        description="Rows with a NULL watermark: include them in every load (not with append), exclude them, or fail. "
        "They are counted.",
    )
    null_keys: NullRule = Field(
        "fail",
        description="Rows with a NULL in their key: include them, exclude them from the mirror or final table (not "
        "with append), or fail. They are counted.",
    )
    partition_by: tuple[PartitionFieldText, ...] = Field(
        (),
        description="The partitioning of the mirror or final table: columns, or years, months, days, hours(column), "
        "bucket(n, column), truncate(n, column). Raw is partitioned by load date. Default: none.",
    )
    merge_filters: tuple[NonEmptyText, ...] = Field(
        (),
        description="Boolean SQL expressions over the mirror's columns that hold for every row a merge may change, so "
        "that it reads only those rows. Default: none.",
    )
    finalize: Literal["table", "view"] = Field(
        "table", description="The final of a full refresh: a table, or a view of the newest raw rows."
    )
    allow_empty: StrictBool = Field(
        default=False, description="Whether a full refresh may replace a table with an empty one."
    )
    reader: Literal["auto", "arrow", "jdbc"] = Field(
        "auto",
        description="How rows are read. auto: by Arrow if the dialect has an Arrow driver, else by JDBC.",
    )
    read_partitions: Count | None = Field(
        None, description="The number of parallel read tasks. Default: the number of cores."
    )
    fetch_rows: Count = Field(10_000, description="Rows per fetch of a JDBC driver.")
    force_reload: StrictBool = Field(
        default=False, description="Whether every run reloads the table, as --reload does for one run."
    )
    schedule: ScheduleText | None = Field(
        None,
        description="When schedulers load the table: a cron expression in UTC, for --dump-orchestration-plan. Default: "
        "the runtime's schedule.",
    )
    columns: Mapping[NonEmptyText, ProtectedColumnConfig] = Field(
        {},
        description="Columns that are left out, masked or hashed, by name. All others are read as they are.",
    )
    schema_policy: SchemaPolicyConfig | None = Field(
        None,
        description="How changed columns of the source are handled, where it differs from metadata.schema_policy.",
    )
    guardrails: GuardrailsConfig | None = Field(
        None, description="Limits of decimal columns, where they differ from metadata.guardrails."
    )
    reconciliation: ReconciliationConfig | None = Field(
        None,
        description="How the table is compared with its source by `lakehead recon CONFIG`. Default: by hashes of all "
        "columns.",
    )
    raw_retention_days: Count | None = Field(
        None, description="Days that rows stay in raw. Default: as in runtime.raw_retention_days. Not for mode append."
    )
    max_staleness: AgeText | None = Field(
        None,
        description="How old the table may be, such as 90m, 6h or 2d. If its watermark, or its last landing where the "
        "watermark is no time, is older at the start or the end of a run, an alert is emitted. Default: any age.",
    )

    @field_validator("incremental_column")
    @classmethod
    def _incremental_column(cls, column: str | None, info: ValidationInfo) -> str | None:
        mode = MODES.get(info.data.get("mode", ""))
        if column is None and mode is not None and mode.incremental:
            raise invalid(f"is missing: mode {mode.name} reads the rows above its last value.")
        return column

    @field_validator("initial_watermark")
    @classmethod
    def _initial_watermark(cls, given: object, info: ValidationInfo) -> Value | None:
        if given is None or "incr_col_type" not in info.data:
            return None
        kind = info.data["incr_col_type"]
        if kind is None:
            raise invalid("needs incr_col_type, which defines its format.")
        return parse_watermark(kind, given)

    @field_validator("lag_seconds")
    @classmethod
    def _lag_seconds(cls, seconds: int, info: ValidationInfo) -> int:
        kind = info.data.get("incr_col_type")
        if seconds and kind is not None and not kind.follows_the_clock:
            raise invalid(f"must be 0: a lag does not apply to a column of type {kind}.")
        return seconds

    @field_validator("raw_retention_days")
    @classmethod
    def _raw_retention_days(cls, days: int | None, info: ValidationInfo) -> int | None:
        mode = MODES.get(info.data.get("mode", ""))
        if days is not None and mode is not None and mode.readers_table is ReadersTable.RAW:
            raise invalid(f"must be left out: with mode {mode.name} readers read the raw rows.")
        return days

    @field_validator("primary_keys")
    @classmethod
    def _primary_keys(cls, keys: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        mode = MODES.get(info.data.get("mode", ""))
        if not keys and mode is not None and mode.merges:
            raise invalid(f"is missing: mode {mode.name} merges by it. List the columns of the primary key.")
        return keys

    @field_validator("null_watermarks", "null_keys")
    @classmethod
    def _not_refused_by_mode(cls, rule: NullRule, info: ValidationInfo) -> NullRule:
        mode = MODES.get(info.data.get("mode", ""))
        if mode is not None and (reason := mode.refused.get((info.field_name or "", rule))):
            raise invalid(reason)
        return rule

    @field_validator("primary_keys", "tiebreak_columns", "as_text", "partition_by", "merge_filters")
    @classmethod
    def _no_duplicates(cls, given: tuple[object, ...]) -> tuple[object, ...]:
        if len(set(given)) < len(given):
            raise invalid("must not contain duplicates.")
        return given

    @property
    def full_name(self) -> str:
        """The name of the table in commands, events and the sink."""
        return self.name or (f"{self.schema_name}.{self.table}" if self.schema_name else self.table)
