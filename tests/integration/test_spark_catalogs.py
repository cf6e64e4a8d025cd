"""Catalogs by settings alone: REST and JDBC, their tables on S3 or on disk, shared with PyIceberg."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from lakehead.run.environment import spark_settings
from tests.servers.postgres import PASSWORD, USER, Postgres
from tests.servers.seaweed import Seaweed
from tests.support.spark import shared_session

pytestmark = [
    pytest.mark.timeout(300),  # the very first start fetches jars
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Those of one catalog, as Spark's side of Iceberg spells them and as PyIceberg does."""

    spark: dict[str, str]
    python: dict[str, str]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory: pytest.TempPathFactory, seaweed: Seaweed, postgres: Postgres) -> dict[str, Properties]:
    folder = tmp_path_factory.mktemp("catalogs")
    rest = seaweed.rest_catalog()
    file, sqlite = folder / "catalog.sqlite", seaweed.sqlite_catalog(folder / "catalog.sqlite")
    server, local_warehouse = postgres.database("catalog"), (folder / "warehouse").as_uri()
    s3 = {key: rest[key] for key in ("s3.endpoint", "s3.access-key-id", "s3.secret-access-key")}
    s3["s3.region"] = rest["client.region"]
    return {
        "rest": Properties(
            spark=rest,
            python={key: rest[key] for key in ("type", "uri", "warehouse", "credential", "oauth2-server-uri")} | s3,
        ),
        "sqlite_on_s3": Properties(
            spark=sqlite,
            python={"type": "sql", "uri": f"sqlite:///{file}", "warehouse": sqlite["warehouse"], **s3},
        ),
        "on_postgres": Properties(
            spark={
                "type": "jdbc",
                "uri": f"jdbc:postgresql://127.0.0.1:{postgres.port}/catalog",
                "jdbc.user": USER,
                "jdbc.password": PASSWORD,
                "jdbc.schema-version": "V1",
                "warehouse": local_warehouse,
            },
            python={
                "type": "sql",
                "uri": server.replace("postgresql:", "postgresql+psycopg:"),
                "warehouse": local_warehouse,
            },
        ),
    }


@pytest.fixture(scope="module")
def spark(catalogs: dict[str, Properties]) -> SparkSession:
    known = {name: properties.spark for name, properties in catalogs.items()}
    return shared_session(replace(spark_settings(), catalogs=known))


@pytest.mark.parametrize("name", ["rest", "sqlite_on_s3", "on_postgres"])
def test_a_table_is_created_appended_to_merged_into_and_read_by_spark_and_by_pyiceberg(
    name: str, spark: SparkSession, catalogs: dict[str, Properties]
) -> None:
    table = f"{name}.spark_catalogs.orders"
    spark.sql(f"CREATE NAMESPACE {name}.spark_catalogs")
    spark.sql(f"CREATE TABLE {table} (id BIGINT, note STRING) USING iceberg")
    spark.sql("SELECT id, 'first' AS note FROM range(3)").writeTo(table).append()
    spark.sql("SELECT id, 'second' AS note FROM range(2, 5)").createOrReplaceTempView("changes")
    spark.sql(
        f"MERGE INTO {table} t USING changes c ON t.id = c.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    expected = [(0, "first"), (1, "first"), (2, "second"), (3, "second"), (4, "second")]

    assert [tuple(row) for row in spark.table(table).orderBy("id").collect()] == expected
    with load_catalog(name, **catalogs[name].python) as catalog:
        rows = catalog.load_table("spark_catalogs.orders").scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["note"]) for row in rows] == expected


@pytest.mark.parametrize(
    ("name", "start"), [("rest", "s3://warehouse/"), ("sqlite_on_s3", "s3://lake/warehouse/"), ("on_postgres", "file:")]
)
def test_the_files_of_a_table_lie_in_the_warehouse_of_its_catalog(name: str, start: str, spark: SparkSession) -> None:
    spark.sql(f"CREATE NAMESPACE {name}.spark_places")
    spark.range(1).writeTo(f"{name}.spark_places.t").using("iceberg").create()

    assert {row.file_path.startswith(start) for row in spark.table(f"{name}.spark_places.t.files").collect()} == {True}
