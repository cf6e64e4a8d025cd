"""A run with everything on: each receiver hears of tables that were loaded and that failed, and none hears a secret."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import json
import logging
import threading
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.run.config.config_file import read_config
from lakehead.run.resolved_config import ResolvedConfig
from lakehead.run.run_tables import run_tables
from lakehead.spark.app_metrics import SparkAppMetrics
from lakehead.state.opening import open_state
from tests.integration.pipeline_support import MARKS, PLUGINS, Scene
from tests.pipeline import DAY
from tests.unit.run.observe.receiver import receiving
from tests.unit.test_monitoring import promtool

pytest_plugins = PLUGINS
pytestmark = MARKS
CANARY = "c4nary"

TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
FACET = {"type": "object", "required": ["_producer", "_schemaURL"]}
DATASET = {
    "type": "object",
    "required": ["namespace", "name"],
    "properties": {"namespace": TEXT, "name": TEXT, "facets": {"additionalProperties": FACET}},
}
LINEAGE = {
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job", "eventType"],
    "properties": {
        "eventTime": {"type": "string", "format": "date-time"},
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "producer": {"type": "string", "format": "uri"},
        "schemaURL": {"type": "string", "format": "uri"},
        "run": {
            "required": ["runId"],
            "properties": {"runId": {"type": "string", "format": "uuid"}, "facets": {"additionalProperties": FACET}},
        },
        "job": {"required": ["namespace", "name"], "properties": {"namespace": TEXT, "name": TEXT}},
        "inputs": {"type": "array", "items": DATASET},
        "outputs": {"type": "array", "items": DATASET},
    },
}
"""What OpenLineage's specification asks of a run event."""


def run(scene: Scene, tables: list[dict[str, Any]], environment: dict[str, str], **runtime: Any) -> int:
    """Run tables as the command does."""
    file = scene.pipeline.config(tables, **runtime)
    resolved = ResolvedConfig(read_config(file), environment)
    return run_tables(
        resolved,
        resolved.config.tables,
        lambda: scene.spark,
        load_date=DAY,
        reload=False,
        lag_seconds=0,
        heartbeat_seconds=3600,
        config_file=file,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_receiver_hears_of_success_and_failure_and_no_secret_is_told(
    on_sqlite: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    name, before = on_sqlite.name(), set(threading.enumerate())
    on_sqlite.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    tables = [
        {"table": name, "mode": "full", "max_staleness": "1h"},
        {"table": "nowhere", "mode": "full", "max_staleness": "1h"},
    ]
    with receiving() as receiver:
        code = run(
            on_sqlite,
            tables,
            {"WEBHOOK": f"{receiver.url}/{CANARY}-hook", "KEY": f"{CANARY}-key"},
            notifications={"webhook": {"env": "WEBHOOK"}},
            openlineage={"url": f"{tmp_path}/lineage.jsonl", "api_key": {"env": "KEY"}},
            metadata_gateway={"ingestion_metrics": True, "ingestion_runtime": True},
            metrics={"port": 0, "textfile": f"{tmp_path}/run.prom"},
            logging={"sink": f"{tmp_path}/log.jsonl", "json": True, "level": "debug"},
        )
        posted = [json.loads(body) for body in receiver.bodies]

    assert code == 1
    alerts = [each["alert"]["table"] for each in posted if each["kind"] == "alert"]
    assert alerts == ["nowhere"]
    assert [each["tables"]["failed"] for each in posted if each["kind"] == "final"] == [1]
    lineage = lines(tmp_path / "lineage.jsonl")
    checks = jsonschema_rs.validator_for(LINEAGE, validate_formats=True)
    assert all(checks.is_valid(each) for each in lineage)
    assert sorted(each["eventType"] for each in lineage) == ["COMPLETE", "FAIL", "START", "START"]
    (done,) = [each for each in lineage if each["eventType"] == "COMPLETE"]
    assert [field["name"] for field in done["inputs"][0]["facets"]["schema"]["fields"]] == ["id", "v"]
    assert [each["outputFacets"]["outputStatistics"]["rowCount"] for each in done["outputs"]] == [2, 2]
    assert promtool("check", "metrics", stdin=(tmp_path / "run.prom").read_text()) == ""
    assert f'lakehead_run_table_rows{{pipeline="test",table="{name}"}} 2.0' in (tmp_path / "run.prom").read_text()
    log = lines(tmp_path / "log.jsonl")
    assert {each["payload"]["load_date"] for each in log} == {str(DAY)}
    failed = [each for each in log if each["kind"] == "phase" and each["payload"]["state"] == "failed"]
    assert [(each["table"], each["payload"]["phase"]) for each in failed] == [("nowhere", "raw")]
    with open_state(f"sqlite:///{on_sqlite.pipeline.folder}/state.sqlite", SystemClock(), RandomIds()) as state:
        records = {
            (each.kind, each.table, each.payload["outcome"])
            for each in state.history.events()
            if each.kind.startswith("ingestion")
        }
    kinds = ("ingestion_volume", "ingestion_runtime")
    assert records == {(kind, table, how) for kind in kinds for table, how in ((name, "done"), ("nowhere", "failed"))}
    told = caplog.text + "".join(capfd.readouterr()) + json.dumps([posted, lineage, log]) + str(records)
    assert CANARY not in told + (tmp_path / "run.prom").read_text()
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("lakehead")]


def test_spark_counts_what_it_does(on_sqlite: Scene) -> None:
    metrics = SparkAppMetrics(on_sqlite.spark)
    on_sqlite.spark.range(0, 1000, numPartitions=3).selectExpr("sum(id)").collect()
    seen = metrics.read()

    assert seen is not None
    assert set(seen) == {
        "tasks_active", "tasks_done", "tasks_failed", "bytes_read", "bytes_written", "bytes_spilled", "gc_seconds"
    }  # fmt: skip
    assert seen["tasks_done"] >= 3
