"""What telemetry costs: 20 small tables with everything on and off, and statements of 100 tables against 1."""

import contextlib
import io
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from sqlalchemy import event
from sqlalchemy.engine import Engine

from bench.kept_results import KeptResults
from lakehead.run.config.config_file import read_config
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.resolved_config import ResolvedConfig
from lakehead.run.run_tables import run_tables
from lakehead.spark.session import build_session, stop_session
from tests.unit.run.observe.receiver import receiving

DAY = date(2026, 1, 1)


class Tables:
    """A SQLite source with small tables, and runs of them."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.day = DAY
        self.names = [f"t{number}" for number in range(count)]
        with contextlib.closing(sqlite3.connect(folder / "source.db")) as source:
            for name in self.names:
                source.execute(f"CREATE TABLE {name} (id integer PRIMARY KEY, v integer)")
                source.executemany(f"INSERT INTO {name} VALUES (?, ?)", [(i, i) for i in range(100)])  # noqa: S608 - ours
            source.commit()

    def resolved(self, count: int, **runtime: Any) -> tuple[ResolvedConfig, Path]:
        file = self.folder / "config.json"
        state = {"url": f"sqlite:///{self.folder}/state.sqlite"}
        written = {
            "runtime": {"raw_root": "raw", "final_root": "final", "state": state, **runtime},
            "sources": {"source": {"dialect": "sqlite", "url": f"sqlite:///{self.folder}/source.db"}},
            "spark": {"lakehouse": str(self.folder / "lakehouse")},
            "tables": [{"table": name, "mode": "full"} for name in self.names[:count]],
        }
        file.write_text(json.dumps(written))
        return ResolvedConfig(read_config(file), ENVIRONMENT), file

    def run(self, session: SparkSession, count: int, **runtime: Any) -> float:
        """Load the tables for the next day. Returns the seconds it took."""
        self.day += timedelta(days=1)
        resolved, file = self.resolved(count, **runtime)
        begun = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = run_tables(
                resolved,
                resolved.config.tables,
                lambda: session,
                load_date=self.day,
                reload=False,
                lag_seconds=0,
                heartbeat_seconds=1,
                config_file=file,
            )
        assert code == 0  # noqa: S101 - a run that fails is no measurement
        return time.monotonic() - begun


def telemetry_overhead(tables: Tables, session: SparkSession, turns: int = 5) -> float:
    """The time of 20 tables with everything on, against everything off: the ratio of medians."""
    with receiving() as receiver:
        everything = {
            "notifications": {"webhook": receiver.url, "interval_seconds": 1},
            "openlineage": {"url": receiver.url},
            "metadata_gateway": {"ingestion_metrics": True, "ingestion_runtime": True},
            "metrics": {"port": 0, "textfile": f"{tables.folder}/run.prom"},
            "logging": {"sink": f"{tables.folder}/log.jsonl", "level": "debug"},
        }
        tables.run(session, 20)
        seconds = [(tables.run(session, 20), tables.run(session, 20, **everything)) for _ in range(turns)]
    off, on = (statistics.median(column) for column in zip(*seconds, strict=True))
    return float(on / off)


def state_queries(tables: Tables, session: SparkSession) -> float:
    """Statements for each table of all (100), against those of a run with 1 table."""
    many = len(tables.names)
    one, all_of_them = (_counted(partial(tables.run, session, count)) for count in (1, many))
    return all_of_them / many / one


def _counted(work: Callable[[], object]) -> int:
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        work()
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    return len(seen)


def telemetry(results: KeptResults, tables: int = 100, turns: int = 5) -> None:
    """Load small tables with everything on and off, and count the statements of many tables and of one."""
    with tempfile.TemporaryDirectory() as folder:
        source = Tables(Path(folder), tables)
        resolved, _ = source.resolved(min(tables, 20))
        resolved.check()
        session = build_session(resolved.spark_settings, say=print)
        try:
            source.run(session, tables)
            results.judge("ops.telemetry_overhead", telemetry_overhead(source, session, turns), "<=", 1.05)
            results.judge("ops.state_queries_100_tables", state_queries(source, session), "<=", 1.0)
        finally:
            stop_session(session)
