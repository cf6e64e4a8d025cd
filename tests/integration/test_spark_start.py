"""What a start stands on: `lakehead doctor`, real repositories, and an archive that never breaks it."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lakehead.errors import Misconfigured, Unavailable
from lakehead.run.environment import spark_settings
from lakehead.spark.archive import archive_for
from lakehead.spark.jars import jars_for
from lakehead.spark.java import find_java
from lakehead.spark.session import silent

pytestmark = pytest.mark.timeout(300)  # the very first start fetches jars and prepares quicker ones

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


@pytest.mark.parametrize("damage", ["none", "rubbish", "cut short"])
def test_a_start_works_with_an_archive_whatever_its_state(damage: str, tmp_path: Path) -> None:
    settings = spark_settings()
    java = find_java(settings)
    jars = jars_for(settings, java, say=silent)
    archive = archive_for(settings, java, jars, say=silent)
    assert archive is not None
    copy = tmp_path / "archives" / archive.name
    copy.parent.mkdir()
    match damage:
        case "none":
            copy.symlink_to(archive)
        case "rubbish":
            with copy.open("wb") as file:
                file.write(b"rubbish" * 1000)
                file.truncate(archive.stat().st_size)
        case _:
            shutil.copyfile(archive, copy)
            os.truncate(copy, archive.stat().st_size // 2)

    ran = subprocess.run(
        [sys.executable, "-c", START],
        env={**os.environ, "LAKEHEAD_CACHE": str(tmp_path), "LAKEHEAD_JARS": str(jars[0].parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1000\n", "")
    assert ("shared objects file (top)" in (tmp_path / "classes.log").read_text()) == (damage == "none")
