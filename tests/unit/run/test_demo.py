"""`lakehead demo`: whoever tries Lakehead waits for nothing that the demo has no use for."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from shutil import which

import pytest

from lakehead.errors import LakeheadError, Misconfigured
from lakehead.run.demo import demo
from lakehead.run.environment import spark_settings

ROOT = Path(__file__).parents[3]


def test_the_demo_makes_no_class_data_archive_before_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Mapping[str, str]] = []

    def failing(words: list[str], *, env: Mapping[str, str], **_: object) -> "subprocess.CompletedProcess[str]":
        given.append(env)
        return subprocess.CompletedProcess(words, 1)

    monkeypatch.setenv("JAVA_HOME", "/jdk")
    monkeypatch.setattr(subprocess, "run", failing)

    with pytest.raises(LakeheadError, match="demo has failed"):
        demo(tmp_path / "shop")

    settings = [spark_settings(environment) for environment in given]
    assert [(each.class_data_archive, each.java_home) for each in settings] == [(False, Path("/jdk"))]


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    with pytest.raises(Misconfigured, match="is not a demo folder"):
        demo(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(("target", "lock"), [("demo", "requirements.txt"), ("install", "requirements-dev.txt")])
def test_the_demo_installs_only_what_it_needs_and_developers_get_all(target: str, lock: str, tmp_path: Path) -> None:
    planned = subprocess.run(
        [which("make") or "make", "--dry-run", target, f"VENV={tmp_path}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    installed = [line.split()[1] for line in planned.splitlines() if line.startswith(".ci/install")]
    assert installed == [lock]
