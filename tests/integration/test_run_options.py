"""What `lakehead run` is told on its command line reaches the run, and what a run tells reaches the state."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.run.config.table_config import TableConfig
from lakehead.run.wiring import Wiring
from lakehead.source.port import Source
from lakehead.state.model import EventRecord
from lakehead.state.opening import open_state
from lakehead.telemetry.events import TableFailed
from tests.chaos.run_child import HOLD, running
from tests.integration.increment_support import scd1
from tests.integration.pipeline_support import MARKS, PLUGINS, Scene
from tests.support.spark import Borrowed

pytest_plugins = PLUGINS
pytestmark = MARKS


def kept_events(folder: Path) -> list[EventRecord]:
    with open_state(f"sqlite:///{folder}/state.sqlite", SystemClock(), RandomIds()) as state:
        return list(state.history.events())


@pytest.fixture
def orders(on_sqlite: Scene) -> str:
    name = on_sqlite.name()
    on_sqlite.sql(
        f"CREATE TABLE {name} (id integer primary key, at timestamp)",
        f"INSERT INTO {name} VALUES (1, '2024-01-01 10:00:00')",
    )
    return name


def test_reload_lag_heartbeat_and_load_date_reach_the_run(on_sqlite: Scene, orders: str) -> None:
    scene, jvm = on_sqlite, Borrowed.of(on_sqlite.spark)
    assert scene.run(scd1(orders)).errors == {}
    config = scene.pipeline.config([scd1(orders)], logging={"json": True}, heartbeat_seconds=3600)
    options = ("--reload", "--wm-lag-seconds", "600", "--heartbeat-seconds", "1", "--load-date", "2020-02-29")

    with running(config, {}, HOLD, "before slice 1", jvm=jvm, options=options) as run:
        run.arrive()
        run.tells("heartbeat")
        run.go()
        told = run.done()

    [start] = [each["payload"] for each in told if each["kind"] == "table_start"]
    [plan] = [each["payload"] for each in told if each["kind"] == "table_planned"]
    assert start["reload"] is True
    assert plan["planner"]["lag_seconds"] == 600
    assert scene.rows(f"mirror.{orders}", ingest=True)["_generation"].to_pylist() == [1]
    assert {each["payload"].get("load_date") for each in told} == {"2020-02-29"}
    run_id = told[0]["run"]
    kept = [event for event in kept_events(scene.pipeline.folder) if event.run == run_id]
    assert {event.payload.get("load_date") for event in kept} == {"2020-02-29"}
    assert {"run_start", "table_start", "phase", "table_done", "run_done"} <= {event.kind for event in kept}


def test_that_a_run_has_begun_is_in_the_state_before_a_source_is_read(on_sqlite: Scene, orders: str) -> None:
    seen: list[list[str]] = []

    class Looking(Wiring):
        def source_of(self, table: TableConfig, session: Any) -> Callable[[], Source]:
            opened = super().source_of(table, session)

            def look() -> Source:
                seen.append([event.kind for event in kept_events(on_sqlite.pipeline.folder)])
                return opened()

            return look

    ran = on_sqlite.run(scd1(orders), wiring=lambda made: Looking(made.config, made.environment))

    assert ran.errors == {}
    assert len(seen) == 1
    assert "run_start" in seen[0]


def test_a_failure_carries_a_stack_hash_that_is_the_same_for_the_same_fault(on_sqlite: Scene, orders: str) -> None:
    missing = {"table": "nowhere", "mode": "full"}
    text = scd1(orders, primary_keys=["nokey"])

    first, second = (on_sqlite.run(missing, text) for _ in range(2))

    hashes = [[event.stack_hash for event in sorted(ran.of(TableFailed), key=str)] for ran in (first, second)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 2
    assert all(re.fullmatch("[0-9a-f]{12}", each) for each in hashes[0])
    kept = [
        event.payload["stack_hash"] for event in kept_events(on_sqlite.pipeline.folder) if event.kind == "table_failed"
    ]
    assert sorted(map(str, kept)) == sorted(2 * hashes[0])
