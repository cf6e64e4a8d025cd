"""The class-data archive: found by what it fits, made by one process, and never in the way."""

from pathlib import Path

import pytest

from lakehead.spark import archive
from lakehead.spark.archive import archive_for
from lakehead.spark.cache import locked
from lakehead.spark.java import Java
from lakehead.spark.settings import SparkSettings


@pytest.fixture
def jars(tmp_path: Path) -> list[Path]:
    jar = tmp_path / "a.jar"
    jar.write_text("jar")
    return [jar]


def key(java: Java, jars: list[Path]) -> str:
    return archive._key(java, [*jars, *archive._sparks_own_jars()])


def stored(tmp_path: Path, name: str, size: int) -> Path:
    path = tmp_path / "archives" / f"{name}-{size}.jsa"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size))
    return path


JAVA = Java(Path("/no/jdk"), "17.0.1", "build 1")


def test_an_archive_is_used_only_with_the_java_and_the_jars_it_was_made_with(tmp_path: Path, jars: list[Path]) -> None:
    settings = SparkSettings(cache_folder=tmp_path, class_data_archive=False)
    mine = stored(tmp_path, key(JAVA, jars), 10)

    assert archive_for(settings, JAVA, jars, say=print) == mine
    assert archive_for(settings, Java(JAVA.home, "17.0.2", "build 2"), jars, say=print) is None
    jars[0].write_text("another jar")
    assert archive_for(settings, JAVA, jars, say=print) is None


def test_an_archive_that_is_not_as_long_as_its_name_says_is_none(tmp_path: Path, jars: list[Path]) -> None:
    stored(tmp_path, key(JAVA, jars), 10).write_bytes(bytes(9))

    assert archive_for(SparkSettings(cache_folder=tmp_path, class_data_archive=False), JAVA, jars, say=print) is None


def test_while_another_process_makes_it_a_start_goes_on_without(tmp_path: Path, jars: list[Path]) -> None:
    said: list[str] = []

    with locked(tmp_path / "archives" / key(JAVA, jars), wait=True):
        assert archive_for(SparkSettings(cache_folder=tmp_path), JAVA, jars, say=said.append) is None

    assert said == []


@pytest.mark.slow
def test_where_none_can_be_made_it_is_tried_once_and_is_no_error(tmp_path: Path, jars: list[Path]) -> None:
    said: list[str] = []

    for _ in range(2):
        assert archive_for(SparkSettings(cache_folder=tmp_path), JAVA, jars, say=said.append) is None

    assert len(said) == 1
    assert [path.suffix for path in (tmp_path / "archives").iterdir() if not path.name.endswith(".lock")] == [".failed"]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, jars: list[Path]) -> None:
    (tmp_path / "archives").write_text("a file, not a folder")

    assert archive_for(SparkSettings(cache_folder=tmp_path), JAVA, jars, say=print) is None
