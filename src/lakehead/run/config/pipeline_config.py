"""The configuration file as a whole."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from lakehead.run.config.agent_config import AgentConfig
from lakehead.run.config.base import ConfigModel, NonEmptyText
from lakehead.run.config.connections import FileSinkConfig, IcebergSinkConfig, SinkConfig, SourceConfig, SparkConfig
from lakehead.run.config.consume_config import ConsumeConfig
from lakehead.run.config.gateway_config import GatewayConfig
from lakehead.run.config.gc_config import GcConfig, RawBlobsConfig
from lakehead.run.config.metadata_config import MetadataConfig
from lakehead.run.config.reconcile_config import ReconcileConfig
from lakehead.run.config.runtime_config import RuntimeConfig
from lakehead.run.config.table_config import TableConfig

JSON_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class PipelineConfig(ConfigModel):
    """The configuration of a pipeline: its tables, their sources and sinks, and how they are run."""

    schema_url: NonEmptyText | None = Field(
        None, alias="$schema", description="The JSON Schema file, for editors. Lakehead ignores it."
    )
    runtime: RuntimeConfig = Field(RuntimeConfig(), description="How tables are run, and where their state is.")
    metadata: MetadataConfig = Field(
        MetadataConfig(),
        description="What is kept of the sources' catalogues between runs, and what is done when they change.",
    )
    sources: Mapping[str, SourceConfig] = Field(
        {}, description="The databases, each under a name that you choose. Needed by tables."
    )
    sinks: Mapping[str, SinkConfig] = Field(
        {"lake": IcebergSinkConfig(type="iceberg")},
        json_schema_extra={"minProperties": 1},
        description="Where tables are stored, each under a name that you choose. Default: one sink named lake, an "
        "embedded Iceberg catalog.",
    )
    spark: SparkConfig = Field(SparkConfig(), description="Settings of the Spark session.")
    tables: tuple[TableConfig, ...] = Field(
        (), description="The tables to load from databases, in the order in which they are started."
    )
    pipelines: Mapping[str, ConsumeConfig] = Field(
        {}, description="The pipelines that consume queues, each under a name that you never change."
    )
    gateway: GatewayConfig | None = Field(
        None, description="The gateway that accepts batches of agents over HTTP. Default: none."
    )
    reconcile: ReconcileConfig = Field(
        ReconcileConfig(), description="How `lakehead reconcile CONFIG` looks after what gateways have accepted."
    )
    agent: AgentConfig | None = Field(
        None, description="The agent that takes samples and log records of this machine's programs. Default: none."
    )

    gc: GcConfig = Field(GcConfig(), description="Garbage collection of raw blobs in the gateway's store.")
    raw_blobs: RawBlobsConfig = Field(RawBlobsConfig(), description="How long frames are kept in the gateway's store.")

    def source_of(self, table: TableConfig) -> SourceConfig:
        """Return the source of a table."""
        return self.sources[table.source or next(iter(self.sources))]

    def sink_of(self, table: TableConfig) -> IcebergSinkConfig | FileSinkConfig:
        """Return the sink of a table."""
        return self.sinks[table.sink or next(iter(self.sinks))]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a configuration file. Rules between keys are only in `lakehead config check`."""
    return {"$schema": JSON_SCHEMA_DIALECT, **PipelineConfig.model_json_schema()}
