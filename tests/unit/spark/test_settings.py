"""Settings, the jars they need, and how Spark spells them."""

from pathlib import Path

import pytest

from lakehead.errors import Misconfigured
from lakehead.spark.conf import launch_conf, session_conf
from lakehead.spark.coordinates import AWS, DRIVERS, RUNTIME, needed
from lakehead.spark.settings import SparkSettings

SQLITE = DRIVERS["jdbc:sqlite:"]


def names(settings: SparkSettings) -> list[str]:
    return [str(coordinate) for coordinate in needed(settings)]


def test_the_embedded_catalog_needs_iceberg_and_sqlite_and_nothing_else() -> None:
    assert names(SparkSettings()) == [RUNTIME, SQLITE]


@pytest.mark.parametrize(
    ("properties", "extra"),
    [
        ({"type": "rest", "uri": "http://127.0.0.1:8181"}, []),
        ({"type": "hive", "uri": "thrift://metastore:9083"}, []),
        ({"type": "rest", "uri": "http://127.0.0.1:8181", "warehouse": "s3://lake"}, [AWS]),
        ({"type": "rest", "uri": "http://x", "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}, [AWS]),
        ({"type": "glue"}, [AWS]),
        ({"type": "jdbc", "uri": "jdbc:postgresql://db/catalog"}, [DRIVERS["jdbc:postgresql:"]]),
        ({"type": "jdbc", "uri": "jdbc:mariadb://db/c", "warehouse": "s3://x"}, [DRIVERS["jdbc:mariadb:"], AWS]),
    ],
)
def test_a_catalog_brings_the_jars_that_it_needs(properties: dict[str, str], extra: list[str]) -> None:
    assert names(SparkSettings(catalogs={"c": properties})) == [RUNTIME, *extra]


def test_a_coordinate_of_ones_own_replaces_the_version_of_ours() -> None:
    newer = "org.xerial:sqlite-jdbc:3.51.0.0"

    assert names(SparkSettings(jars=(newer, "com.example:driver:1"))) == [RUNTIME, newer, "com.example:driver:1"]


@pytest.mark.parametrize("text", ["", "driver", "com.example:driver", "a:b:c:d", "a::c", "a:b: 1"])
def test_what_is_no_coordinate_is_named(text: str) -> None:
    with pytest.raises(Misconfigured, match=f"'{text}' is not a Maven coordinate"):
        needed(SparkSettings(jars=(text,)))


@pytest.mark.parametrize("name", ["", "my-catalog", "a.b", "spark_catalog", "1st"])
def test_a_catalog_is_named_as_sql_can_say_it(name: str) -> None:
    with pytest.raises(Misconfigured, match="catalog name"):
        SparkSettings(catalogs={name: {}})


def test_everything_is_in_utc_fair_and_without_stale_heads() -> None:
    conf = session_conf(SparkSettings(), [Path("/jars/a.jar"), Path("/jars/b.jar")], None)

    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert "-Duser.timezone=UTC" in conf["spark.driver.extraJavaOptions"]
    assert "-Duser.timezone=UTC" in conf["spark.executor.extraJavaOptions"]
    assert conf["spark.scheduler.mode"] == "FAIR"
    assert conf["spark.sql.catalog.lake.cache-enabled"] == "false"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.driver.extraClassPath"] == "/jars/a.jar:/jars/b.jar"
    assert "spark.jars" not in conf


def test_executors_of_a_cluster_are_sent_the_jars() -> None:
    conf = session_conf(SparkSettings(master="spark://host:7077"), [Path("/jars/a.jar")], None)

    assert conf["spark.jars"] == "file:///jars/a.jar"
    assert "spark.driver.host" not in conf


def test_what_one_sets_wins_except_where_it_is_added() -> None:
    given = {
        "spark.ui.enabled": "true",
        "spark.driver.extraJavaOptions": "-Dmine=1",
        "spark.driver.extraClassPath": "/mine.jar",
        "spark.sql.extensions": "com.example.Mine",
    }

    conf = session_conf(SparkSettings(conf=given), [Path("/a.jar")], None)

    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.driver.extraClassPath"] == "/a.jar:/mine.jar"
    assert conf["spark.driver.extraJavaOptions"].endswith(" -Dmine=1")
    assert conf["spark.sql.extensions"].endswith(",com.example.Mine")


def test_no_secret_stands_on_the_command_line_or_in_a_repr() -> None:
    settings = SparkSettings(
        catalogs={"c": {"type": "rest", "s3.secret-access-key": "hush"}}, conf={"spark.hadoop.password": "hush"}
    )

    conf = session_conf(settings, [], None)

    assert "hush" in conf.values()
    assert "hush" not in launch_conf(conf).values()
    assert "hush" not in repr(settings)
