"""Columns that are left out, masked or hashed reach neither tables nor events, state or metadata as they are."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import hmac
import json
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from lakehead.clock import SystemClock
from lakehead.extract.recon_report import Outcome
from lakehead.ids import RandomIds, system_random
from lakehead.run.config.config_file import read_config
from lakehead.run.recon_tables import Reconciliation
from lakehead.run.wiring import Wiring
from lakehead.state.state import State
from lakehead.telemetry.emitter import Emitter
from tests.integration.pipeline_support import MARKS, ONE_SERVER, PLUGINS, SERVERS, Scene
from tests.integration.sink_support import Kept
from tests.pipeline import DAY

pytest_plugins = (*PLUGINS, "tests.integration.sink_fixtures")
pytestmark = [pytest.mark.slow, *MARKS]

PEPPER = "salt-4711"
CANARY = "plain-canary"
RULES = {
    "code": {"hash": "sha256", "secret": {"env": "PEPPER"}},
    "Email": {"hash": "sha256", "secret": {"env": "PEPPER"}},
    "name": {"mask": "***"},
    "born": {"mask": "***"},
    "note": {"leave_out": True},
}


def hashed(text: str) -> str:
    return hmac.digest(PEPPER.encode(), text.encode(), "sha256").hex()


def people(scene: Scene) -> str:
    name = scene.name()
    scene.sql(
        f"CREATE TABLE {name} (code varchar(40) PRIMARY KEY, at int, email varchar(60), name varchar(40), born int,"
        " note text)",
        *(
            f"INSERT INTO {name} VALUES ('{CANARY}{n}', {n}, 'ann{n}@{CANARY}', '{CANARY}', 1900, '{CANARY}')"
            for n in (1, 2)
        ),
        f"INSERT INTO {name} VALUES ('{CANARY}3', 3, NULL, NULL, NULL, NULL)",
    )
    return name


def scd1(name: str, **more: Any) -> dict[str, Any]:
    return {
        "table": name,
        "mode": "scd1",
        "incremental_column": "at",
        "primary_keys": ["code"],
        "columns": RULES,
        **more,
    }


def safe(scene: Scene) -> Scene:
    metadata = {"enabled": True, "cache_path": str(scene.pipeline.folder / "metadata")}
    environment = {**scene.pipeline.environment, "PEPPER": PEPPER}
    return replace(scene, pipeline=replace(scene.pipeline, metadata=metadata, environment=environment))


@pytest.mark.parametrize("reader", ["arrow", "jdbc"])
@pytest.mark.parametrize("scene", SERVERS, indirect=True)
def test_values_are_protected_alike_from_every_dialect_and_by_every_reader(scene: Scene, reader: str) -> None:
    scene = safe(scene)
    name = people(scene)
    assert scene.run(scd1(name, reader=reader)).errors == {}
    scene.sql(f"UPDATE {name} SET at = 4, email = 'new@{CANARY}' WHERE at = 1")

    ran = scene.run(scd1(name, reader=reader))

    assert ran.errors == {}
    rows = sorted(scene.rows(f"mirror.{name}").to_pylist(), key=lambda row: row["at"])
    assert rows == [
        {"code": hashed(f"{CANARY}2"), "at": 2, "email": hashed(f"ann2@{CANARY}"), "name": "***", "born": None},
        {"code": hashed(f"{CANARY}3"), "at": 3, "email": None, "name": None, "born": None},
        {"code": hashed(f"{CANARY}1"), "at": 4, "email": hashed(f"new@{CANARY}"), "name": "***", "born": None},
    ]
    raw = scene.rows(f"raw.{name}").to_pylist()
    assert CANARY not in str(raw)
    assert {row["name"] for row in raw} == {"***", None}
    written = json.dumps([each.event.payload() for each in ran.told])
    kept = [path.read_bytes() for path in scene.pipeline.folder.rglob("*") if path.is_file()]
    assert len(list(scene.pipeline.folder.rglob("metadata/v1/*/*"))) >= 2
    for secret in (CANARY, PEPPER):
        assert secret not in written
        assert not any(secret.encode() in content for content in kept)


@ONE_SERVER
def test_a_value_that_is_refused_is_not_shown_and_a_renamed_column_is_not_read_plain(scene: Scene) -> None:
    scene = safe(scene)
    name = people(scene)
    rules = {"at2": {"mask": "x"}, "email": RULES["Email"]}
    kind = "date" if scene.database.kind == "postgresql" else "datetime"
    scene.sql(f"ALTER TABLE {name} ADD COLUMN at2 {kind}")
    assert scene.run(scd1(name, columns=rules)).errors == {}
    if scene.database.kind == "postgresql":
        scene.sql(f"UPDATE {name} SET at = 9, at2 = 'infinity' WHERE at = 1")
        refused = scene.run(scd1(name, columns=rules))
        assert "column 'at2' of type date has the value (not shown)" in refused.errors[name]
        assert CANARY not in json.dumps([each.event.payload() for each in refused.told])
        scene.sql(f"UPDATE {name} SET at2 = NULL")
    before = scene.rows(f"mirror.{name}").num_columns
    scene.sql(f"ALTER TABLE {name} RENAME COLUMN email TO mail")

    renamed = scene.run(scd1(name, columns=rules))

    assert "has no column 'email'" in renamed.errors[name]
    assert scene.rows(f"mirror.{name}").num_columns == before


def test_a_file_sink_protects_too(in_files: Kept) -> None:
    kept = in_files
    name = kept.scene.name()
    kept.scene.sql(
        f"CREATE TABLE {name} (id integer primary key, at integer, email text, note text)",
        f"INSERT INTO {name} VALUES (1, 1, 'ann', '{CANARY}')",
    )
    table = {"table": name, "mode": "scd1", "incremental_column": "at", "primary_keys": ["id"]}
    rules = {"email": RULES["Email"], "note": {"leave_out": True}}

    ran = kept.changed(environment={"PEPPER": PEPPER}).run({**table, "columns": rules})

    assert ran.errors == {}
    assert kept.rows("mirror", name, "id", "email") == [(1, hashed("ann"))]
    later = {"email": {"leave_out": True}, "note": {"leave_out": True}}
    kept.scene.sql(f"INSERT INTO {name} VALUES (2, 2, 'bob', 'n')")
    refused = kept.run({**table, "columns": later})
    assert "the source has no column 'email'" in refused.errors[name]
    assert kept.rows("mirror", name, "id", "email") == [(1, hashed("ann"))]
    folder = next(kept.root.rglob("*.parquet"))
    assert "note" not in kept.scene.spark.read.parquet(str(folder)).columns


def test_a_comparison_leaves_protected_columns_out_and_says_so(on_postgresql: Scene) -> None:
    scene = safe(on_postgresql)
    name = scene.name()
    scene.sql(
        f"CREATE TABLE {name} (id int PRIMARY KEY, at int, email text, v text, note text)",
        f"INSERT INTO {name} VALUES (1, 1, 'ann', 'a', 'n'), (2, 2, 'bob', 'b', 'n')",
    )
    rules = {"email": RULES["Email"], "note": {"leave_out": True}}
    table = {"table": name, "mode": "scd1", "incremental_column": "at", "primary_keys": ["id"], "columns": rules}
    assert scene.run(table).errors == {}
    config = read_config(scene.pipeline.config([table]))
    clock, ids = SystemClock(), RandomIds()
    wiring = Wiring(config, scene.pipeline.environment)
    with closing(wiring.open_state(clock, ids)) as state:
        assert isinstance(state, State)
        compared = Reconciliation(
            wiring=wiring,
            session=scene.spark,
            state=state,
            emitter=Emitter(ids.uuid(), clock, ids, [], load_date=DAY),
            clock=clock,
            ids=ids,
            random=system_random(),
            today=DAY,
        )
        [equal] = compared.run(config.tables, lambda _: None)
        scene.sql(f"UPDATE {name} SET v = 'changed' WHERE id = 2")
        [different] = compared.run(config.tables, lambda _: None)

    assert equal.outcome is Outcome.EQUAL
    assert equal.skipped == {"email": "it is hashed in the target", "note": "it is left out in the target"}
    assert different.outcome is Outcome.DIFFERENT
