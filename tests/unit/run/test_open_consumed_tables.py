"""The commands about pipelines, on a real state, a real catalog and a real ledger, and without Spark."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.lake.dead_letters import DeadLetters, give_up
from lakehead.lake.tables import create_table
from lakehead.run.config.config_file import read_config
from lakehead.run.consume_wiring import ConsumeWiring
from lakehead.run.open_consumed_tables import open_consumed_tables
from lakehead.state.model import FileOutcome, FileState
from lakehead.wire.dead_letters import DeadLetterObject
from tests.support.state_tools import hold
from tests.unit.run.queue_support import Done

Lakehead = Callable[..., Done]

NO_JVM = """
import sys
from lakehead.run.main import main
code = 0
try:
    main()
except SystemExit as error:
    code = error.code
from pyspark import SparkContext
sys.exit("Spark was started" if SparkContext._gateway is not None else code)
"""


class Pipelines:
    """Two pipelines of a configuration file: one of a manifest queue with a table, one of a folder without."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "files.json"
        content: dict[str, Any] = {
            "spark": {"lakehouse": str(folder / "lakehouse")},
            "runtime": {"state": {"url": f"sqlite:///{folder}/state.db"}},
            "pipelines": {
                "uploads": {
                    "queue": {"type": "manifest", "store": f"file://{folder}/queue"},
                    "tables": [{"table": "raw.uploads", "format": "ndjson"}],
                },
                "inbox": {
                    "queue": {"type": "folder", "url": str(folder / "in")},
                    "tables": [{"table": "raw.inbox", "format": "csv"}],
                },
            },
        }
        self.file.write_text(json.dumps(content))
        self.wiring = ConsumeWiring(read_config(self.file), {})
        self.wiring.check()

    def create(self, name: str) -> str:
        with closing(self.wiring.open_catalog("lake")) as catalog:
            create_table(catalog, name, pa.schema([("a", pa.int64())]))
            return str(catalog.load_table(name).metadata.table_uuid)

    def give_up(self, table: str, unit: str, body: bytes | None) -> None:
        letters = DeadLetters(self.wiring.open_ledger().store)
        with self.wiring.open_state(SystemClock(), RandomIds()) as state:
            hold(state, table, unit)
            now = state.now()
            letter = DeadLetterObject(table=table, unit=unit, reason="line 3", tries=5, first_at=now, last_at=now)
            given = letter if body is None else letter.with_body(body)
            assert asyncio.run(give_up(letters, state, given, owner="us"))


@pytest.fixture
def pipelines(tmp_path: Path) -> Pipelines:
    return Pipelines(tmp_path)


def test_tables_of_all_pipelines_or_of_one_are_opened_and_those_that_do_not_exist_are_left_out(
    pipelines: Pipelines,
) -> None:
    uploads = pipelines.create("raw.uploads")

    with open_consumed_tables(pipelines.file, None) as every:
        assert (every.tables, every.queue) == ({"raw.uploads": uploads}, None)
        assert every.pipelines == ("uploads", "inbox")
    with open_consumed_tables(pipelines.file, "uploads") as one:
        assert (one.tables, one.queue is not None) == ({"raw.uploads": uploads}, True)
    with open_consumed_tables(pipelines.file, "inbox") as folder:
        assert (folder.tables, folder.queue) == ({}, None)


def test_a_pipeline_that_the_configuration_lacks_is_named(pipelines: Pipelines, lakehead: Lakehead) -> None:
    done = lakehead("dead-letters", "list", pipelines.file, "--pipeline", "nothing")

    assert done.code == 2
    assert done.err == "lakehead: The configuration has no pipeline nothing. It has: uploads, inbox.\n"


def test_files_are_shown_as_the_state_has_them(pipelines: Pipelines, lakehead: Lakehead) -> None:
    table = pipelines.create("raw.uploads")
    with pipelines.wiring.open_state(SystemClock(), RandomIds()) as state:
        state.files.record(table, [FileOutcome(unit="s3://b/a", state=FileState.LANDED, rows=3, bytes=5)])

    done = lakehead("consume", "files", pipelines.file, "--json")

    assert (done.code, done.err) == (0, "")
    [file] = done.json["files"]
    assert (file["unit"], file["table"], file["rows"]) == ("s3://b/a", "raw.uploads", 3)


def test_a_letter_is_listed_replayed_to_the_queue_it_came_from_and_dropped(
    pipelines: Pipelines, lakehead: Lakehead
) -> None:
    pipelines.give_up(pipelines.create("raw.uploads"), "s3://b/a", b"data/0.batch")

    [letter] = lakehead("dead-letters", "list", pipelines.file, "--json").json["dead_letters"]
    in_doubt = lakehead("dead-letters", "replay", pipelines.file, letter["id"])
    replayed = lakehead("dead-letters", "replay", pipelines.file, letter["id"], "--pipeline", "uploads")
    dropped = lakehead("dead-letters", "drop", pipelines.file, letter["id"], "--yes", "--table", "raw.uploads")

    assert (in_doubt.code, in_doubt.err.endswith("Say which one with --pipeline: uploads, inbox.\n")) == (2, True)
    assert (replayed.code, replayed.out, replayed.err) == (0, "s3://b/a is replayed\n", "")
    assert (dropped.code, dropped.out) == (0, "s3://b/a is dropped\n")
    manifest = json.loads((pipelines.file.parent / "queue" / "ingest" / "manifest.json").read_bytes())
    assert "data/0.batch" in json.dumps(manifest)


def test_a_file_that_a_listing_named_is_only_tried_again(pipelines: Pipelines, lakehead: Lakehead) -> None:
    table = pipelines.create("raw.inbox")
    pipelines.give_up(table, "file:///in/a.csv", None)

    done = lakehead("dead-letters", "replay", pipelines.file, "file:///in/a.csv")

    assert (done.code, done.out, done.err) == (0, "file:///in/a.csv is replayed\n", "")
    with pipelines.wiring.open_state(SystemClock(), RandomIds()) as state:
        assert state.shards.acquire(table, ["file:///in/a.csv"], owner="we", lease_until=state.now()) == {
            "file:///in/a.csv"
        }


@pytest.mark.slow
def test_no_jvm_is_started(pipelines: Pipelines) -> None:
    pipelines.create("raw.uploads")

    done = subprocess.run(
        [sys.executable, "-c", NO_JVM, "dead-letters", "list", str(pipelines.file)],
        env={"PATH": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "0 dead letters", "")
