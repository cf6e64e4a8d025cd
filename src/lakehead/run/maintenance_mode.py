"""`lakehead run --maintenance-mode`: maintains all tables of a configuration instead of loading them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.extract.iceberg_tables import Place
from lakehead.extract.iceberg_view import shown_slice
from lakehead.extract.modes import MODES
from lakehead.extract.table_settings import Finalize
from lakehead.ids import Ids, Random
from lakehead.lake.filesink.hadoop import HadoopFiles
from lakehead.lake.filesink.staging_cleanup import ttl_cleanup
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.last_landing import last_landing_of
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.retries import Retries
from lakehead.lake.state_progress import StateProgress
from lakehead.lake.table_leases import StateTableLeases
from lakehead.maintain.compaction import Compactor
from lakehead.maintain.expiry import ExpiryLimits
from lakehead.maintain.raw_retention import RawRetention, load_dates_before
from lakehead.maintain.table_maintenance import MaintenanceSettings, TableMaintainer, TableMaintenance
from lakehead.run.config.connections import FileSinkConfig
from lakehead.run.config.table_config import TableConfig
from lakehead.run.error_messages import error_message, open_errors_as
from lakehead.run.rebuild_mode import rebuild_from_raw
from lakehead.run.wiring import Wiring
from lakehead.spark.jobs import all_progress
from lakehead.spark.names import quoted
from lakehead.state.owners import owner_named
from lakehead.state.state import State

JsonValue = dict[str, Any]


class MaintenanceMode(Enum):
    """What a maintenance run does."""

    DRY_RUN = "dry-run"
    APPLY = "apply"
    REBUILD_FROM_RAW = "rebuild-from-raw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintenance:
    """One maintenance run over tables of a configuration, one table after the other. Loads may run beside it."""

    wiring: Wiring
    state: State
    session: Callable[[], SparkSession]
    """Starts Spark when it is first called: a dry run of Iceberg tables needs none."""

    clock: Clock
    ids: Ids
    random: Random
    today: date
    run_id: str
    config_file: Path | None = None
    waiting: Callable[[str], None] = field(default=lambda _: None)

    def run(self, tables: Sequence[TableConfig], mode: MaintenanceMode) -> tuple[JsonValue, bool]:
        """Maintain the tables. Returns the results for JSON, and whether all of it was done.

        A table that fails does not stop the others.
        """
        results = [self._table(table, mode) for table in tables]
        failed = any("error" in result or any("error" in part for part in result["results"]) for result in results)
        return {"mode": mode.value, "tables": results}, not failed

    def _table(self, table: TableConfig, mode: MaintenanceMode) -> JsonValue:
        found: JsonValue = {"table": table.full_name, "mode": table.mode, "results": []}
        try:
            if mode is MaintenanceMode.REBUILD_FROM_RAW:
                found["results"].append(rebuild_from_raw(self, table))
            elif isinstance(self.wiring.config.sink_of(table), FileSinkConfig):
                found["results"] += self._staging(table, dry_run=mode is MaintenanceMode.DRY_RUN)
            else:
                found["results"] += self._iceberg(table, dry_run=mode is MaintenanceMode.DRY_RUN)
        except Exception as error:  # noqa: BLE001 - whatever it is, a table must not stop the others
            found["error"] = self._told(error)
        return found

    def _staging(self, table: TableConfig, *, dry_run: bool) -> list[JsonValue]:
        """Remove what a file sink has staged and replaced, by its age."""
        staging = self.wiring.config.runtime.staging
        if not staging.enabled:
            return []
        files, ttl = HadoopFiles(self.session(), ids=self.ids), timedelta(hours=staging.ttl_hours)
        return [
            {
                "root": root,
                "staging_directories": ttl_cleanup(root, ttl, files=files, clock=self.clock, dry_run=dry_run),
            }
            for root in self.wiring.staging_roots([table])
        ]

    def _iceberg(self, table: TableConfig, *, dry_run: bool) -> list[JsonValue]:
        sink = self.wiring.config.sink_of(table)
        assert not isinstance(sink, FileSinkConfig)  # noqa: S101 - for the type checker
        if not self.wiring.is_catalog_made(sink.catalog):
            return []
        raw_place, out_place = self.wiring.places_of(table)
        ledger = self.wiring.open_ledger()
        is_view = MODES[table.mode].name == "full" and table.finalize == Finalize.VIEW.value
        view = quoted(sink.catalog, *out_place.name.split(".")) if out_place and is_view else None
        results: list[JsonValue] = []
        with closing(self.wiring.open_catalog(sink.catalog, self.clock)) as catalog:
            opened: dict[Place, IcebergTable | None] = {}
            for place in (raw_place, None if is_view else out_place):
                if place is not None:
                    try:
                        opened[place] = self._opened(catalog, place, ledger)
                    except Exception as error:  # noqa: BLE001 - the other one is maintained nevertheless
                        results.append({"table": place.name, "error": self._told(error)})
            raw, out = opened.get(raw_place), opened.get(out_place) if out_place else None
            # Readers' table first: what it has not merged yet stays in raw, whatever happens meanwhile.
            may_remove = not results
            limits = None
            try:
                limits = self._retention(table, raw, out, view, has_out=out_place is not None) if may_remove else None
            except Exception as error:  # noqa: BLE001 - without it all of raw stays, and the rest is maintained
                results.append({"table": raw_place.name, "error": self._told(error)})
            for each, retention in ((raw, limits), (out, None)):
                if each is not None:
                    results.append(self._one(each, ledger, retention, dry_run=dry_run))
        return results

    def _opened(self, catalog: Catalog, place: Place, ledger: StoreLedger) -> IcebergTable | None:
        with open_errors_as(
            f"The table {place.name}", "If its metadata is damaged, restore it from a backup. It was not maintained."
        ):
            return IcebergTable.find(catalog, place.name, ledger, Retries(clock=self.clock, random=self.random))

    def _one(
        self, table: IcebergTable, ledger: StoreLedger, retention: RawRetention | None, *, dry_run: bool
    ) -> JsonValue:
        settings, progress = self.settings(), StateProgress(state=self.state, owner=owner_named(self.run_id))
        make = partial(
            TableMaintainer,
            table=table,
            progress=progress,
            ledger=ledger,
            clock=self.clock,
            settings=settings,
            retention=retention,
        )
        planner, maintainer, failed = make(), make(), list[Exception]()
        try:
            asyncio.run(planner.plan())
            if not dry_run:
                asyncio.run(maintainer.maintain(self._compactor(settings) if planner.done.needs_spark else None))
        except Exception as error:  # noqa: BLE001 - whatever it is, a table must not stop the others
            failed.append(error)
        told = planner if dry_run else maintainer
        errors = " ".join(map(self._told, [*told.refused, *failed]))
        return {"table": table.name, **({"error": errors} if errors else {}), **_json(told.done)}

    def _told(self, error: Exception) -> str:
        return error_message(error, self.config_file)

    def settings(self) -> MaintenanceSettings:
        """The settings of the configuration."""
        given = self.wiring.config.runtime.maintenance
        return MaintenanceSettings(
            expiry=ExpiryLimits(
                older_than=timedelta(hours=given.expire_after_hours),
                min_snapshots=given.min_snapshots,
                most_for_age=given.max_snapshots,
            ),
            orphans_older_than=timedelta(hours=given.orphans_after_hours),
            compact=given.compact,
            min_input_files=given.min_input_files,
        )

    def _compactor(self, settings: MaintenanceSettings) -> Compactor:
        session = self.session().newSession()
        leases = StateTableLeases(
            state=self.state,
            owner=owner_named(self.run_id),
            clock=self.clock,
            random=self.random,
            work=all_progress(session),
        )
        return Compactor(
            session=session,
            table_leases=leases,
            clock=self.clock,
            random=self.random,
            options=settings.compaction_options,
        )

    def _retention(
        self, table: TableConfig, raw: IcebergTable | None, out: IcebergTable | None, view: str | None, *, has_out: bool
    ) -> RawRetention | None:
        """Which slices of raw may go; None if all stay.

        Only those that readers have. Of a table that is loaded in full, the newest load stays, and the one that readers
        see.
        """
        days = table.raw_retention_days or self.wiring.config.runtime.raw_retention_days
        mode, landed = MODES[table.mode], last_landing_of(raw.seen().metadata) if raw else None
        if raw is None or days is None or landed is None or landed.watermark.slice is None:
            return None
        newest = landed.watermark.slice
        if view is not None:
            upto = min(newest, shown_slice(self.session(), view) or 0) - 1
        elif has_out:
            merged = last_landing_of(out.seen().metadata) if out else None
            upto = (merged.watermark.slice or 0) if merged else 0
            upto = upto if mode.merges else min(newest, upto) - 1
        elif mode.incremental:
            return None  # readers read raw
        else:
            upto = newest - 1
        return RawRetention(before=load_dates_before(self.today, days), upto=upto)


def _json(done: TableMaintenance) -> JsonValue:
    shown: JsonValue = asdict(done)
    return shown
