"""The command that starts a JVM: Java itself for a local master, Spark's script where it knows more than we do."""

from pathlib import Path

import pytest

from lakehead.spark.command import command_for, environment_for
from lakehead.spark.conf import launch_conf, session_conf
from lakehead.spark.java import Java
from lakehead.spark.settings import SparkSettings

JAVA = Java(Path("/jdk"), "17.0.1", "build 1")


def command(settings: SparkSettings, environment: dict[str, str] | None = None) -> list[str]:
    conf = launch_conf(session_conf(settings, [Path("/a.jar"), Path("/b.jar")], Path("/with space/it.jsa")))
    return command_for(JAVA, conf, environment or {})


def test_a_local_master_is_java_itself_with_our_jars_first() -> None:
    words = command(SparkSettings(master="local[2]", driver_memory="3g"))

    assert words[0] == "/jdk/bin/java"
    assert words[words.index("-cp") + 1].startswith("/a.jar:/b.jar:")
    assert "-Xmx3g" in words
    assert "-XX:SharedArchiveFile=/with space/it.jsa" in words
    assert words[-1] == "org.apache.spark.api.python.PythonGatewayServer"


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "local-cluster[2,1,1024]"])
def test_a_cluster_is_started_by_sparks_own_script(master: str) -> None:
    words = command(SparkSettings(master=master))

    assert words[0].endswith("/bin/spark-submit")
    assert f"spark.master={master}" in words
    assert words[-1] == "pyspark-shell"


@pytest.mark.parametrize("variable", ["HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_DIST_CLASSPATH"])
def test_a_machine_configured_for_hadoop_or_spark_is_left_to_sparks_own_script(variable: str) -> None:
    assert command(SparkSettings(), {variable: "/etc/x"})[0].endswith("/bin/spark-submit")
    assert command(SparkSettings(), {variable: ""})[0] == "/jdk/bin/java"


def test_native_libraries_are_left_to_sparks_own_script() -> None:
    settings = SparkSettings(conf={"spark.driver.extraLibraryPath": "/lib/x"})

    assert command(settings)[0].endswith("/bin/spark-submit")


def test_options_of_the_settings_come_after_ours_and_so_win() -> None:
    words = command(SparkSettings(conf={"spark.driver.extraJavaOptions": '-Da="b c" -XX:+UseSerialGC'}))

    assert words[-3:-1] == ["-Da=b c", "-XX:+UseSerialGC"]


def test_no_secret_of_a_catalog_or_of_the_settings_stands_on_the_command_line() -> None:
    settings = SparkSettings(
        catalogs={"c": {"type": "rest", "credential": "id:hush"}}, conf={"spark.hadoop.fs.s3a.secret.key": "hush"}
    )

    assert not [word for word in command(settings) if "hush" in word]


def test_java_and_spark_are_those_that_were_found_whatever_the_environment_says() -> None:
    environment = environment_for(JAVA, {"JAVA_HOME": "/other", "SPARK_HOME": "/other", "KEPT": "yes"})

    assert environment["JAVA_HOME"] == "/jdk"
    assert environment["SPARK_HOME"].endswith("/pyspark")
    assert environment["KEPT"] == "yes"
