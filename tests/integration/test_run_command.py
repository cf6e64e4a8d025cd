"""`lakehead run` as people start it: what it prints, how it ends, and what it leaves behind."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehead.lake.catalog import open_catalog
from lakehead.run.config.config_file import read_config
from lakehead.spark.settings import EMBEDDED, embedded_catalog
from tests.integration.pipeline_support import PASSWORD, source_of
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.support.commands import lakehead_command
from tests.support.effort import SOAKING, effort
from tests.support.source_support import Database

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]
pytestmark = [
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
]
LAKEHEAD = Path(sys.executable).with_name("lakehead")
READERS = ("arrow", "jdbc")
CANARY = "k4nari3nvogel"
"""A password that is found wherever it is written."""


@dataclass
class Command:
    """A configuration in a folder, and the command that runs it there."""

    folder: Path
    sources: Mapping[str, Any]
    tables: Sequence[Mapping[str, Any]]
    environment: Mapping[str, str] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    spark: Mapping[str, Any] = field(default_factory=dict)
    sinks: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        roots = {"raw_root": "raw", "final_root": "final", "intermediate": "mirror"}
        return {
            "runtime": {**roots, **self.runtime},
            "sources": self.sources,
            **({"sinks": self.sinks} if self.sinks else {}),
            "spark": {"master": "local[4]", **self.spark},  # tasks that take long leave room for the others
            "tables": list(self.tables),
        }

    def write_config(self) -> None:
        (self.folder / "config.json").write_text(json.dumps(self.config))

    @contextmanager
    def started(self, *options: str, config: str = "config.json", **more: str) -> Iterator["subprocess.Popen[str]"]:
        """It, running in a session of its own, as a terminal has it. None of its processes outlives the test."""
        self.write_config()
        process = subprocess.Popen(
            [LAKEHEAD, "run", config, *options],
            cwd=self.folder,
            env={**os.environ, **self.environment, **more},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def run(self, *options: str, config: str = "config.json", **more: str) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        with self.started(*options, config=config, **more) as process:
            out, told = process.communicate(timeout=200)
            assert others_of(process) == []
        return subprocess.CompletedProcess(process.args, process.returncode, out, told)

    def rows(self, table: str) -> pa.Table:
        with closing(open_catalog(EMBEDDED, embedded_catalog(self.folder / "lakehouse"))) as catalog:
            return catalog.load_table(table).scan().to_arrow()

    @property
    def made(self) -> list[str]:
        """What lies in the folder besides the configuration."""
        return sorted(path.name for path in self.folder.iterdir() if not path.name.startswith("config."))


def others_of(process: "subprocess.Popen[str]") -> list[str]:
    """The processes of the command's session that are still there: a JVM, its workers, its readers."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if folder.name.isdigit() and int(session) == process.pid and state != "Z":
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except (OSError, ValueError):
            continue  # it has ended, or is no process
    return found


def events(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def payloads(out: str, kind: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in events(out) if event["kind"] == kind]


@pytest.fixture
def shop(tmp_path: Path) -> Command:
    """A source in SQLite with two tables."""
    with closing(sqlite3.connect(tmp_path / "config.shop.db")) as connection:
        connection.execute("CREATE TABLE cities (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, at TIMESTAMP)")
        connection.execute("INSERT INTO cities VALUES (1, 'Rome')")
        connection.execute("INSERT INTO orders VALUES (1, '2024-01-01 10:00:00.000001')")
        connection.commit()
    return Command(
        tmp_path,
        {"shop": {"dialect": "sqlite", "url": "sqlite:///config.shop.db"}},
        [
            {"table": "cities", "mode": "full"},
            {"table": "orders", "mode": "scd1", "incremental_column": "at", "primary_keys": ["id"]},
        ],
    )


def test_elsewhere_than_on_a_terminal_it_prints_one_json_line_for_each_event(shop: Command) -> None:
    shop.runtime = {"logging": {"sink": "logs/"}}

    done = shop.run("--load-date", "2025-05-05")

    assert done.returncode == 0, done.stderr
    told = events(done.stdout)
    assert [told[0]["kind"], told[-1]["kind"]] == ["run_start", "run_done"]
    assert len({event["run"] for event in told}) == 1
    assert all(event["payload"]["load_date"] == "2025-05-05" for event in told if event["kind"] == "table_start")
    assert {event["job_group"] for event in told if event["table"] == "cities"} == {f"{told[0]['run']}/cities"}
    [logged] = (shop.folder / "logs").iterdir()
    assert events(logged.read_text()) == told
    assert "2 tables: 2 done" in done.stderr
    assert "Traceback" not in done.stderr
    for table in ("raw.cities", "final.cities", "raw.orders", "mirror.orders"):
        assert shop.rows(table)["_load_date"].to_pylist() == [date(2025, 5, 5)]


def test_the_same_in_toml_is_the_same_run_and_lines_can_be_for_people(shop: Command) -> None:
    shop.runtime = {"logging": {"json": False, "sink": "log.jsonl"}}
    shop.tables = [*shop.tables, {"table": "nowhere", "mode": "full"}]

    (shop.folder / "config.toml").write_text(
        """
        [runtime]
        raw_root = "raw"
        final_root = "final"
        intermediate = "mirror"
        logging = {json = false, sink = "log.jsonl"}

        [spark]
        master = "local[4]"

        [sources.shop]
        dialect = "sqlite"
        url = "sqlite:///config.shop.db"

        [[tables]]
        table = "cities"
        mode = "full"

        [[tables]]
        table = "orders"
        mode = "scd1"
        incremental_column = "at"
        primary_keys = ["id"]

        [[tables]]
        table = "nowhere"
        mode = "full"
        """
    )
    done = shop.run("--load-date", "2025-05-05", "--only-tables", "cities,nowhere", config="config.toml")

    assert read_config(shop.folder / "config.toml") == read_config(shop.folder / "config.json")
    assert done.returncode == 1
    assert "There is no table 'nowhere'" in done.stdout
    assert "2 tables: 1 done, 1 failed" in done.stdout
    assert not any(line.startswith("{") for line in done.stdout.splitlines())
    assert [event["kind"] for event in events((shop.folder / "log.jsonl").read_text())].count("run_done") == 1


FAULTS = {
    "a wrong key": (["config.json"], {"rot": 1}, {}, "lakehead: config.json is invalid: 1 problem.\n  runtime.rot"),
    "no file": (["nothing.json"], {}, {}, "lakehead: The configuration nothing.json cannot be read"),
    "an unknown table": (
        ["config.json", "--only-tables", "cities,nowhere"],
        {},
        {},
        "lakehead: The configuration has no table nowhere",
    ),
    "no table": (["config.json", "--only-tables", ","], {}, {}, "lakehead: --only-tables names no table"),
    "no day": (["config.json", "--load-date", "yesterday"], {}, {}, "--load-date"),
    "a missing secret": (
        ["config.json"],
        {},
        {"password": {"env": "NOT_SET"}},
        "lakehead: The environment variable NOT_SET is not set.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_wrong_is_told_before_anything_is_started_or_made(shop: Command, fault: str) -> None:
    (config, *options), runtime, source, said = FAULTS[fault]
    shop.runtime = runtime
    if source:
        shop.sources = {"shop": {"dialect": "postgresql", "url": "postgresql://user@127.0.0.1:1/shop", **source}}

    shop.write_config()
    done = lakehead_command("run", config, *options, cwd=shop.folder, env={"PATH": "/nowhere", "JAVA_HOME": "/nowhere"})

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert shop.made == []


def test_help_tells_every_option_with_an_example() -> None:
    done = subprocess.run([LAKEHEAD, "run", "--help"], capture_output=True, text=True, check=True, timeout=60)

    options = ("--only-tables", "--load-date", "--reload", "--wm-lag-seconds", "--heartbeat-seconds")
    assert all(option in done.stdout for option in options)
    assert "Example: lakehead run conf/shop.json" in " ".join(done.stdout.replace("│", " ").split())


def test_moments_without_a_zone_stay_where_everything_else_is_in_new_york(
    postgresql: Database, mysql: Database, tmp_path: Path
) -> None:
    sources, tables, environment = dict[str, Any](), list[dict[str, Any]](), dict[str, str]()
    for database, kind in ((postgresql, "timestamp"), (mysql, "datetime(6)")):
        name = database.name()
        database.run(f"CREATE TABLE {name} (id int PRIMARY KEY, at {kind})")
        database.run(f"INSERT INTO {name} VALUES (1, '2024-03-10 02:30:00.123456'), (2, '2024-03-31 02:30:00')")
        sources[database.kind], secret = source_of(database)
        environment |= secret
        for reader in READERS:
            read = {"source": database.kind, "table": name, "reader": reader, "primary_keys": ["id"]}
            full = {**read, "name": f"{database.kind}_{reader}_full", "mode": "full"}
            changed = {"mode": "scd1", "incremental_column": "at", "lag_seconds": 60}
            scd1 = {**read, "name": f"{database.kind}_{reader}_scd1", **changed}
            tables += effort([scd1], soak=[full, scd1])
    command = Command(tmp_path, sources, tables, environment)

    java = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -Duser.timezone=America/New_York"
    done = command.run(TZ="America/New_York", JDK_JAVA_OPTIONS=java)

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for table in tables:
        root = {"full": "final", "scd1": "mirror"}[table["mode"]]
        for place in ("raw", root):
            rows = command.rows(f"{place}.{table['name']}").sort_by("id")
            # The first does not exist in New York, the second not in much of Europe.
            expected = [datetime(2024, 3, 10, 2, 30, 0, 123456), datetime(2024, 3, 31, 2, 30)]  # noqa: DTZ001 - see above
            assert rows["at"].to_pylist() == expected, (place, table["name"])


@contextmanager
def database_in(server: Postgres | MariaDB) -> Iterator[Database]:
    """A new database of a server."""
    url = server.database()
    with closing(server.connect(url.rpartition("/")[2])) as connection:

        def run(sql: str) -> list[tuple[Any, ...]]:
            cursor: Any = connection.cursor()
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

        database = Database(url.partition(":")[0], url, run)
        database.source.close()
        yield database


SLOW = {"postgresql": "pg_sleep(id * 0 + 100) IS NULL", "mysql": "SLEEP(id * 0 + 100) = 1"}
READING = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE state = 'User sleep' AND db = DATABASE()",
}


def a_slow_table(database: Database) -> None:
    """A table that takes minutes to be read, because of what its rows are computed from."""
    database.run("CREATE TABLE few (id int PRIMARY KEY)")
    database.run("INSERT INTO few VALUES (1), (2)")
    database.run(f"CREATE VIEW slow AS SELECT id, {SLOW[database.kind]} AS late FROM few")


def await_readers(database: Database, number: int, process: "subprocess.Popen[str]") -> None:
    """Wait until so many tasks are in the middle of reading."""
    while int(str(database.run(READING[database.kind])[0][0])) < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)  # how often is asked; nothing depends on it


def canaries(folder: Path) -> list[Path]:
    """The files that hold the canary, as it is or as hexadecimal or UTF-16."""
    spelled = [CANARY.encode(), CANARY.encode().hex().encode(), CANARY.encode("utf-16-le")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(word in path.read_bytes() for word in spelled)]


CANARY_IS_THE_PASSWORD = {
    "postgresql": f"ALTER ROLE lakehead PASSWORD '{CANARY}'",
    "mysql": f"SET PASSWORD = PASSWORD('{CANARY}')",
}


@pytest.mark.parametrize("new_server", [Postgres, pytest.param(MariaDB, marks=pytest.mark.soak)])
def test_a_password_is_written_nowhere_whatever_happens(
    new_server: type[Postgres] | type[MariaDB], tmp_path: Path
) -> None:
    server = new_server()
    try:
        server.start()
        with database_in(server) as database:
            a_slow_table(database)
            database.run(CANARY_IS_THE_PASSWORD[database.kind])
            source, _ = source_of(database)
            command = Command(
                tmp_path,
                {"right": source, "wrong": {**source, "password": {"env": "WRONG"}}},
                [*tables_by("quick", "right"), *tables_by("refused", "wrong"), *tables_by("slow", "right")],
                {PASSWORD: CANARY, "WRONG": f"{CANARY}!", "PHRASE": CANARY},
                {"max_parallel_tables": 6, "logging": {"sink": "log.jsonl", "level": "debug"}},
                {"conf": {**what_spark_records(tmp_path), "spark.hadoop.phrase": {"env": "PHRASE"}}},
            )
            with command.started() as process:
                await_done(command, 2, process)
                await_readers(database, 2, process)
                server.kill()
                out, told = process.communicate(timeout=200)
                left = others_of(process)
    finally:
        server.stop()

    assert process.returncode == 1
    assert sorted(event["table"] for event in events(out) if event["kind"] == "table_done") == [
        "quick_arrow",
        "quick_jdbc",
    ]
    failed = {event["table"]: event["payload"]["error"] for event in events(out) if event["kind"] == "table_failed"}
    assert set(failed) == {"refused_arrow", "refused_jdbc", "slow_arrow", "slow_jdbc"}
    for table, error in failed.items():
        assert ("cannot be reached" if "slow" in table else "refused user 'lakehead' or the password") in error
    assert CANARY not in out + told
    [recorded] = (tmp_path / "events").rglob("events_*")
    for shown in ("spark.hadoop.phrase", "phrase"):
        assert f'"{shown}":"*********(redacted)"' in recorded.read_text()
    assert canaries(tmp_path) == []
    assert canaries_in_tables(command, *(f"{root}.quick_{by}" for root in ("raw", "mirror") for by in READERS)) == []
    assert left == []


def what_spark_records(folder: Path) -> dict[str, str]:
    """Settings that let Spark write down what its pages would show: its settings, the JVM's and every plan."""
    (folder / "events").mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.eventLog.compress": "false",
    }


def tables_by(name: str, source: str) -> list[dict[str, object]]:
    """A table by each reader."""
    table = {"table": "slow" if name == "slow" else "few", "source": source}
    scd1 = {"mode": "scd1", "incremental_column": "id", "primary_keys": ["id"], "late_commits": "accept"}
    keys = scd1 if name != "slow" else {"mode": "full"}
    return [{**table, **keys, "name": f"{name}_{reader}", "reader": reader} for reader in READERS]


def await_done(command: Command, number: int, process: "subprocess.Popen[str]") -> None:
    """Wait until so many tables are done."""
    log = command.folder / "log.jsonl"
    while not log.exists() or log.read_text().count('"table_done"') < number:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)  # how often is asked; nothing depends on it


def canaries_in_tables(command: Command, *tables: str) -> list[str]:
    """The tables whose rows or metadata hold the canary: files of tables are compressed."""
    found = []
    with closing(open_catalog(EMBEDDED, embedded_catalog(command.folder / "lakehouse"))) as catalog:
        for name in tables:
            table = catalog.load_table(name)
            if CANARY in f"{table.scan().to_arrow().to_pylist()} {table.metadata.model_dump_json()}":
                found.append(name)
    return found


@pytest.mark.parametrize(
    ("server", "ended_by"),
    [
        ("postgres", signal.SIGINT),
        pytest.param("mariadb", signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param("mariadb", signal.SIGINT, marks=pytest.mark.soak),
        pytest.param("postgres", signal.SIGTERM, marks=pytest.mark.soak),
    ],
)
def test_an_interrupted_run_ends_and_the_next_one_goes_on(
    server: str, ended_by: signal.Signals, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with database_in(request.getfixturevalue(server)) as database:
        a_slow_table(database)
        source, environment = source_of(database)
        few, slow = ({"table": name, "mode": "full"} for name in ("few", "slow"))
        command = Command(tmp_path, {"source": source}, [few, slow], environment, {"logging": {"sink": "log.jsonl"}})
        with command.started() as process:
            await_done(command, 1, process)
            await_readers(database, 1, process)

            if ended_by is signal.SIGINT:
                os.killpg(process.pid, ended_by)  # as a terminal does: to all of its processes
            else:
                os.kill(process.pid, ended_by)  # as a supervisor does: to the first one
            out, told = process.communicate(timeout=60)
            left = others_of(process)
        assert process.returncode == 128 + ended_by
        assert "Traceback" not in told
        by = "you (Ctrl-C)" if ended_by is signal.SIGINT else "SIGTERM"
        stopped = f"Stopped by {by}. Landed rows are kept; run the command again to continue."
        if server == "mariadb":  # its rows are measured first: the run itself waits for an answer, which nothing ends
            assert [event["not_ended"] for event in payloads(out, "run_done")] == [1]
        else:
            assert stopped in payloads(out, "table_failed")[0].values()
            assert "2 tables: 1 done, 1 failed" in told, "the summary is there"
        assert told.endswith(f"lakehead: {stopped}\n")
        assert left == []
        assert all(json.loads(line) for line in out.splitlines())
        if ended_by is signal.SIGTERM and not SOAKING:
            return  # what comes next does not depend on the signal
        # Nobody may touch slow: the server has not noticed yet that nobody reads it any more.
        database.run("CREATE VIEW quick AS SELECT id, 1 = 1 AS late FROM few")
        command.tables = [few, {**slow, "table": "quick", "name": "slow"}]
        next_run = command.run()

    assert next_run.returncode == 0, next_run.stdout
    assert [event["table"] for event in events(next_run.stdout) if event["kind"] == "table_skipped"] == ["few"]
    assert sorted(command.rows("final.slow")["id"].to_pylist()) == [1, 2]
    assert sorted(command.rows("raw.few")["id"].to_pylist()) == [1, 2]
