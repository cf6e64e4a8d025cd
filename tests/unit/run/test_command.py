"""The `lakehead` command: answers, exit codes, and one sentence where something is wrong."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from lakehead.errors import Misconfigured
from lakehead.run.environment import spark_settings, state_password, store_settings
from tests.unit.run.queue_support import Done

LAKEHEAD = Path(sys.executable).with_name("lakehead")


Lakehead = Callable[..., Done]


@pytest.mark.slow
def test_doctor_says_that_a_store_is_fine_and_leaves_nothing_in_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [LAKEHEAD, "doctor", "--no-spark", "--store", f"file://{tmp_path}/lake"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("store ok")
    assert [path for path in (tmp_path / "lake").rglob("*") if path.is_file() and ".lakehead" not in path.parts] == []


def test_doctor_says_that_a_state_is_fine_also_when_it_is_opened_again(lakehead: Lakehead, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"

    for _ in range(2):
        done = lakehead("doctor", "--no-spark", "--state", url)

        assert (done.code, done.err) == (0, "")
        assert done.out == f"state ok: {url} can be opened, its tables are up to date\n"


@pytest.mark.parametrize("url", ["nonsense", "oracle://host/x", "sqlite:////no/such/folder/state.db"])
def test_a_state_that_cannot_be_opened_is_one_sentence(lakehead: Lakehead, url: str) -> None:
    done = lakehead("doctor", "--no-spark", "--state", url)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("lakehead: The ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "s3://", "s3://bucket?x=1", "file://host/folder"])
def test_a_bad_url_is_one_sentence_without_a_traceback(
    lakehead: Lakehead, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    done = lakehead("doctor", "--store", url)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("lakehead: The store URL")
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_sentence_and_nothing_is_written(
    lakehead: Lakehead, tmp_path: Path
) -> None:
    done = lakehead("doctor", "--no-spark", "--store", f"file://{tmp_path}/missing/lake")

    assert done.code == 2
    assert done.err.count("\n") == 1
    assert f"{tmp_path}/missing/lake" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_missing_java_is_one_sentence_with_what_to_install_and_the_store_is_checked_all_the_same(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [LAKEHEAD, "doctor", "--store", f"file://{tmp_path}/lake"],
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 2
    assert done.stdout.startswith("store ok")
    assert done.stderr.startswith("lakehead: There is no Java on the path. Spark needs Java 17 or newer.")
    assert done.stderr.count("\n") == 1


def test_every_problem_is_told_and_wrong_input_decides_the_exit_code(
    lakehead: Lakehead, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))

    done = lakehead("doctor", "--store", f"file://{tmp_path}/missing/lake")

    assert (done.code, done.out) == (2, "")
    assert f"{tmp_path}/missing/lake" in done.err
    assert f"JAVA_HOME is {tmp_path / 'jdk'}" in done.err
    assert done.err.count("\n") == 2


def test_help_shows_an_example(lakehead: Lakehead) -> None:
    assert "lakehead doctor --store file:///tmp/lake" in " ".join(lakehead("doctor", "--help").out.split())


def test_the_version_is_printed(lakehead: Lakehead) -> None:
    assert lakehead("--version").out.startswith("lakehead 0.")


def test_the_environment_becomes_settings() -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:8333",
        "AWS_REGION": "eu-west-1",
        "AZURE_STORAGE_ACCOUNT_KEY": "azure",
    }

    s3, azure = store_settings("s3://bucket", environment), store_settings("az://container", environment)

    assert s3.credentials == {"access_key_id": "key", "secret_access_key": "secret"}
    assert (s3.endpoint, s3.region) == ("http://127.0.0.1:8333", "eu-west-1")
    assert azure.credentials == {"account_key": "azure"}
    assert azure.endpoint == ""


def test_the_password_of_the_state_comes_from_the_environment() -> None:
    assert state_password({"LAKEHEAD_STATE_PASSWORD": "hush"}) == "hush"
    assert state_password({"LAKEHEAD_STATE_PASSWORD": ""}) is None


def test_the_environment_becomes_settings_for_spark() -> None:
    given = {
        "JAVA_HOME": "/jdk",
        "PATH": "/bin",
        "LAKEHEAD_JARS": "/jars",
        "LAKEHEAD_CACHE": "/cache",
        "LAKEHEAD_REPOSITORIES": "https://a.example, https://b.example",
        "LAKEHEAD_ARCHIVE": "no",
    }

    settings, plain = (
        spark_settings(given),
        spark_settings({"XDG_CACHE_HOME": "/x", "JAVA_HOME": "", "LAKEHEAD_JARS": "", "LAKEHEAD_ARCHIVE": ""}),
    )

    assert (settings.java_home, settings.path) == (Path("/jdk"), "/bin")
    assert (settings.jar_folder, settings.cache_folder) == (Path("/jars"), Path("/cache"))
    assert settings.repositories == ("https://a.example", "https://b.example")
    assert (plain.java_home, plain.jar_folder, plain.cache_folder) == (None, None, Path("/x/lakehead"))
    assert spark_settings({}).cache_folder == user_cache_path("lakehead")
    assert spark_settings({"XDG_CACHE_HOME": "~/caches"}).cache_folder == Path.home() / "caches" / "lakehead"
    assert (settings.class_data_archive, plain.class_data_archive) == (False, True)
    with pytest.raises(Misconfigured, match="yes or no"):
        spark_settings({"LAKEHEAD_ARCHIVE": "0"})
