"""A whole configuration."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from lakehead.run.config.connections import FileSink, IcebergSink, Sink, Source, Spark
from lakehead.run.config.parts import Part, Text
from lakehead.run.config.runtime import Metadata, Runtime
from lakehead.run.config.tables import Table

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Config(Part):
    """What `lakehead run` does: tables, where they come from, where they go, and how."""

    schema_url: Text | None = Field(
        None, alias="$schema", description="The file of lakehead config schema, for editors. It means nothing here."
    )
    runtime: Runtime = Field(description="How the run goes.")
    metadata: Metadata = Field(Metadata(), description="What is remembered of the sources' catalogues.")
    sources: Mapping[str, Source] = Field(
        json_schema_extra={"minProperties": 1}, description="The databases, each under a name of your choice."
    )
    sinks: Mapping[str, Sink] = Field(
        {"lake": IcebergSink(type="iceberg")},
        json_schema_extra={"minProperties": 1},
        description="Where tables are kept, each under a name of your choice. Default: one, named lake, an embedded "
        "Iceberg catalog.",
    )
    spark: Spark = Field(Spark(), description="How Spark is started.")
    tables: tuple[Table, ...] = Field(
        json_schema_extra={"minItems": 1}, description="The tables, in the order in which they are begun."
    )

    def source_of(self, table: Table) -> Source:
        """The source that a table is read from."""
        return self.sources[table.source or next(iter(self.sources))]

    def sink_of(self, table: Table) -> IcebergSink | FileSink:
        """The sink that a table is kept in."""
        return self.sinks[table.sink or next(iter(self.sinks))]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a configuration file. Rules between keys are not in it; `lakehead config check` knows them."""
    return {"$schema": DIALECT, **Config.model_json_schema()}
