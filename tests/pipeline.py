"""A pipeline for a test: a configuration, runs of it within this process, and what they made."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from lakehead.clock import SystemClock
from lakehead.extract.raw_rows import INGEST_SCHEMA
from lakehead.ids import RandomIds, system_random
from lakehead.lake.catalog import open_catalog
from lakehead.run.config.config_file import read_config
from lakehead.run.ingestion import Ingestion
from lakehead.run.observe.state_events import StateEventSubscriber
from lakehead.run.observe.summary import RunSummary
from lakehead.run.run_command import select_tables
from lakehead.run.wiring import Wiring
from lakehead.spark.settings import EMBEDDED, SparkSettings, embedded_catalog
from lakehead.state.buffered import BufferedState
from lakehead.telemetry.emitter import Emitter, EventEnvelope
from lakehead.telemetry.events import Event, PhaseMarked, TableFailed
from tests.lakehouse import Lakehouse
from tests.support.costs import Mechanism, add

DAY = date(2026, 1, 1)

E = TypeVar("E", bound=Event)


@dataclass(frozen=True)
class Ran:
    """What one run told, and how it ended."""

    told: tuple[EventEnvelope, ...]
    exit_code: int

    def of(self, kind: type[E], table: str | None = None) -> list[E]:
        """The events of a kind, of one table or of all."""
        return [each.event for each in self.told if isinstance(each.event, kind) and table in (None, each.table)]

    @property
    def errors(self) -> dict[str | None, str]:
        """What each failed table said."""
        return {each.table: each.event.error for each in self.told if isinstance(each.event, TableFailed)}


@dataclass
class Pipeline:
    """A configuration of its own in a folder of its own. Its lakehouse is the session's, so tables need own names."""

    folder: Path
    lakehouse: Path
    source: Mapping[str, Any]
    """The source as a configuration has it: dialect, url, user, password."""

    environment: Mapping[str, str] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Mapping[str, Any]] = ()
    sinks: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None

    @staticmethod
    def spark_settings(folder: Path) -> SparkSettings:
        """Settings for a session that knows the embedded catalog `lake` in the folder."""
        return Lakehouse.settings(folder)

    def config(self, tables: Sequence[Mapping[str, Any]] | None = None, **runtime: Any) -> Path:
        """The configuration's file, written anew."""
        roots = {"raw_root": "raw", "final_root": "final", "intermediate": "mirror"}
        state = {"url": f"sqlite:///{self.folder}/state.sqlite"}
        written = {
            "runtime": {
                **roots,
                "pipeline": "test",
                "state": state,
                "logging": {"json": False},
                **self.runtime,
                **runtime,
            },
            "sources": {"source": dict(self.source)},
            "spark": {"lakehouse": str(self.lakehouse)},
            "tables": [{**self._late_commits(table), **table} for table in (self.tables if tables is None else tables)],
        }
        if self.metadata is not None:
            written["metadata"] = dict(self.metadata)
        if self.sinks is not None:
            written["sinks"] = dict(self.sinks)
        path = self.folder / "config.json"
        path.write_text(json.dumps(written))
        return path

    def _late_commits(self, table: Mapping[str, Any]) -> dict[str, str]:
        """What a table needs where it has no lag and is read from a server that never tells of open transactions."""
        needed = self.source["dialect"] == "mysql" and table["mode"] != "full" and not table.get("lag_seconds")
        return {"late_commits": "accept"} if needed else {}

    def run(
        self,
        session: SparkSession,
        tables: Sequence[Mapping[str, Any]] | None = None,
        *,
        only: str | None = None,
        load_date: date = DAY,
        reload: bool = False,
        lag_seconds: int = 0,
        hears: Callable[[EventEnvelope], None] | None = None,
        wiring: Callable[[Wiring], Wiring] = lambda made: made,
        **runtime: Any,
    ) -> Ran:
        """Run it here, with a session that is there. `hears` is called with each event, where it happens."""
        file = self.config(tables, **runtime)
        config = read_config(file)
        made = wiring(Wiring(config, self.environment))
        made.check()
        clock, ids, told, summary = SystemClock(), RandomIds(), list[EventEnvelope](), RunSummary()
        with ExitStack() as opened:
            state = opened.enter_context(made.open_state(clock, ids))
            buffered = opened.enter_context(BufferedState(state, clock))
            listeners: list[Any] = [told.append, summary, StateEventSubscriber(buffered), *([hears] if hears else [])]
            Ingestion(
                wiring=made,
                session=session,
                state=buffered,
                emitter=Emitter(ids.uuid(), clock, ids, listeners, load_date=load_date),
                clock=clock,
                ids=ids,
                random=system_random(),
                load_date=load_date,
                lag_seconds=lag_seconds,
                reload=reload,
                config_file=file,
            ).run(select_tables(config, only))
        ran = Ran(tuple(told), summary.exit_code)
        add(Mechanism.LANDINGS, sum(phase.phase != "watermark" for phase in ran.of(PhaseMarked)))
        return ran

    def catalog(self) -> Catalog:
        """PyIceberg's side of the embedded catalog; close it."""
        return open_catalog(EMBEDDED, embedded_catalog(self.lakehouse))

    def rows(self, table: str, *, ingest: bool = False) -> pa.Table:
        """What a table holds now, as PyIceberg reads it; without Lakehead's own columns unless they are wanted."""
        catalog = self.catalog()
        try:
            rows = catalog.load_table(table).scan().to_arrow()
        finally:
            catalog.close()
        return rows if ingest else rows.drop_columns(INGEST_SCHEMA.names)

    def snapshots(self, table: str) -> list[int]:
        """The snapshots of a table's main branch, oldest first."""
        catalog = self.catalog()
        try:
            return [entry.snapshot_id for entry in catalog.load_table(table).history()]
        finally:
            catalog.close()

    def exists(self, table: str) -> bool:
        """Whether the catalog has such a table."""
        catalog = self.catalog()
        try:
            return catalog.table_exists(table)
        finally:
            catalog.close()


def in_folder(pipeline: Pipeline, folder: Path) -> Pipeline:
    """The same pipeline with a state and a configuration of its own: another runner on another machine has not."""
    return replace(pipeline, folder=folder)
