"""Jars are fetched once, are complete or fetched again, and what cannot be fetched is named."""

import threading
from pathlib import Path

import pytest

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.spark.coordinates import needed
from lakehead.spark.ivy import failure
from lakehead.spark.jars import jars_for
from lakehead.spark.java import Java
from lakehead.spark.settings import CENTRAL, SparkSettings

FETCHES = "fetches"


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """A java that plays Ivy: it writes two jars where it is told to, and a line for each time that it ran."""
    command = tmp_path / "jdk" / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!/bin/sh\necho fetched >> {tmp_path / FETCHES}\n"
        'for last; do :; done\nfolder=$(dirname "$last")\necho one > "$folder/a-1.jar"\necho two > "$folder/b-1.jar"\n'
    )
    command.chmod(0o755)
    return Java(tmp_path / "jdk", "17", "test")


def fetches(tmp_path: Path) -> int:
    return (tmp_path / FETCHES).read_text().count("fetched")


def test_jars_are_fetched_once_and_then_only_looked_at(tmp_path: Path, java: Java) -> None:
    said: list[str] = []
    settings = SparkSettings(cache_folder=tmp_path / "cache")

    first = jars_for(settings, java, say=said.append)
    second = jars_for(settings, java, say=said.append)

    assert first == second
    assert [jar.name for jar in first] == ["a-1.jar", "b-1.jar"]
    assert (fetches(tmp_path), len(said)) == (1, 1)


@pytest.mark.parametrize("damage", [Path.unlink, lambda jar: jar.write_text("cut")], ids=["gone", "cut short"])
def test_an_incomplete_set_is_fetched_again(tmp_path: Path, java: Java, damage: object) -> None:
    settings = SparkSettings(cache_folder=tmp_path / "cache")
    jars = jars_for(settings, java, say=print)
    assert callable(damage)
    damage(jars[1])

    again = jars_for(settings, java, say=print)

    assert [jar.read_text() for jar in again] == ["one\n", "two\n"]
    assert fetches(tmp_path) == 2


def test_starts_at_once_fetch_once(tmp_path: Path, java: Java) -> None:
    settings = SparkSettings(cache_folder=tmp_path / "cache")
    found: list[tuple[Path, ...]] = []
    racers = [
        threading.Thread(target=lambda: found.append(jars_for(settings, java, say=lambda _: None))) for _ in range(8)
    ]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()

    assert len(set(found)) == 1
    assert len(found) == 8
    assert fetches(tmp_path) == 1


def test_a_fetch_that_fails_leaves_nothing_that_looks_complete(tmp_path: Path, java: Java) -> None:
    settings = SparkSettings(cache_folder=tmp_path / "cache")
    works = java.command.read_text()
    java.command.write_text(works + "exit 1\n")

    with pytest.raises(Misconfigured):
        jars_for(settings, java, say=print)
    java.command.write_text(works)

    assert len(jars_for(settings, java, say=print)) == 2
    assert not [path for path in (tmp_path / "cache" / "jars").iterdir() if "making" in path.name]


def test_a_folder_of_jars_is_used_as_it_is(tmp_path: Path, java: Java) -> None:
    for name in ("iceberg-spark-runtime-4.1_2.13-1.11.0.jar", "org.xerial_sqlite-jdbc-3.51.0.0.jar", "more.jar"):
        (tmp_path / name).touch()

    jars = jars_for(SparkSettings(jar_folder=tmp_path, cache_folder=tmp_path / "cache"), java, say=print)

    assert len(jars) == 3
    assert not (tmp_path / FETCHES).exists()
    assert not (tmp_path / "cache").exists()


def test_a_folder_without_a_jar_that_is_needed_is_named_with_it(tmp_path: Path, java: Java) -> None:
    (tmp_path / "iceberg-spark-runtime-4.1_2.13-1.11.0.jar").touch()

    with pytest.raises(Misconfigured, match=f"{tmp_path} has no jar of org.xerial:sqlite-jdbc"):
        jars_for(SparkSettings(jar_folder=tmp_path), java, say=print)


@pytest.mark.parametrize(
    ("printed", "kind", "words"),
    [
        (
            "\t\t:: com.example#driver;9: not found\n",
            Misconfigured,
            "com.example:driver:9 could not be fetched from",
        ),
        (
            "Host maven.invalid not found. url=https://…\n\t\t:: org.xerial#sqlite-jdbc;3.50.3.0: not found\n",
            Unavailable,
            "org.xerial:sqlite-jdbc:3.50.3.0 could not be fetched: Maven Central cannot be reached",
        ),
        ("something new\n", Misconfigured, "iceberg-spark-runtime"),
    ],
)
def test_a_failure_names_the_coordinate_and_the_way_without_a_network(
    printed: str, kind: type[LakeheadError], words: str
) -> None:
    error = failure(printed, needed(SparkSettings()), [CENTRAL])

    assert type(error) is kind
    assert words in str(error)
    assert "LAKEHEAD_JARS" in str(error)
