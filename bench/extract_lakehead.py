"""Lakehead as its users run it: `lakehead run CONFIG` in a process of its own, and what its events tell."""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.extract_checks import written
from bench.extract_process import Ran, run
from bench.extract_source import TABLE, WARM_UP, Shop, Sums
from lakehead.telemetry.events import TableDone
from tests.pipeline import Pipeline
from tests.servers.postgres import PASSWORD, USER

LOG = "events.jsonl"
SECRET = "BENCH_SHOP_PASSWORD"  # noqa: S105 - the name of a variable
KEPT_IN = {"full view": "raw", "full table": "final", "scd1": "mirror"}
"""Where readers find the rows, for each way to keep a table."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run of Lakehead, and what it cost."""

    ran: Ran
    load_seconds: float
    """Of the orders alone: from `table_start` to `table_done`."""

    sums: Sums


class Lakehead:
    """One lakehouse in a folder of its own, and runs that load into it."""

    def __init__(self, shop: Shop, folder: Path, kept: str) -> None:
        self.shop, self.folder, self.kept = shop, folder, kept

    def load(self, *, warm: bool) -> Loaded:
        """One run. With warm workers, a small table is loaded before, in the same way."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / LOG
        log.unlink(missing_ok=True)
        config = self.folder / "config.json"
        config.write_text(json.dumps(self._config([WARM_UP, TABLE] if warm else [TABLE])))
        command = Path(sys.executable).parent / "lakehead"
        ran = run([str(command), "run", str(config)], self.folder, {SECRET: PASSWORD})
        return Loaded(ran, _seconds(log), self._found())

    def drop(self) -> None:
        """Remove the lakehouse."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _config(self, tables: list[str]) -> dict[str, Any]:
        return {
            "runtime": {
                "pipeline": "bench",
                "raw_root": "raw",
                "final_root": "final",
                "intermediate": "mirror",
                "max_parallel_tables": 1,
                "state": {"url": f"sqlite:///{self.folder}/state.sqlite"},
                "logging": {"sink": str(self.folder / LOG)},
            },
            "sources": {
                "shop": {
                    "dialect": "postgresql",
                    "url": self.shop.plain_url,
                    "user": USER,
                    "password": {"env": SECRET},
                }
            },
            "spark": {"lakehouse": str(self.folder / "lakehouse")},
            "tables": [{"schema": "public", "table": table, "name": table, **mode_of(self.kept)} for table in tables],
        }

    def _found(self) -> Sums:
        return written(self.folder / "lakehouse" / "warehouse" / KEPT_IN[self.kept], TABLE)


@dataclass(frozen=True, slots=True)
class WarmLakehead:
    """Lakehead within a session that is warm, for what is compared with plain Spark in the same session."""

    shop: Shop
    session: SparkSession
    folder: Path
    lakehouse: Path
    """Where the session's embedded catalog is."""

    days: Iterator[date]

    def load(self, kept: str, table: str = TABLE) -> tuple[float, Sums]:
        """One load of a table, or of what has changed in it: its seconds, and what is there then."""
        source = {"dialect": "postgresql", "url": self.shop.plain_url, "user": USER, "password": {"env": SECRET}}
        pipeline = Pipeline(self.folder, self.lakehouse, source, {SECRET: PASSWORD})
        day = next(self.days)
        # What is loaded whole is loaded to a new place each time: raw would keep all of them.
        name = f"{table}_{day:%Y%m%d}" if kept.startswith("full") else f"{table}_{kept}"
        settings = {"schema": "public", "table": table, "name": name, **mode_of(kept)}
        ran = pipeline.run(self.session, [settings], load_date=day)
        if ran.errors:
            raise OSError(f"Lakehead did not load {table}: {ran.errors}")
        [done] = ran.of(TableDone)
        return done.seconds, written(self.lakehouse / "warehouse" / KEPT_IN[kept], name)


def mode_of(kept: str) -> dict[str, Any]:
    """A way to keep a table, as a configuration has it."""
    mode, _, finalize = kept.partition(" ")
    if mode == "full":
        return {"mode": "full", "finalize": finalize}
    return {"mode": "scd1", "incremental_column": "updated_at", "primary_keys": ["id"]}


def _seconds(log: Path) -> float:
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for event in events:
        if event["kind"] == "table_done" and event["table"] == TABLE:
            return float(event["payload"]["seconds"])
    last = [event for event in events if event["kind"] in ("table_failed", "table_skipped")]
    raise OSError(f"Lakehead did not load {TABLE}: {last}")
