"""How a run goes: roots, parallelism, staging, state, slicing, logging; and the metadata that it checks against."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from lakehead.extract.planning.slicing import MOST_PROBES, MOST_SLICES, SliceBy, SlicingPolicy
from lakehead.run.config.connections import OUTSIDE, holds_a_password
from lakehead.run.config.parts import LATER, Part, SecretReference, Setting, Switch, Text, Whole, wrong
from lakehead.run.observe.outputs import SINKS, local_path

STATES = "sqlite:///path/to/file, postgresql://user@host:port/database or mysql://user@host:port/database"
STORES = "file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"

Count = Annotated[Whole, Field(ge=1)]


def _address(url: str, schemes: tuple[str, ...], forms: str) -> str:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in schemes or "://" not in url:
        raise wrong(f"must be {forms}.")
    if holds_a_password(url):
        raise wrong(OUTSIDE)
    return url


class Staging(Part):
    """The staging directories of file sinks."""

    enabled: Switch = Field(default=True, description="Whether aged directories are removed at the end of a run.")
    ttl_hours: Count = Field(
        72, description="Hours after which a directory that has landed is removed from staging. Others never are."
    )


class State(Part):
    """The database that remembers how far every table is."""

    url: Text = Field(
        "sqlite:///lakehead-state.sqlite",
        description=f"Where it is, without a password: {STATES}. SingleStore is mysql.",
    )
    password: SecretReference | None = Field(
        None, description="Where the user's password stands. Default: LAKEHEAD_STATE_PASSWORD, if that is set."
    )

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        return _address(url, ("sqlite", "postgresql", "mysql"), STATES)


class Ledger(Part):
    """The store that keeps what landed, for good: from it a lost state is rebuilt."""

    url: Text | None = Field(
        None,
        description=f"Where it is: {STORES}. Its credentials come from the environment. Default: the folder ledger in "
        "spark.lakehouse, and only beside an embedded catalog.",
    )

    @field_validator("url")
    @classmethod
    def _url(cls, url: str | None) -> str | None:
        if url is not None and holds_a_password(url):
            raise wrong("must not hold credentials. They come from the environment, as for the cloud's own tools.")
        return None if url is None else _address(url, ("file", "s3", "gs", "az"), STORES)


class Slicing(Part):
    """How the window of an incremental table is divided into slices, each of which is read and landed by itself."""

    enabled: Switch = Field(default=True, description="Whether windows are divided at all.")
    by: Literal["rows", "duration", "even"] = Field(
        "rows",
        description="What makes slices alike: their rows, their duration, or their width in values. By rows, the "
        "source is asked for counts; where it cannot count, slice_seconds decides, and without it there is one slice. "
        "By duration, columns that hold no time are divided evenly.",
    )
    target_rows: Count = Field(
        5_000_000, description="Rows that a slice should not exceed. A window known to hold no more is never divided."
    )
    slice_seconds: Count | None = Field(
        None, description="Seconds that a slice spans, by duration; a date's slice is a day at least. Default: none."
    )
    max_partitions: Annotated[Whole, Field(ge=1, le=MOST_SLICES)] = Field(
        64, description="Slices that a plan never exceeds; it wins over every target."
    )
    probe: Switch = Field(default=True, description="Whether rows may be counted in the source.")
    max_probes: Annotated[Whole, Field(ge=1, le=MOST_PROBES)] = Field(
        32, description="Counts that one plan may ask for, besides that of the whole window."
    )

    @field_validator("slice_seconds")
    @classmethod
    def _slice_seconds(cls, seconds: int | None, info: ValidationInfo) -> int | None:
        if seconds is None and info.data.get("by") == "duration":
            raise wrong('is missing: with "by": "duration" it says how long a slice is.')
        return seconds

    def policy(self) -> SlicingPolicy:
        """The settings as the planner takes them."""
        return SlicingPolicy(**self.model_dump() | {"by": SliceBy(self.by)})


class Logging(Part):
    """The structured log of a run."""

    sink: Text | None = Field(
        None,
        description="The file on this machine that JSON lines are appended to, or a folder, in which every run has its "
        "own: a path, or file: with one. A folder exists, or ends with a slash. Default: none.",
    )
    as_json: Switch | None = Field(
        None, alias="json", description="Whether events are printed as JSON lines. Default: yes, unless on a terminal."
    )
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least level that is logged.")

    @field_validator("sink")
    @classmethod
    def _sink(cls, sink: str | None) -> str | None:
        if sink is not None and local_path(sink) is None:
            raise wrong(f"must be {SINKS}: the log is written on this machine.")
        return sink


class MetadataGateway(Part):
    """Records of runs for a metadata platform."""

    ingestion_metrics: Switch = Field(
        default=False, description=f"Whether ingestion_volume records are emitted. {LATER}"
    )
    ingestion_runtime: Switch = Field(
        default=False, description=f"Whether ingestion_runtime records are emitted. {LATER}"
    )


class Notifications(Part):
    """Messages about a run."""

    webhook: Setting | None = Field(
        None, repr=False, description=f"The address they are posted to, in the open or by reference. {LATER}"
    )
    interval_seconds: Count = Field(900, description=f"Seconds between two of them. {LATER}")


class Guardrails(Part):
    """What a target can hold."""

    max_precision: Annotated[Whole, Field(ge=1, le=38)] = Field(
        38, description=f"Digits that a decimal may have before its table is refused. {LATER}"
    )
    max_scale: Annotated[Whole, Field(ge=0, le=38)] = Field(
        38, description=f"Of these, digits after the point. {LATER}"
    )


class SchemaPolicy(Part):
    """What happens when a source's columns have changed."""

    require_snapshot: Switch = Field(
        default=False, description=f"Whether a table without a metadata snapshot is refused. {LATER}"
    )
    allow_missing_columns: Switch = Field(
        default=False, description=f"Whether a column that the source no longer has is filled with NULL. {LATER}"
    )
    allow_new_columns: Switch = Field(default=True, description=f"Whether a new column is added to the target. {LATER}")


class Metadata(Part):
    """The catalogues of the sources, remembered between runs."""

    enabled: Switch = Field(default=False, description=f"Whether they are collected before tables run. {LATER}")
    cache_path: Text = Field("metadata", description=f"The folder that they are kept in. {LATER}")
    ttl_hours: Count = Field(24, description=f"Hours after which one is collected anew. {LATER}")
    guardrails: Guardrails = Field(Guardrails(), description="Beyond which a table is refused.")
    schema_policy: SchemaPolicy = Field(SchemaPolicy(), description="What happens when columns have changed.")


class Runtime(Part):
    """Settings of the whole run."""

    pipeline: Text = Field(
        "lakehead", description="What this set of tables is called in tokens and events. It must never change."
    )
    raw_root: Text = Field(
        description="Where raw rows land. Of an Iceberg sink it is a namespace (raw) or a location (s3://bucket/raw), "
        "whose last part is then the namespace; of a file sink a folder below its root."
    )
    final_root: Text | None = Field(
        None, description="Where full-refresh tables are as readers see them; as raw_root. Needed by mode full."
    )
    intermediate: Text | None = Field(
        None, description="Where mirrors are, the merged tables; as raw_root. Needed by mode scd1."
    )
    max_parallel_tables: Annotated[Whole, Field(ge=1, le=1_000)] = Field(
        4, description="Tables that are worked on at once."
    )
    finalize_full_refresh: Switch = Field(
        default=True,
        description="Whether a full refresh goes on from raw to the final table, or ends with raw.",
    )
    heartbeat_seconds: Count = Field(30, description="Seconds between two reports of how the run stands.")
    verify_staged_after_hours: Count = Field(
        3,
        description="Hours after which files that were written for an Iceberg table and are not published yet are "
        "looked for first: somebody else's removal of orphan files may have taken them. Then they are written again.",
    )
    staging: Staging = Field(Staging(), description="How long file sinks keep staging directories.")
    state: State = Field(State(), description="Where it is remembered how far every table is.")
    ledger: Ledger = Field(Ledger(), description="The store that keeps what landed, for good.")
    scd1_slicing: Slicing = Field(Slicing(), description="How the window of an incremental table is divided.")
    logging: Logging = Field(Logging(), description="The structured log.")
    metadata_gateway: MetadataGateway = Field(MetadataGateway(), description="Records for a metadata platform.")
    notifications: Notifications = Field(Notifications(), description="Messages about the run.")
    metadata: Metadata | None = Field(None, description="The same as metadata at the top; only one of them is given.")
