"""A Spark session and a lakehouse for the tests of a module, and pipelines over databases of each kind.

A module of such tests names the plugins and marks that `pipeline_scene` has for it.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.pipeline_support import SERVERS, Scene, source_of
from tests.pipeline import Pipeline
from tests.support.source_support import Database
from tests.support.spark import shared_session


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the module's lakehouse."""
    return tmp_path_factory.mktemp("lakehouse")


@pytest.fixture(scope="module")
def spark(lakehouse: Path) -> SparkSession:
    """The module's session. It knows the lakehouse, and has the JDBC drivers."""
    return shared_session(Pipeline.spark_settings(lakehouse))


@pytest.fixture
def scene_of(lakehouse: Path, tmp_path: Path, spark: SparkSession) -> Callable[[Database], Scene]:
    """Makes a scene of a database. Each has a state of its own; the lakehouse is the module's."""

    def made(database: Database) -> Scene:
        folder = tmp_path / database.name()
        folder.mkdir()
        source, environment = source_of(database)
        pipeline = Pipeline(folder, lakehouse / "lakehouse", source, environment)
        return Scene(database, pipeline, spark)

    return made


@pytest.fixture(params=SERVERS)
def scene(request: pytest.FixtureRequest, scene_of: Callable[[Database], Scene]) -> Scene:
    """A scene of each server."""
    return scene_of(request.getfixturevalue(request.param))


@pytest.fixture
def on_postgresql(postgresql: Database, scene_of: Callable[[Database], Scene]) -> Scene:
    return scene_of(postgresql)


@pytest.fixture
def on_mysql(mysql: Database, scene_of: Callable[[Database], Scene]) -> Scene:
    return scene_of(mysql)


@pytest.fixture
def on_sqlite(sqlite: Database, scene_of: Callable[[Database], Scene]) -> Scene:
    return scene_of(sqlite)
