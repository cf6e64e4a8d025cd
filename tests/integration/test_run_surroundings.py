"""`lakehead run` where the machine fails it: Spark is killed, folders cannot be written, the disk is full."""

import ctypes
import os
import resource
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.pipeline_support import source_of
from tests.integration.test_run_command import (
    LAKEHEAD,
    Command,
    a_slow_table,
    await_done,
    await_readers,
    database_in,
    events,
    others_of,
)

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]
pytestmark = [
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
]


def failures(out: str) -> dict[str, str]:
    """What each failed table said."""
    return {event["table"]: event["payload"]["error"] for event in events(out) if event["kind"] == "table_failed"}


def jvm_of(process: "subprocess.Popen[str]") -> int:
    """The JVM that the command has started."""
    for folder in Path("/proc").iterdir():
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if folder.name.isdigit() and int(parent) == process.pid and b"java" in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("it has no JVM")


def test_when_spark_is_killed_every_table_says_so_and_what_to_do(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with database_in(request.getfixturevalue("postgres")) as database:
        a_slow_table(database)
        source, environment = source_of(database)
        slow = {"table": "slow", "mode": "full"}
        tables = [{"table": "few", "mode": "full"}, *({**slow, "name": f"slow{number}"} for number in range(3))]
        runtime = {"logging": {"sink": "log.jsonl"}, "max_parallel_tables": 2}
        sinks = {"lake": {"type": "iceberg"}, "files": {"type": "files", "root": "files"}}
        tables = [{**table, "sink": "files" if table.get("name") == "slow1" else "lake"} for table in tables]
        command = Command(tmp_path, {"source": source}, tables, environment, runtime, sinks=sinks)
        with command.started() as process:
            await_done(command, 1, process)
            await_readers(database, 2, process)
            os.kill(jvm_of(process), signal.SIGKILL)
            out, told = process.communicate(timeout=200)
            left = others_of(process)

    assert process.returncode == 1
    assert set(failures(out)) == {"slow0", "slow1", "slow2"}
    for error in failures(out).values():
        assert error.startswith("Spark died: its JVM was killed by SIGKILL. ")
        assert error.endswith("run it again to go on.")
    assert "Traceback" not in told, told
    assert "onnection refused" not in told + out
    assert "4 tables: 1 done, 3 failed" in told
    assert events(out)[-1]["kind"] == "run_done"
    assert left == []


@pytest.fixture
def shop(tmp_path: Path) -> Command:
    """A source in SQLite with one table."""
    with closing(sqlite3.connect(tmp_path / "config.shop.db")) as connection:
        connection.execute("CREATE TABLE cities (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO cities VALUES (1, 'Rome')")
        connection.commit()
    sources = {"shop": {"dialect": "sqlite", "url": "sqlite:///config.shop.db"}}
    return Command(tmp_path, sources, [{"table": "cities", "mode": "full"}])


def as_anybody() -> None:
    """Let the new program obey the rights of files, also where the tests run as root."""
    if os.geteuid() == 0:
        prctl, drop_of_bounding_set = ctypes.CDLL(None, use_errno=True).prctl, 24
        for capability in (1, 2):  # to write anywhere, to read anywhere
            assert prctl(drop_of_bounding_set, capability, 0, 0, 0) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def nobody_may_write(*folders: Path) -> Iterator[None]:
    for folder in folders:
        folder.chmod(0o555)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o755)


def run(command: Command, prepare: Callable[[], None]) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process that is prepared before it becomes the command. Its configuration is there."""
    return subprocess.run(
        [LAKEHEAD, "run", "config.json"],
        cwd=command.folder,
        env={**os.environ, **command.environment},
        preexec_fn=prepare,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_a_working_folder_that_cannot_be_written_is_one_sentence(shop: Command) -> None:
    shop.write_config()

    with nobody_may_write(shop.folder):
        done = run(shop, as_anybody)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "lakehead: This user may not write lakehouse (Permission denied). "
        "Change its permissions, or choose another path.\n"
    )


def test_a_lakehouse_that_cannot_be_written_fails_its_tables_with_a_sentence(shop: Command) -> None:
    lakehouse = shop.folder / "lakehouse"
    lakehouse.mkdir()
    shop.write_config()

    with nobody_may_write(lakehouse):
        done = run(shop, as_anybody)

    assert done.returncode == 1
    error = failures(done.stdout)["cities"]
    assert error.startswith("The catalog 'lake' cannot be opened: unable to open database file. ")
    assert "Traceback" not in done.stderr
    assert "1 table: 1 failed" in done.stderr


LIMIT = 2 * 2**20


def no_large_files() -> None:
    """Let no file become larger: to a program it is as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.mark.parametrize("mode", ["full", pytest.param("scd1", marks=pytest.mark.soak)])
def test_a_full_disk_is_told_first_with_its_path_and_what_was_written_is_removed(shop: Command, mode: str) -> None:
    with closing(sqlite3.connect(shop.folder / "config.shop.db")) as connection:
        connection.execute("CREATE TABLE blobs (id INTEGER PRIMARY KEY, at TIMESTAMP, content BLOB)")
        connection.executemany(
            "INSERT INTO blobs VALUES (?, '2024-01-01 10:00:00', randomblob(100000))",
            [(number,) for number in range(40)],
        )
        connection.commit()
    more: dict[str, Any] = {} if mode == "full" else {"incremental_column": "at", "primary_keys": ["id"]}
    shop.tables = [*shop.tables, {"table": "blobs", "mode": mode, **more}]

    shop.write_config()

    done = run(shop, no_large_files)

    assert done.returncode == 1
    assert set(failures(done.stdout)) == {"blobs"}
    data = shop.folder / "lakehouse" / "warehouse" / "raw" / "blobs" / "data"
    assert failures(done.stdout)["blobs"] == (
        f"The disk of {data} is full (File too large). Make room there, and run it again."
    )
    assert "Traceback" not in done.stderr
    assert "\tat " not in done.stderr
    assert len(done.stderr.splitlines()) < 20
    assert list(data.rglob("*.parquet")) == []
