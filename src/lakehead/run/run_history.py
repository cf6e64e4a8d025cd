"""What the state remembers of runs: each load of each table, and how a table grows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

import msgspec

from lakehead.run.progress_log import event_of
from lakehead.run.run_progress import RunProgress, Runs
from lakehead.state.model import EventRecord
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import RunDone, RunStart, TableDone, TableFailed, TableSkipped, TableStart

KINDS = tuple(each.kind for each in (RunStart, RunDone, TableStart, TableDone, TableSkipped, TableFailed))
COMPARED_LOADS = 10
"""With how many loads before it a load is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One table in one run."""

    run: str
    table: str
    started_at: datetime
    mode: str
    outcome: str
    """done, skipped, failed, or not finished."""
    rows: int | None
    published: int | None
    seconds: float | None
    watermark: str | None
    message: str | None
    usual_rows: float | None
    """The median of rows of the loads before it; None if there were none."""

    @property
    def growth(self) -> float | None:
        """How many times the usual rows were read; None if it cannot be said."""
        return None if self.rows is None or not self.usual_rows else self.rows / self.usual_rows


def runs_of(records: Iterable[EventRecord]) -> Runs:
    """Return the runs of the state's events. Events that this version does not know are passed over."""
    runs = Runs()
    for record in records:
        try:
            event = event_of(record.kind, record.payload)
        except msgspec.ValidationError:
            continue
        if event is not None and record.run is not None:
            # Names that are too long for the state's keys are whole in the payload.
            named = record.payload.get("table", record.table)
            table = None if record.table is None else str(named)
            runs.add(EventEnvelope(id=record.id, at=record.at, run=record.run, table=table, event=event))
    return runs


def loads_of(runs: Sequence[RunProgress]) -> list[Load]:
    """Return every load, oldest first, each compared with those before it."""
    rows_before: dict[str, list[int]] = {}
    loads = []
    for run in runs:
        for table in run.status.tables():
            before = rows_before.setdefault(table.table, [])
            is_done = table.outcome.value == "done"
            loads.append(
                Load(
                    run=run.run,
                    table=table.table,
                    started_at=table.started_at,
                    mode=table.mode,
                    outcome="not finished" if table.outcome.value == "running" else table.outcome.value,
                    rows=table.rows,
                    published=table.published,
                    seconds=table.seconds,
                    watermark=table.watermark,
                    message=table.message or None,
                    usual_rows=median(before[-COMPARED_LOADS:]) if before else None,
                )
            )
            if is_done and table.rows is not None:
                before.append(table.rows)
    return loads


def last_watermarks(loads: Iterable[Load]) -> dict[str, str]:
    """Return the last watermark of each table that has one."""
    return {load.table: load.watermark for load in loads if load.watermark is not None}
