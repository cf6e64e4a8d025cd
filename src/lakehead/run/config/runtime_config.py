"""The configuration of a run: roots, parallelism, staging, state, slicing, logging and metadata."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, StrictBool, StrictInt, ValidationInfo, field_validator

from lakehead.extract.planning.slicing import MOST_PROBES, MOST_SLICES, SliceBy, SlicingPolicy
from lakehead.lake.merge_choice import MergeLane
from lakehead.run.config.base import ConfigModel, NonEmptyText, SecretField, TextOrSecret, invalid
from lakehead.run.config.connections import UNSAFE_URL, contains_password
from lakehead.run.config.cron_schedule import ScheduleText
from lakehead.run.config.metadata_config import MetadataConfig
from lakehead.run.observe.outputs import SINKS, is_sink

STATE_URLS = "sqlite:///path/to/file, postgresql://user@host:port/database or mysql://user@host:port/database"
STORE_URLS = "file:///folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"

Count = Annotated[StrictInt, Field(ge=1)]


def _checked_url(url: str, schemes: tuple[str, ...], forms: str) -> str:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme not in schemes or "://" not in url:
        raise invalid(f"must be {forms}.")
    if contains_password(url):
        raise invalid(UNSAFE_URL)
    return url


class StagingConfig(ConfigModel):
    """Clean-up of the staging directories of file sinks."""

    enabled: StrictBool = Field(
        default=True, description="Whether expired directories are removed at the end of a run."
    )
    ttl_hours: Count = Field(
        72, description="Hours after which a landed directory is removed. Directories that have not landed are kept."
    )


class MaintenanceConfig(ConfigModel):
    """What `lakehead run --maintenance-mode` removes and rewrites."""

    expire_after_hours: Count = Field(120, description="Hours that snapshots of Iceberg tables are kept.")
    min_snapshots: Count = Field(1, description="Snapshots of each branch that are kept, whatever their age.")
    max_snapshots: Count | None = Field(
        None, description="The most snapshots of a table that are kept for their age. Default: any number."
    )
    orphans_after_hours: Count = Field(
        72, description="Hours after which files that nothing refers to, and branches of crashed runs, are removed."
    )
    compact: StrictBool = Field(default=True, description="Whether small data files are rewritten as large ones.")
    min_input_files: Count = Field(5, description="How many small files of a partition are worth a compaction.")


class StateConfig(ConfigModel):
    """The database that stores the progress of every table."""

    url: NonEmptyText = Field(
        "sqlite:///lakehead-state.sqlite",
        description=f"The URL of the state, without a password: {STATE_URLS}. Use mysql for SingleStore.",
    )
    password: SecretField | None = Field(
        None, description="The password of the user. Default: the variable LAKEHEAD_STATE_PASSWORD, if set."
    )

    @field_validator("url")
    @classmethod
    def _url(cls, url: str) -> str:
        return _checked_url(url, ("sqlite", "postgresql", "mysql"), STATE_URLS)


class LedgerConfig(ConfigModel):
    """The permanent record of landings, from which a lost state is rebuilt."""

    url: NonEmptyText | None = Field(
        None,
        description=f"The URL of the ledger: {STORE_URLS}. Its credentials come from the environment. Default: the "
        "folder ledger in spark.lakehouse; required without an embedded catalog.",
    )

    @field_validator("url")
    @classmethod
    def _url(cls, url: str | None) -> str | None:
        if url is not None and contains_password(url):
            raise invalid("must not contain credentials. Set them in the environment, as for the cloud's own tools.")
        return None if url is None else _checked_url(url, ("file", "s3", "gs", "az"), STORE_URLS)


class SlicingConfig(ConfigModel):
    """How the new rows of an incremental table are split into slices. Each slice is read and landed separately."""

    enabled: StrictBool = Field(default=True, description="Whether to split at all.")
    by: Literal["rows", "duration", "even"] = Field(
        "rows",
        description="What slices have in common. rows: about the same number of rows, counted in the source; if it "
        "cannot count, slice_seconds is used, or else one slice. duration: the same time span; columns without time "
        "are split evenly. even: the same range of values.",
    )
    target_rows: Count = Field(
        5_000_000, description="The target number of rows in a slice. A window with fewer rows is not split."
    )
    slice_seconds: Count | None = Field(
        None, description="The time span of a slice in seconds; at least a day for dates. Default: none."
    )
    max_partitions: Annotated[StrictInt, Field(ge=1, le=MOST_SLICES)] = Field(
        64, description="The maximum number of slices in a plan; overrides the other limits."
    )
    probe: StrictBool = Field(default=True, description="Whether rows may be counted in the source (row-count probes).")
    max_probes: Annotated[StrictInt, Field(ge=1, le=MOST_PROBES)] = Field(
        32, description="The maximum number of probes per plan, besides the one of the whole window."
    )

    @field_validator("slice_seconds")
    @classmethod
    def _slice_seconds(cls, seconds: int | None, info: ValidationInfo) -> int | None:
        if seconds is None and info.data.get("by") == "duration":
            raise invalid('is missing: with "by": "duration" it is the time span of a slice.')
        return seconds

    def policy(self) -> SlicingPolicy:
        """Convert to the settings of the planner."""
        return SlicingPolicy(**self.model_dump() | {"by": SliceBy(self.by)})


class LoggingConfig(ConfigModel):
    """The structured log of a run."""

    sink: NonEmptyText | None = Field(
        None,
        description="Where JSON lines go: a local file that they are appended to, or a folder that gets one file per "
        "run, as a path or a file: URL (a folder exists or ends with a slash); or a prefix that gets numbered objects "
        "per run: s3://bucket/prefix, gs://, az:// or hdfs://. Default: none.",
    )
    rotate_bytes: Annotated[StrictInt, Field(ge=1_000)] | None = Field(
        None, description="The size at which a local file is renamed to FILE.1 and a new one begun. Default: never."
    )
    keep_files: Annotated[StrictInt, Field(ge=1, le=1_000)] = Field(
        5, description="How many renamed files are kept, with rotate_bytes."
    )
    as_json: StrictBool | None = Field(
        None, alias="json", description="Whether events are printed as JSON lines. Default: yes, except on a terminal."
    )
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="The lowest level that is logged.")

    @field_validator("sink")
    @classmethod
    def _sink(cls, sink: str | None) -> str | None:
        if sink is not None and not is_sink(sink):
            raise invalid(f"must be {SINKS}, without a password.")
        return sink


class MetadataGatewayConfig(ConfigModel):
    """Run records for a metadata platform."""

    ingestion_metrics: StrictBool = Field(default=False, description="Whether ingestion_volume records are emitted.")
    ingestion_runtime: StrictBool = Field(default=False, description="Whether ingestion_runtime records are emitted.")
    url: TextOrSecret | None = Field(
        None,
        repr=False,
        description="Where records go: an http: or https: URL that each is posted to, or a local file of JSON lines; "
        "as text or as a reference to a secret. Default: the state database.",
    )


class NotificationsConfig(ConfigModel):
    """Notifications about a run."""

    webhook: TextOrSecret | None = Field(
        None, repr=False, description="The URL to post to, as text or as a reference to a secret."
    )
    interval_seconds: Count = Field(900, description="Seconds between two notifications.")
    shape: Literal["json", "slack"] = Field(
        "json", description="What is posted. json: text and all fields. slack: text alone, as a Slack webhook takes it."
    )


class MetricsConfig(ConfigModel):
    """Prometheus metrics of a run."""

    port: Annotated[StrictInt, Field(ge=0, le=65535)] | None = Field(
        None, description="The port of 127.0.0.1 where metrics are served while a run lasts; 0: any. Default: none."
    )
    textfile: Annotated[str, Field(pattern=r"\.prom$")] | None = Field(
        None,
        description="The file that gets the metrics at the end of a run, for node_exporter's textfile collector; its "
        "name ends with .prom. Default: none.",
    )


class OpenLineageConfig(ConfigModel):
    """OpenLineage events of a run: START, and COMPLETE or FAIL, for each table."""

    url: TextOrSecret | None = Field(
        None,
        repr=False,
        description="Where events go: an http: or https: URL that each is posted to, such as "
        "https://host/api/v1/lineage, or a local file of JSON lines; as text or as a reference to a secret. Default: "
        "none.",
    )
    api_key: SecretField | None = Field(None, description="Sent as a bearer token. Default: none.")
    namespace: NonEmptyText | None = Field(
        None, description="The namespace of the jobs. Default: the name of the pipeline."
    )


class OrchestrationConfig(ConfigModel):
    """How schedulers start the tables (`lakehead run CONFIG --dump-orchestration-plan`)."""

    schedule: ScheduleText | None = Field(
        None,
        description="When tables without a schedule of their own are loaded: a cron expression in UTC. Default: only "
        "by hand.",
    )
    retries: Annotated[StrictInt, Field(ge=0, le=100)] = Field(
        2, description="How often a scheduler repeats a run that has failed."
    )
    retry_delay_seconds: Annotated[StrictInt, Field(ge=0, le=86_400)] = Field(
        300, description="Seconds between a failed run and its repetition."
    )
    timeout_seconds: Count | None = Field(
        None, description="Seconds after which a scheduler ends a run. Default: never."
    )


class RuntimeConfig(ConfigModel):
    """Settings of the whole run."""

    pipeline: NonEmptyText = Field(
        "lakehead", description="The name of this set of tables in commit tokens and events. Never change it."
    )
    raw_root: NonEmptyText = Field(
        "raw",
        description="Where raw rows land. For an Iceberg sink a namespace (raw) or a location (s3://bucket/raw) whose "
        "last part is the namespace; for a file sink a folder below its root. Required by tables.",
    )
    final_root: NonEmptyText | None = Field(
        None, description="Where the final tables of full refreshes are; like raw_root. Required by mode full."
    )
    intermediate: NonEmptyText | None = Field(
        None, description="Where mirrors (merged tables) are; like raw_root. Required by mode scd1."
    )
    max_parallel_tables: Annotated[StrictInt, Field(ge=1, le=1_000)] = Field(
        4, description="The number of tables that are loaded in parallel."
    )
    finalize_full_refresh: StrictBool = Field(
        default=True,
        description="Whether a full refresh writes the final table, or ends with raw.",
    )
    heartbeat_seconds: Count = Field(30, description="Seconds between two progress reports.")
    verify_staged_after_hours: Count = Field(
        3,
        description="Hours after which staged files of an Iceberg table are verified before they are published, "
        "because another tool may have removed them as orphans. Missing files are written again.",
    )
    merge_lane: MergeLane = Field(
        MergeLane.ARROW,
        description="How changes are merged into a mirror of Iceberg, and mirrors and final tables are made whole: by "
        "`arrow`, in Spark's tasks, which leaves to Spark's MERGE and INSERT what it cannot do, or always by `spark`, "
        "with these statements, which is several times slower for merges.",
    )
    staging: StagingConfig = Field(StagingConfig(), description="Clean-up of staging directories.")
    raw_retention_days: Count | None = Field(
        None,
        description="Days after their load date that rows stay in raw; maintenance then removes those that the mirror "
        "or final table has. A mirror cannot be rebuilt from raw afterwards. Not for mode append. Default: for ever.",
    )
    maintenance: MaintenanceConfig = Field(MaintenanceConfig(), description="What maintenance modes do.")
    state: StateConfig = Field(StateConfig(), description="The state database.")
    ledger: LedgerConfig = Field(LedgerConfig(), description="The permanent record of landings.")
    scd1_slicing: SlicingConfig = Field(
        SlicingConfig(), description="How the new rows of an incremental table are split into slices."
    )
    logging: LoggingConfig = Field(LoggingConfig(), description="The structured log.")
    orchestration: OrchestrationConfig = Field(OrchestrationConfig(), description="How schedulers start the tables.")
    metadata_gateway: MetadataGatewayConfig = Field(
        MetadataGatewayConfig(), description="Records for a metadata platform."
    )
    notifications: NotificationsConfig = Field(NotificationsConfig(), description="Notifications about the run.")
    metrics: MetricsConfig = Field(MetricsConfig(), description="Prometheus metrics.")
    openlineage: OpenLineageConfig = Field(OpenLineageConfig(), description="OpenLineage events.")
    metadata: MetadataConfig | None = Field(
        None, description="The same as metadata at the top level; give only one of them."
    )
