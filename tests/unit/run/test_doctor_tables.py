"""`lakehead doctor` on tables: which of them need looking after, and by which command."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from typer.core import TyperGroup
from typer.main import get_command

from lakehead.clock import SystemClock
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.tables import ensure_namespace
from lakehead.maintain import growth
from lakehead.run.main import app
from lakehead.storage.memory_store import MemoryStore
from tests.unit.lake.local_table import local_catalog, publish
from tests.unit.run.config_files import changed, written
from tests.unit.run.queue_support import Done

Lakehead = Callable[..., Done]
SCHEMA = Schema(NestedField(1, "v", LongType()))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let four be many: a thousand commits take a minute."""
    monkeypatch.setattr(growth, "MANY_SNAPSHOTS", 4)
    monkeypatch.setattr(growth, "MANY_MANIFESTS", 4)


def land(folder: Path, landings: int, *names: str) -> None:
    """Make tables with so many landings that keep two older metadata files, and delete none."""
    with local_catalog(folder) as catalog:
        for name in names or ("t.orders",):
            ensure_namespace(catalog, name.rpartition(".")[0])
            catalog.create_table(name, SCHEMA, properties={"write.metadata.previous-versions-max": "2"})
            table = IcebergTable(catalog, name, StoreLedger(MemoryStore(clock=SystemClock())))
            for value in range(landings):
                publish(table, pa.RecordBatch.from_pydict({"v": pa.array([value], pa.int64())}))


def test_doctor_says_that_a_table_is_fine(lakehead: Lakehead, tmp_path: Path) -> None:
    land(tmp_path, 1)

    done = lakehead("doctor", "--no-spark", "--table", "t.orders", "--lakehouse", tmp_path)

    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("table ok: t.orders has 1 snapshots, 1 manifests and 2 metadata files, the newest of ")


def test_doctor_tells_what_a_table_needs_by_commands_that_exist(lakehead: Lakehead, tmp_path: Path) -> None:
    land(tmp_path, 4)

    done = lakehead("doctor", "--no-spark", "--table", "t.orders", "--lakehouse", tmp_path)

    assert (done.code, done.out) == (1, "")
    lines = done.err.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("lakehead: The metadata of table t.orders grows. ")
        (command,) = re.findall(r"lakehead (maintain .*)$", line)
        assert parsed(shlex.split(command))["lakehouse"] == tmp_path


def test_doctor_looks_at_every_table_of_a_configuration(lakehead: Lakehead, tmp_path: Path) -> None:
    land(tmp_path, 4, "raw.public.cities")
    config = written(tmp_path, changed({("spark", "lakehouse"): str(tmp_path)}))

    done = lakehead("doctor", "--no-spark", "--config", config)

    assert done.code == 1
    assert len(done.err.splitlines()) == 3
    for line in done.err.splitlines():
        (command,) = re.findall(r"lakehead (maintain .*)$", line)
        assert command.endswith(f"raw.public.cities --config {config}"), "it names the state and the ledger too"
        assert parsed(shlex.split(command))["config"] == config
    assert done.out.splitlines().count("table mirror.public.orders: does not exist yet") == 1


def test_a_table_of_a_configuration_is_looked_at_where_the_configuration_has_it(
    lakehead: Lakehead, tmp_path: Path
) -> None:
    land(tmp_path, 1, "raw.public.cities")
    config = written(tmp_path, changed({("spark", "lakehouse"): str(tmp_path)}))

    done = lakehead("doctor", "--no-spark", "--config", config, "--table", "raw.public.cities")

    assert (done.code, done.err) == (0, "")
    assert [line.partition(" has ")[0] for line in done.out.splitlines()] == ["table ok: raw.public.cities"]


def test_a_table_or_catalog_that_cannot_be_opened_is_told_and_the_others_are_looked_at(
    lakehead: Lakehead, tmp_path: Path
) -> None:
    land(tmp_path, 1, "raw.public.cities", "raw.public.orders")
    for file in tmp_path.rglob("*.metadata.json"):
        if "cities" in str(file):
            file.unlink()
    away = {"type": "iceberg", "catalog": "away", "properties": {"type": "rest", "uri": "http://127.0.0.1:9"}}
    changes: dict[tuple[str | int, ...], Any] = {
        ("spark", "lakehouse"): str(tmp_path),
        ("sinks",): {"away": away, "lake": {"type": "iceberg"}},
    }
    config = changed(changes)
    gone = {**config["tables"][0], "name": "gone", "sink": "away"}
    config["tables"] = [gone, *({**table, "sink": "lake"} for table in config["tables"])]

    done = lakehead("doctor", "--no-spark", "--config", written(tmp_path, config))

    assert done.code == 1
    assert "table ok: raw.public.orders" in done.out
    away_said, cities_said = done.err.splitlines()
    assert away_said.startswith("lakehead: The catalog away does not answer")
    assert cities_said.startswith("lakehead: The table raw.public.cities in the catalog 'lake' cannot be opened: ")


def test_a_table_that_is_not_there_is_missed_by_name(lakehead: Lakehead, tmp_path: Path) -> None:
    land(tmp_path, 0)

    done = lakehead("doctor", "--no-spark", "--table", "t.absent", "--lakehouse", tmp_path)

    assert (done.code, "no table t.absent" in done.err) == (2, True)


def parsed(words: list[str]) -> dict[str, Any]:
    """What the real command line makes of some words, without doing it."""
    command: Any = get_command(app)
    context: Any = None
    name = "lakehead"
    while isinstance(command, TyperGroup):
        context = command.make_context(name, words, parent=context)
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])  # type: ignore[assignment]
    params: dict[str, Any] = command.make_context(name, words, parent=context).params
    return params
