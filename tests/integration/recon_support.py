"""Tables that are loaded, changed, and compared with their source."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import json
from contextlib import ExitStack
from typing import Any

import pytest

from lakehead.clock import SystemClock
from lakehead.extract.recon_report import ReconReport
from lakehead.ids import RandomIds, system_random
from lakehead.run.config.config_file import read_config
from lakehead.run.recon_tables import Reconciliation, document
from lakehead.run.run_command import select_tables
from lakehead.run.wiring import Wiring
from lakehead.telemetry.emitter import Emitter, EventEnvelope
from lakehead.telemetry.events import TableReconciled
from tests.integration.increment_support import done
from tests.integration.pipeline_support import Scene
from tests.pipeline import DAY

KINDS = ("postgresql", "mysql", "sqlite")
EVERY = pytest.mark.parametrize("kind", KINDS)


def compare(scene: Scene, table: dict[str, Any]) -> tuple[ReconReport, TableReconciled]:
    """Compare one table, and return the report and the event."""
    [found] = compare_all(scene, table)
    return found


def compare_all(scene: Scene, *tables: dict[str, Any]) -> list[tuple[ReconReport, TableReconciled]]:
    """Compare some tables, and return the report and the event of each."""
    config = read_config(scene.pipeline.config(tables))
    clock, ids, told = SystemClock(), RandomIds(), list[EventEnvelope]()
    wiring = Wiring(config, scene.pipeline.environment)
    with ExitStack() as opened:
        state = opened.enter_context(wiring.open_state(clock, ids))
        reports = Reconciliation(
            wiring=wiring,
            session=scene.spark,
            state=state,
            emitter=Emitter(ids.uuid(), clock, ids, [told.append]),
            clock=clock,
            ids=ids,
            random=system_random(),
            today=DAY,
        ).run(select_tables(config, None), lambda _: None)
    found = []
    for table, report, envelope in zip(tables, reports, told, strict=True):
        assert isinstance(envelope.event, TableReconciled)
        assert json.loads(document([report]))["tables"][0]["table"] == table["table"] == envelope.table
        found.append((report, envelope.event))
    return found


def scd1(table: str, keys: list[str], **more: Any) -> dict[str, Any]:
    return {"table": table, "mode": "scd1", "incremental_column": "at", "primary_keys": keys, **more}


def mirror(scene: Scene, table: str, statement: str) -> None:
    scene.spark.sql(statement.format(t=f"lake.mirror.{table}"))


def loaded(scene: Scene, key: str = "bigint") -> dict[str, Any]:
    """A table of ten rows with the keys 1 to 10, loaded."""
    name = scene.name()
    scene.sql(f"CREATE TABLE {name} (id {key}, at bigint, v varchar(20), n decimal(10,2))")
    for number in range(1, 11):
        scene.sql(f"INSERT INTO {name} VALUES ({number}, {number}, 'v{number}', {number}.1)")
    table = scd1(name, ["id"])
    done(scene.run(table))
    return table
