"""A database that a test may fill, and a pipeline that reads it. The fixtures are in `pipeline_fixtures`."""

from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.pipeline import Pipeline, Ran
from tests.support.effort import effort
from tests.support.source_support import Database

PLUGINS = ["tests.support.state_fixtures", "tests.support.source_fixtures", "tests.integration.pipeline_fixtures"]
"""The `pytest_plugins` of a module of such tests."""
MARKS = [
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]
"""Its `pytestmark`."""
SERVERS = ("postgresql", "mysql")
ONE_SERVER = pytest.mark.parametrize("scene", effort(SERVERS[:1], soak=SERVERS), indirect=True)
"""For a test about what comes after the rows have been read, where no dialect plays a part: `make soak` tries all."""

PASSWORD = "SOURCE_PASSWORD"
"""The variable that a pipeline's source takes its password from."""


@dataclass
class Scene:
    """A database that a test may fill, and a pipeline that reads it."""

    database: Database
    pipeline: Pipeline
    spark: SparkSession

    def name(self) -> str:
        """A table that no other test knows."""
        return self.database.name()

    def sql(self, *statements: str) -> None:
        """Run statements in the database."""
        for statement in statements:
            self.database.run(statement)

    def run(self, *tables: dict[str, Any], **more: Any) -> Ran:
        """Run the tables."""
        return self.pipeline.run(self.spark, tables, **more)

    def rows(self, table: str, *, ingest: bool = False) -> pa.Table:
        """What a table of the lakehouse holds."""
        return self.pipeline.rows(table, ingest=ingest)

    def elsewhere(self) -> Pipeline:
        """The same pipeline with its source switched off: nobody answers there."""
        url = urlsplit(str(self.pipeline.source["url"]))
        if self.database.kind == "sqlite":
            return replace(self.pipeline, source={**self.pipeline.source, "url": "sqlite:////no/such/file.db"})
        dead = url._replace(netloc=f"{url.username}@127.0.0.1:1").geturl()
        return replace(self.pipeline, source={**self.pipeline.source, "url": dead})


def source_of(database: Database) -> tuple[dict[str, Any], dict[str, str]]:
    """A database as a configuration names it, and the environment with its password."""
    if database.kind == "sqlite":
        return {"dialect": "sqlite", "url": database.url}, {}
    url = urlsplit(database.url)
    bare = url._replace(netloc=f"{url.username}@{url.hostname}:{url.port}").geturl()
    source = {"dialect": database.kind, "url": bare, "password": {"env": PASSWORD}}
    return source, {PASSWORD: unquote(url.password or "")}
