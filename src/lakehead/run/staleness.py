"""Tables that are older than their `max_staleness`."""

from collections.abc import Sequence
from contextlib import closing, suppress
from datetime import UTC, date, datetime, time, timedelta

from pyiceberg.exceptions import NoSuchTableError

from lakehead.clock import Clock
from lakehead.run.config.connections import FileSinkConfig
from lakehead.run.config.table_config import TableConfig
from lakehead.run.wiring import Wiring
from lakehead.state.buffered import BufferedState
from lakehead.state.model import Mark, Value
from lakehead.telemetry.emitter import EPOCH, Emitter
from lakehead.telemetry.events import TableStale

TOKEN = "lakehead.token"  # noqa: S105 - no password
"""In the summaries of snapshots that landed rows."""


def alert_stale_tables(
    wiring: Wiring,
    tables: Sequence[TableConfig],
    state: BufferedState,
    clock: Clock,
    emitter: Emitter,
    *,
    when: str,
) -> None:
    """Emit `TableStale` for tables that are too old. A catalog that does not answer is no alert of its own.

    At the start of a run, a table that never landed is not told: this run may be its first.
    """
    limited = [table for table in tables if table.max_staleness is not None]
    for table in limited:
        with suppress(Exception):  # an alert never stops a load; tables of a catalog that is away fail by themselves
            stale = _check(wiring, table, state, clock, when=when)
            if stale is not None and (when == "end" or stale.fresh_at is not None):
                emitter.emit(stale, table.full_name)


def _check(wiring: Wiring, table: TableConfig, state: BufferedState, clock: Clock, *, when: str) -> TableStale | None:
    sink, most = wiring.config.sink_of(table), table.max_staleness
    if most is None or isinstance(sink, FileSinkConfig):
        return None
    by, fresh_at = "landing", None
    with closing(wiring.open_catalog(sink.catalog)) as catalog, suppress(NoSuchTableError):
        metadata = catalog.load_table(wiring.places_of(table)[0].name).metadata
        mark = state.watermark(str(metadata.table_uuid), Mark.DONE)
        at = watermark_time(mark.value) if mark else None
        landed = [
            each.timestamp_ms
            for each in metadata.snapshots
            if each.summary and TOKEN in each.summary.additional_properties
        ]
        if at is not None:
            by, fresh_at = "watermark", at
        elif landed:
            fresh_at = EPOCH + timedelta(milliseconds=max(landed))
    now = EPOCH + timedelta(microseconds=clock.now_ns() // 1000)
    age = None if fresh_at is None else now - fresh_at
    if age is not None and age <= most:
        return None
    return TableStale(
        when=when,
        by=by,
        fresh_at=fresh_at,
        seconds=age.total_seconds() if age is not None else None,
        max_seconds=most.total_seconds(),
    )


def watermark_time(value: Value) -> datetime | None:
    """Return the time of a watermark: of a timestamp, in UTC if it has no zone, or the start of a date; else None."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return datetime.combine(value, time(), UTC) if isinstance(value, date) else None
