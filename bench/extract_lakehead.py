"""Lakehead as its users run it: `lakehead run CONFIG` in a process of its own, and what its events tell."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.extract_checks import check_merged_in_arrow, written
from bench.extract_process import Ran, run
from bench.extract_source import TABLE, Shop, Sums
from lakehead.spark.settings import EMBEDDED
from lakehead.telemetry.events import PhaseMarked, TableDone, TableStep
from tests.pipeline import Pipeline
from tests.servers.postgres import PASSWORD, USER

LOG = "events.jsonl"
SECRET = "BENCH_SHOP_PASSWORD"  # noqa: S105 - the name of a variable
KEPT_IN = {"full view": "raw", "full table": "final", "scd1": "mirror"}
"""Where readers find the rows, for each way to keep a table."""

IN_ARROW = {"merge_lane": "arrow"}
"""What a configuration says so that merges are Lakehead's own, and not Spark's MERGE."""

MERGING, MIRRORED = "merging into the mirror", "intermediate"
"""The step of `table_progress`, and the phase, between which raw's rows are merged."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A run of Lakehead, and what it cost."""

    ran: Ran
    load_seconds: float
    """Of the last table alone: from `table_start` to `table_done`."""

    first_landed_seconds: float
    """From the start of the process to the first `phase` event of raw: its rows are committed then, and can be read."""

    sums: Sums


class Lakehead:
    """One lakehouse in a folder of its own, and runs that load into it."""

    def __init__(self, shop: Shop, folder: Path, kept: str) -> None:
        self.shop, self.folder, self.kept = shop, folder, kept
        self._merges = False

    def load(self, *tables: str) -> Loaded:
        """One run that loads these tables in this order, and tells of the last one; a second run merges."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / LOG
        log.unlink(missing_ok=True)
        config = self.folder / "config.json"
        config.write_text(json.dumps(self._config(tables)))
        command = Path(sys.executable).parent / "lakehead"
        ran = run([str(command), "run", str(config)], self.folder, {SECRET: PASSWORD})
        warehouse = self.folder / "lakehouse" / "warehouse" / KEPT_IN[self.kept]
        if self._merges:
            check_merged_in_arrow(warehouse, tables[-1])
        self._merges = self.kept == "scd1"
        events = [json.loads(line) for line in log.read_text().splitlines()]
        seconds = _seconds(events, tables[-1])
        landed = min(datetime.fromisoformat(each["at"]) for each in events if _is_landed(each))
        since = (landed - ran.began_at).total_seconds()
        return Loaded(ran, seconds, since, written(warehouse, tables[-1]))

    def drop(self) -> None:
        """Remove the lakehouse."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _config(self, tables: Sequence[str]) -> dict[str, Any]:
        return {
            "runtime": {
                "pipeline": "bench",
                "raw_root": "raw",
                "final_root": "final",
                "intermediate": "mirror",
                "max_parallel_tables": 1,
                "state": {"url": f"sqlite:///{self.folder}/state.sqlite"},
                "logging": {"sink": str(self.folder / LOG)},
                **IN_ARROW,
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


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge of what had changed, in a session that is warm."""

    seconds: float
    """With the source read: from `table_start` to `table_done`."""

    alone: float
    """From raw to mirror only: from `table_progress` of merging to the `phase` event of the mirror."""


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
        """One load of a whole table to a new place: its seconds, and what is there then."""
        day = next(self.days)
        name = f"{table}_{day:%Y%m%d}"
        return self._run(kept, table, name, day)[0], written(self._warehouse(kept), name)

    def mirror(self, name: str, table: str = TABLE) -> str:
        """A mirror of a table, to be merged into; answers what Spark calls it."""
        self._run("scd1", table, name, next(self.days))
        return f"{EMBEDDED}.mirror.{name}"

    def merge(self, name: str, table: str = TABLE) -> Merged:
        """Read what has changed in a table and merge it into a mirror of it."""
        seconds, alone = self._run("scd1", table, name, next(self.days))
        check_merged_in_arrow(self._warehouse("scd1"), name)
        if alone is None:
            raise OSError(f"Lakehead did not tell when it merged into {name}.")
        return Merged(seconds, alone)

    def mirrored(self, name: str) -> Sums:
        """What a mirror holds, as PyIceberg reads it."""
        return written(self._warehouse("scd1"), name)

    def _warehouse(self, kept: str) -> Path:
        return self.lakehouse / "warehouse" / KEPT_IN[kept]

    def _run(self, kept: str, table: str, name: str, day: date) -> tuple[float, float | None]:
        source = {"dialect": "postgresql", "url": self.shop.plain_url, "user": USER, "password": {"env": SECRET}}
        pipeline = Pipeline(self.folder, self.lakehouse, source, {SECRET: PASSWORD}, IN_ARROW)
        settings = {"schema": "public", "table": table, "name": name, **mode_of(kept)}
        ran = pipeline.run(self.session, [settings], load_date=day)
        if ran.errors:
            raise OSError(f"Lakehead did not load {table}: {ran.errors}")
        done = ran.of(TableDone)
        if not done:
            raise OSError(f"Lakehead had nothing to load for {table}.")
        began = [each.at for each in ran.told if isinstance(each.event, TableStep) and each.event.step == MERGING]
        ended = [each.at for each in ran.told if isinstance(each.event, PhaseMarked) and each.event.phase == MIRRORED]
        return done[0].seconds, (ended[-1] - began[-1]).total_seconds() if began and ended else None


def mode_of(kept: str) -> dict[str, Any]:
    """A way to keep a table, as a configuration has it."""
    mode, _, finalize = kept.partition(" ")
    if mode == "full":
        return {"mode": "full", "finalize": finalize}
    return {"mode": "scd1", "incremental_column": "updated_at", "primary_keys": ["id"]}


def _is_landed(event: dict[str, Any]) -> bool:
    if event["kind"] != "phase":
        return False
    return (event["payload"]["phase"], event["payload"]["state"]) == ("raw", "done")


def _seconds(events: Sequence[dict[str, Any]], table: str) -> float:
    for event in events:
        if event["kind"] == "table_done" and event["table"] == table:
            return float(event["payload"]["seconds"])
    last = [event for event in events if event["kind"] in ("table_failed", "table_skipped")]
    raise OSError(f"Lakehead did not load {table}: {last}")
