"""Compares tables of a configuration with their sources, one after the other, and emits an event for each."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.extract.iceberg_view import shown_slice
from lakehead.extract.modes import ReadersTable
from lakehead.extract.raw_rows import SLICE
from lakehead.extract.recon import ReconSettings, reconcile_table
from lakehead.extract.recon_report import Outcome, ReconReport
from lakehead.extract.recon_target import ReconTarget
from lakehead.extract.sink import TableProgress
from lakehead.extract.table_settings import Finalize, TableSettings
from lakehead.ids import Ids, Random
from lakehead.lake.run_context import RunContext
from lakehead.run.config.connections import FileSinkConfig
from lakehead.run.config.table_config import ReconciliationConfig, TableConfig
from lakehead.run.error_messages import error_message
from lakehead.run.wiring import Wiring, table_settings
from lakehead.spark.jobs import ThreadSessions
from lakehead.spark.names import quoted
from lakehead.state.model import Watermark
from lakehead.state.owners import owner_named
from lakehead.state.state import State
from lakehead.telemetry.emitter import Emitter
from lakehead.telemetry.events import TableReconciled

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """One comparison of tables, and what they share."""

    wiring: Wiring
    session: SparkSession
    state: State
    emitter: Emitter
    clock: Clock
    ids: Ids
    random: Random
    today: date
    max_keys: int = 20
    config_file: Path | None = None
    """The configuration file, for commands that messages suggest."""

    def run(self, tables: Sequence[TableConfig], tell: Callable[[str], None]) -> list[ReconReport]:
        """Compare the tables. One that cannot be compared does not stop the others: its report says why."""
        session, reports = ThreadSessions(self.session).mine(), list[ReconReport]()
        for table in tables:
            tell(f"comparing {table.full_name}")
            started = self.clock.monotonic()
            try:
                report = self._compare(table, session)
            except Exception as error:  # noqa: BLE001 - a table must not stop the others
                failed = Outcome.MISCONFIGURED if isinstance(error, Misconfigured) else Outcome.FAILED
                reason, seconds = error_message(error, self.config_file), self.clock.monotonic() - started
                report = ReconReport(table=table.full_name, outcome=failed, notes=(reason,), seconds=seconds)
            compared = report.outcome in {Outcome.EQUAL, Outcome.DIFFERENT}
            event = TableReconciled(
                outcome="failed" if report.outcome is Outcome.MISCONFIGURED else report.outcome,
                point=report.point or None,
                source_rows=report.source_rows,
                target_rows=report.target_rows,
                differences={kind.value: number for kind, number in report.differences.items()},
                reason=None if compared else " ".join(report.notes),
                seconds=report.seconds,
            )
            self._emit(table, event)
            reports.append(report)
        return reports

    def _emit(self, table: TableConfig, event: TableReconciled) -> None:
        self.emitter.for_table(table.full_name)(event)

    def _compare(self, table: TableConfig, session: SparkSession) -> ReconReport:
        runtime = self.wiring.config.runtime
        settings = table_settings(
            table, finalizes=runtime.finalize_full_refresh, reload=False, columns=self.wiring.protections(table)
        )
        sink_config = self.wiring.config.sink_of(table)
        if isinstance(sink_config, FileSinkConfig):
            return _not_compared(table, "Tables of file sinks cannot be compared. Compare them in Spark.")
        run = self._run_context(session)
        with closing(self.wiring.sink_of(table, settings, run)) as sink:
            for _ in range(_TRIES):
                progress = sink.progress()
                if (reason := _why_not(settings, progress)) is not None:
                    return _not_compared(table, reason)
                target = self._target(table, settings, session, sink_config.catalog, progress)
                if target is None:
                    return _not_compared(table, "The target does not exist. Load it first: lakehead run CONFIG")
                if sink.progress() != progress or progress.raw is None:
                    continue  # another run has landed since
                report = self._at(progress.raw, table, settings, target)
                # A table is compared at its snapshot; a view may have been replaced meanwhile.
                if target.snapshot is not None or shown_slice(session, target.table) == target.shown:
                    return report
        return _not_compared(table, "Other runs were loading it all the time. Compare it again.")

    def _at(self, reached: Watermark, table: TableConfig, settings: TableSettings, target: ReconTarget) -> ReconReport:
        with closing(self.wiring.source_of(table, target.session)()) as source:
            return reconcile_table(settings, recon_settings(table, self.max_keys), source, target, reached, self.clock)

    def _target(
        self, table: TableConfig, settings: TableSettings, session: SparkSession, catalog: str, progress: TableProgress
    ) -> ReconTarget | None:
        """The table that readers read, at its present snapshot; None if it does not exist."""
        raw, out = self.wiring.places_of(table)
        place = out or raw
        name = quoted(catalog, *place.name.split("."))
        if out and settings.finalize is Finalize.VIEW and settings.mode.readers_table is ReadersTable.FINAL:
            shown = shown_slice(session, name)
            return None if shown is None else ReconTarget(session=session, table=name, shown=shown)
        with closing(self.wiring.open_catalog(catalog, self.clock)) as opened:
            if not opened.table_exists(place.name):
                return None
            snapshot = opened.load_table(place.name).metadata.current_snapshot_id
        # Raw keeps every load of a full table; readers of raw want the newest.
        newest = not settings.mode.incremental and out is None and progress.raw is not None
        condition = f"{SLICE} = {progress.raw.slice}" if newest and progress.raw else ""
        return (
            None
            if snapshot is None
            else ReconTarget(session=session, table=name, snapshot=snapshot, condition=condition)
        )

    def _run_context(self, session: SparkSession) -> RunContext:
        return RunContext(
            pipeline=self.wiring.config.runtime.pipeline,
            run=self.emitter.run,
            load_date=self.today,
            session=session,
            state=self.state,
            owner=owner_named(self.emitter.run),
            clock=self.clock,
            ids=self.ids,
            random=self.random,
            waiting=lambda _: None,
            pause=lambda _: None,
        )


def recon_settings(table: TableConfig, max_keys: int) -> ReconSettings:
    """Convert a table's `reconciliation`."""
    given = table.reconciliation or ReconciliationConfig()
    return ReconSettings(
        counts=given.counts,
        sums=given.sums,
        checksums=given.checksums,
        sample_keys=given.sample_keys,
        tolerated_rows=given.tolerated_rows,
        max_keys=max_keys,
    )


def _why_not(settings: TableSettings, progress: TableProgress) -> str | None:
    """Why a table has no point at which it can be compared; None if it has."""
    if progress.raw is None:
        return "It was never loaded. Load it first: lakehead run CONFIG"
    separate = settings.mode.merges or (
        settings.mode.readers_table is ReadersTable.FINAL and settings.finalize is Finalize.TABLE
    )
    if separate and not progress.complete:
        return "A run has landed rows in raw that readers do not see yet. Finish it first: lakehead run CONFIG"
    return None


def _not_compared(table: TableConfig, reason: str) -> ReconReport:
    return ReconReport(table=table.full_name, outcome=Outcome.NOT_COMPARED, notes=(reason,))


def document(reports: Sequence[ReconReport]) -> str:
    """Return reports as a JSON document."""
    return json.dumps({"tables": [asdict(report) for report in reports]}, ensure_ascii=False, indent=2)
