"""`lakehead run --maintenance-mode rebuild-from-raw`: writes mirrors and final tables anew from raw."""

from typing import TYPE_CHECKING, Any

from lakehead.errors import Unavailable
from lakehead.extract.dedup import dedup_rule
from lakehead.extract.iceberg_table_sink import IcebergTableSink
from lakehead.extract.modes import MODES, ReadersTable
from lakehead.extract.strategy import TRIES
from lakehead.extract.table_settings import Finalize
from lakehead.lake.ports import Overtaken
from lakehead.lake.run_context import RunContext
from lakehead.run.config.table_config import TableConfig
from lakehead.run.stopping import StopSignal
from lakehead.run.wiring import table_settings
from lakehead.spark.jobs import job_group
from lakehead.state.owners import owner_named

if TYPE_CHECKING:
    from lakehead.run.maintenance_mode import Maintenance


def rebuild_from_raw(maintenance: "Maintenance", table: TableConfig) -> dict[str, Any]:
    """Rebuild the mirror or final table of one table through the landing protocol. Returns the result for JSON.

    Raises `Misconfigured` if raw lacks rows that retention has removed, and `Unavailable` if loads were faster at every
    attempt.
    """
    wiring, mode = maintenance.wiring, MODES[table.mode]
    runtime = wiring.config.runtime
    settings = table_settings(table, finalizes=runtime.finalize_full_refresh, reload=False)
    if mode.readers_table is ReadersTable.RAW or wiring.places_of(table)[1] is None:
        return {"skipped": "its readers read raw"}
    if settings.finalize is Finalize.VIEW and mode.readers_table is ReadersTable.FINAL:
        return {"skipped": "its final is a view of raw"}
    session = maintenance.session().newSession()
    run = RunContext(
        pipeline=runtime.pipeline,
        run=maintenance.run_id,
        load_date=maintenance.today,
        session=session,
        state=maintenance.state,
        owner=owner_named(maintenance.run_id),
        clock=maintenance.clock,
        ids=maintenance.ids,
        random=maintenance.random,
        waiting=maintenance.waiting,
        pause=StopSignal().pause,
    )
    sink = wiring.sink_of(table, settings, run)
    try:
        if not isinstance(sink, IcebergTableSink):
            return {"skipped": "it is in a file sink, which has no mirror to rebuild"}
        for _ in range(TRIES):
            progress = sink.progress()
            if progress.raw is None:
                return {"skipped": "nothing has landed in raw"}
            rule = dedup_rule(settings, sink.columns, progress.raw) if mode.merges else None
            try:
                with job_group(session, f"{run.run}/{table.full_name}", f"{table.full_name} (rebuild)"):
                    rebuilt = sink.rebuild_from_raw(rule, progress, maintenance.ids.uuid())
            except Overtaken:
                continue
            written = rebuilt.written
            return {
                "table": written.location.partition(".")[2] if written else None,
                "rebuilt_rows": written.rows if written else None,
                "slice": rebuilt.published.slice if rebuilt.published else None,
                "generation": rebuilt.published.generation if rebuilt.published else None,
            }
        raise Unavailable(
            f"Loads of {table.full_name} published before its rebuild {TRIES} times. The table was not changed; run "
            "it again when no load is running."
        )
    finally:
        sink.close()
