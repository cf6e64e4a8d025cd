"""What a start stands on: `lakehead doctor`, real repositories, and an archive that never breaks it."""

import gc
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from lakehead.errors import Misconfigured, Unavailable
from lakehead.run.environment import spark_settings
from lakehead.spark import archive
from lakehead.spark.archive import archive_for
from lakehead.spark.cache import locked
from lakehead.spark.command import command_for, environment_for
from lakehead.spark.conf import launch_conf, session_conf
from lakehead.spark.installed import SPARK_HOME
from lakehead.spark.jars import jars_for
from lakehead.spark.java import Java, find_java
from lakehead.spark.session import build_session, silent, stop_session
from lakehead.spark.settings import SparkSettings
from tests.servers.postgres import PASSWORD, USER, Postgres

pytestmark = [
    pytest.mark.own_jvm,
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]

LAKEHEAD = Path(sys.executable).with_name("lakehead")

START = """
from dataclasses import replace
from pathlib import Path
from lakehead.run.environment import spark_settings
from lakehead.spark.session import build_session
log = {"spark.driver.extraJavaOptions": "-Xlog:class+load:file=classes.log"}
session = build_session(replace(spark_settings(), lakehouse=Path("lakehouse"), class_data_archive=False, conf=log))
print(session.range(1000).count())
"""


def test_doctor_finds_java_jars_spark_and_catalog_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run([LAKEHEAD, "doctor"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=280)

    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        "java ok",
        "jars ok",
        "spark ok",
        "catalog ok",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_doctor_says_in_one_sentence_that_the_catalogs_driver_is_no_driver(tmp_path: Path) -> None:
    settings = spark_settings()
    folder, cache = tmp_path / "jars", tmp_path / "cache"
    for each in (folder, cache):
        each.mkdir()
    for jar in jars_for(settings, find_java(settings), say=silent):
        if "iceberg" in jar.name:
            (folder / jar.name).symlink_to(jar)
    with zipfile.ZipFile(folder / "sqlite-jdbc-1.jar", "w") as empty:
        empty.writestr("nothing", "")
    (cache / "archives").write_text("a file, so that none is made for these jars")

    done = subprocess.run(
        [LAKEHEAD, "doctor"],
        env={**os.environ, "LAKEHEAD_CACHE": str(cache), "LAKEHEAD_JARS": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert done.returncode == 2, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["java ok", "jars ok", "spark ok"]
    assert done.stderr.startswith("lakehead: Spark started, but an embedded catalog on local[*] failed: ")
    assert f"Check the jars in {folder}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_state_on_a_server_is_reached_with_the_password_of_the_environment() -> None:
    server = Postgres()
    try:
        server.start()
        server.database("state")
        url = f"postgresql://{USER}@127.0.0.1:{server.port}/state"
        asked = [str(LAKEHEAD), "doctor", "--no-spark", "--state", url]
        with_it, without = (
            subprocess.run(
                asked,
                env={**os.environ, "LAKEHEAD_STATE_PASSWORD": password},
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            for password in (PASSWORD, "wrong")
        )
    finally:
        server.stop()

    assert (with_it.returncode, with_it.stderr) == (0, "")
    assert with_it.stdout.startswith(f"state ok: postgresql://127.0.0.1:{server.port}/state ")
    assert (without.returncode, without.stdout, without.stderr.count("\n")) == (2, "", 1)
    assert PASSWORD not in with_it.stdout


def test_a_jvm_has_the_options_that_the_installed_spark_gives_to_every_jvm() -> None:
    java = find_java(spark_settings())
    ours = command_for(java, launch_conf(session_conf(SparkSettings(), [Path("/our.jar")], None)), {})
    said = subprocess.run(
        [
            *(java.command, "-cp", f"{SPARK_HOME}/jars/*", "org.apache.spark.launcher.Main"),
            *("org.apache.spark.deploy.SparkSubmit", "--conf", "spark.driver.memory=2g"),
            *("--conf", "spark.driver.extraClassPath=/our.jar", "pyspark-shell"),
        ],
        env={**environment_for(java, os.environ)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    sparks = said.stdout.strip("\0\n").split("\0")

    def options(command: list[str]) -> list[str]:
        return [
            word for word in command[3:] if word.startswith("-") and "log4j2" not in word and "user.tim" not in word
        ]

    before_the_class = sparks[: sparks.index("org.apache.spark.deploy.SparkSubmit")]
    assert ours[:3] == sparks[:3], "the same Java and class path, and so the same archive"
    assert set(options(before_the_class)) - set(options(ours)) == {"--add-modules=jdk.incubator.vector"}
    assert set(options(ours)) <= set(options(before_the_class))


def test_a_coordinate_that_no_repository_has_is_named(tmp_path: Path) -> None:
    settings = replace(
        spark_settings(), cache_folder=tmp_path, jar_folder=None, jars=("org.xerial:sqlite-jdbc:0.0.0.1",)
    )

    with pytest.raises(Misconfigured, match=r"org\.xerial:sqlite-jdbc:0\.0\.0\.1 could not be fetched from"):
        jars_for(settings, find_java(settings), say=silent)
    assert not list(tmp_path.rglob("contents.json"))


def test_a_repository_out_of_reach_is_named_with_the_way_without_a_network(tmp_path: Path) -> None:
    settings = replace(
        spark_settings(), cache_folder=tmp_path, jar_folder=None, repositories=("https://maven.invalid/maven2",)
    )

    with pytest.raises(
        Unavailable, match=r"iceberg-spark-runtime.*https://maven\.invalid/maven2 cannot be reached.*JARS"
    ):
        jars_for(settings, find_java(settings), say=silent)


def awaited_archive(settings: SparkSettings, java: Java, jars: Sequence[Path]) -> Path:
    """The archive of these jars, also if another process is just making it: `archive_for` does not wait for that."""
    made = archive_for(settings, java, jars, say=silent)
    if made is None:
        key = archive._key(java, [*jars, *archive._sparks_own_jars()])
        with locked(settings.cache_folder.expanduser().absolute() / "archives" / key, wait=True):
            made = archive._whole(settings.cache_folder.expanduser().absolute() / "archives", key)
    assert made is not None, "no archive could be made on this machine, or making it took too long once"
    return made


@pytest.mark.parametrize(
    ("damage", "environment"),
    [
        pytest.param("none", {}, id="whole"),
        pytest.param("none", {"HADOOP_CONF_DIR": "/etc"}, id="whole, by Spark's script", marks=pytest.mark.soak),
        pytest.param("rubbish", {}, id="rubbish", marks=pytest.mark.soak),
        pytest.param("cut short", {}, id="cut short", marks=pytest.mark.soak),
    ],
)
def test_a_start_works_with_an_archive_whatever_its_state(
    damage: str, environment: dict[str, str], tmp_path: Path
) -> None:
    settings = spark_settings()
    java = find_java(settings)
    jars = jars_for(settings, java, say=silent)
    made = awaited_archive(settings, java, jars)
    copy = tmp_path / "archives" / made.name
    copy.parent.mkdir()
    match damage:
        case "none":
            copy.symlink_to(made)
        case "rubbish":
            with copy.open("wb") as file:
                file.write(b"rubbish" * 1000)
                file.truncate(made.stat().st_size)
        case _:
            shutil.copyfile(made, copy)
            os.truncate(copy, made.stat().st_size // 2)

    ran = subprocess.run(
        [sys.executable, "-c", START],
        env={**os.environ, **environment, "LAKEHEAD_CACHE": str(tmp_path), "LAKEHEAD_JARS": str(jars[0].parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1000\n", "")
    assert ("shared objects file (top)" in (tmp_path / "classes.log").read_text()) == (damage == "none")


@pytest.fixture
def choosy(tmp_path: Path) -> SparkSettings:
    """Settings with a Java that starts with no archive, and a cache that holds one for it."""
    real = find_java(spark_settings())
    command = tmp_path / "jdk" / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"""#!/bin/sh
case "$*" in
  *SharedArchiveFile*) echo "this archive is broken"; exit 1 ;;
  *XshowSettings*) "{real.command}" "$@" 2>&1 | sed 's|java.home = .*|java.home = {tmp_path}/jdk|' ;;
  *) exec "{real.command}" "$@" ;;
esac
"""
    )
    command.chmod(0o755)
    settings = replace(
        spark_settings(),
        java_home=tmp_path / "jdk",
        jar_folder=jars_for(spark_settings(), real, say=silent)[0].parent,
        cache_folder=tmp_path / "cache",
        lakehouse=tmp_path / "lakehouse",
        class_data_archive=False,
    )
    java = find_java(settings)
    jars = jars_for(settings, java, say=silent)
    kept = tmp_path / "cache" / "archives" / f"{archive._key(java, [*jars, *archive._sparks_own_jars()])}-7.jsa"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"archive")
    assert archive_for(settings, java, jars, say=silent) == kept
    return settings


def test_an_archive_with_which_java_does_not_start_is_dropped_and_the_start_prints_nothing(
    choosy: SparkSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    session = build_session(choosy)
    try:
        assert session.range(10).count() == 10
    finally:
        stop_session(session)
        gc.collect()

    assert list((choosy.cache_folder / "archives").glob("*.jsa")) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"driver_memory": "much"}, "Invalid maximum heap size: -Xmxmuch"),
        ({"driver_memory": "100m"}, "must be at least"),
        ({"conf": {"spark.driver.extraJavaOptions": "-version"}}, "did not start; it said: "),
        ({"conf": {"spark.serializer": "no.such.Serializer"}}, "no.such.Serializer"),
    ],
)
def test_a_start_that_fails_for_another_reason_says_it_once_and_keeps_the_archive(
    wrong: dict[str, Any], reason: str, choosy: SparkSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Misconfigured, match=re.escape(reason)) as raised:
        build_session(replace(choosy, **wrong))

    assert str(raised.value).count("\n") == 0
    assert len(list((choosy.cache_folder / "archives").glob("*.jsa"))) == 1
    assert capfd.readouterr() == ("", "")
    assert SparkContext._active_spark_context is None


@pytest.mark.soak
def test_a_start_after_another_session_of_this_process_is_refused_in_one_sentence_too(choosy: SparkSettings) -> None:
    stop_session(build_session(choosy))
    gc.collect()

    with pytest.raises(Misconfigured, match=r"^Spark did not start on local\[\*\]: .*must be at least \d+\. Check"):
        build_session(replace(choosy, driver_memory="100m"))
    assert SparkContext._active_spark_context is None
