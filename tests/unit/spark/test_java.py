"""Which Java is found, and the one sentence where none will do."""

from pathlib import Path

import pytest

from lakehead.errors import Misconfigured
from lakehead.spark.java import find_java
from lakehead.spark.settings import SparkSettings


def java(folder: Path, version: str) -> Path:
    """A folder whose bin/java answers as Java does."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        f"#!/bin/sh\necho 'Property settings:' >&2\necho '    java.home = {folder}' >&2\n"
        f"echo '    java.version = {version}' >&2\necho '    java.vm.version = {version}+7' >&2\n"
    )
    command.chmod(0o755)
    return folder


@pytest.mark.parametrize("version", ["17.0.15", "17", "21.0.1", "25-ea"])
def test_java_17_or_newer_will_do(tmp_path: Path, version: str) -> None:
    found = find_java(SparkSettings(java_home=java(tmp_path / "jdk", version)))

    assert (found.home, found.version) == (tmp_path / "jdk", version)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_an_older_java_is_named_with_what_to_install(tmp_path: Path, version: str) -> None:
    with pytest.raises(Misconfigured, match=f"Java {version}, which is too old.*Java 17 or newer.*apt.*dnf.*brew"):
        find_java(SparkSettings(java_home=java(tmp_path / "jdk", version)))


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    on_path, at_home = java(tmp_path / "path", "21.0.1"), java(tmp_path / "home", "17.0.1")

    assert find_java(SparkSettings(path=str(on_path / "bin"))).version == "21.0.1"
    assert find_java(SparkSettings(path=str(on_path / "bin"), java_home=at_home)).version == "17.0.1"


def test_no_java_at_all_says_how_to_install_one(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"There is no Java on the path.*apt install openjdk-17"):
        find_java(SparkSettings(path=str(tmp_path)))


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=f"JAVA_HOME is {tmp_path}"):
        find_java(SparkSettings(java_home=tmp_path))


def test_something_else_called_java_is_named_with_what_it_said(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\necho 'Please install Java from the app store.'\n")
    (tmp_path / "java").chmod(0o755)

    with pytest.raises(Misconfigured, match="it said: Please install Java from the app store"):
        find_java(SparkSettings(path=str(tmp_path)))
