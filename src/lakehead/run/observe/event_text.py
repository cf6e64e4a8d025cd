"""Events as text for people."""

import json
from collections.abc import Mapping

from rich.cells import cell_len

from lakehead.run.observe.run_status import TableCounts, TableStatus
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import (
    Event,
    EventsLost,
    Heartbeat,
    LateCommitsUnknown,
    MetadataCollected,
    PhaseMarked,
    PipelineEnded,
    PipelineProgress,
    PipelineStarted,
    RunDone,
    RunStart,
    SchemaDrifted,
    SnapshotDamaged,
    StagingCleaned,
    TableDescribed,
    TableDone,
    TableFailed,
    TableHeldBack,
    TablePlanned,
    TableReconciled,
    TableSkipped,
    TableStale,
    TableStart,
    TableStep,
    TableWaiting,
)


def one_line(text: str) -> str:
    """Make text safe for one line of a terminal: no line breaks and no control characters."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))


def shortened(name: str, cells: int) -> str:
    """Shorten a name to a width. Its end is kept, because tables of one schema differ there."""
    if cell_len(name) <= cells:
        return name
    while cell_len(name) > max(cells - 1, 0):
        name = name[1:]
    return f"…{name}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 table", "12,000 tables"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """Format a duration as minutes and seconds, with hours if needed: "0:07", "1:02:03"."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def slice_position(status: TableStatus | None) -> str:
    """Return "slice 3 of 10"; empty if the table has at most one slice."""
    if status is None or status.slice is None or (status.slices or 0) <= 1:
        return ""
    return f"slice {status.slice:,} of {status.slices:,}"


def totals(counts: TableCounts) -> str:
    """Return the number of tables by outcome: "7 done, 1 skipped, 1 failed"."""
    numbers = (
        (counts.done, "done"),
        (counts.skipped, "skipped"),
        (counts.failed, "failed"),
        (counts.running, "running"),
        (counts.waiting, "waiting"),
    )
    return ", ".join(f"{number:,} {word}" for number, word in numbers if number) or "nothing to do"


def held_back(event: TableHeldBack) -> str:
    """Return "held back 0:07 by app (psql, process 12)"."""
    return f"held back {duration(event.seconds)} by {one_line(event.by)}"


def late_commits(event: LateCommitsUnknown) -> str:
    """Describe how the table is protected against late commits."""
    if event.accepted:
        return "late commits accepted"
    return f"late commits within {event.lag_seconds:,} s" if event.lag_seconds else "no lag for late commits"


def event_line(envelope: EventEnvelope, status: TableStatus | None) -> str:
    """Return an event as one line of a plain text log. `status` is that of its table after the event."""
    prefix = f"{envelope.at:%H:%M:%S}"
    if isinstance(envelope.event, RunStart):
        prefix = f"{prefix} run {one_line(envelope.run)}:"
    elif envelope.table is not None:
        prefix = f"{prefix} {one_line(envelope.table)} "
    return f"{prefix} {event_text(envelope.event, status)}"


def event_text(event: Event, status: TableStatus | None = None) -> str:
    """Describe an event."""
    match event:
        case TableStart():
            return f"started: {event.mode} for {event.load_date}" + (", full reload" if event.reload else "")
        case TableStep():
            return _with(one_line(event.step), event.rows, slice_position(status))
        case TablePlanned():
            planned = "resumed an earlier plan" if event.resumed else "planned"
            landed = f", {event.done:,} already landed" if event.done else ""
            return f"{planned}: {counted(event.slices, 'slice')}{landed}"
        case PhaseMarked(state="failed", detail={"error": str(error)}):
            return f"{event.phase} failed: {one_line(error)}"
        case PhaseMarked():
            return _with(f"{event.phase} {event.state}", event.rows, slice_position(status))
        case TableDone():
            slices = counted(event.slices, "slice") if event.slices is not None and event.slices > 1 else ""
            watermark = f"up to {one_line(event.watermark)}" if event.watermark is not None else ""
            published = f"{event.published:,} published" if event.published is not None else ""
            return _with("done", event.rows, published, slices, f"in {duration(event.seconds)}", watermark)
        case TableSkipped():
            return f"skipped: {one_line(event.reason)}"
        case TableFailed():
            return f"failed after {duration(event.seconds)}: {one_line(event.error)} [{event.stack_hash}]"
        case TableWaiting() | TableHeldBack() | LateCommitsUnknown() | TableStale():
            return _waiting_text(event)
        case other:
            return _run_text(other)


def _stale(event: TableStale) -> str:
    allowed = f"at most {duration(event.max_seconds)} allowed"
    if event.seconds is None:
        return f"stale: it has never landed, {allowed}"
    return f"stale: its {event.by} is {duration(event.seconds)} old, {allowed}"


def _waiting_text(event: TableWaiting | TableHeldBack | LateCommitsUnknown | TableStale) -> str:
    match event:
        case TableStale():
            return _stale(event)
        case TableWaiting():
            return f"waiting: {one_line(event.reason)}"
        case TableHeldBack():
            return held_back(event)
        case LateCommitsUnknown():
            return f"{late_commits(event)}: {one_line(event.reason)}"


def _pipeline_text(event: PipelineStarted | PipelineProgress | PipelineEnded) -> str:
    name = f"pipeline {one_line(event.pipeline)}"
    match event:
        case PipelineStarted():
            warning = f". Warning: {one_line(event.warning)}" if event.warning else ""
            return f"{name}: consuming {one_line(event.queue)}{warning}"
        case PipelineProgress():
            lag = "" if event.lag_seconds is None else f", lag {duration(event.lag_seconds)}"
            rate = f"{event.rows_per_second:,.0f} rows a second"
            return f"{name}: {_landed(event.counts)}; {rate}, {counted(event.held_messages, 'message')} held{lag}"
        case PipelineEnded():
            how = "ended" if event.error is None else "failed"
            error = "" if event.error is None else f": {one_line(event.error)}"
            return f"{name}: {how} after {duration(event.seconds)}; {_landed(event.counts)}{error}"


def _landed(counts: Mapping[str, int]) -> str:
    """Return "12 files landed with 12,000 rows, 1 duplicate, 1 dead letter"."""
    text = f"{counted(counts['landed'], 'file')} landed with {counted(counts['rows'], 'row')}"
    more = {
        "duplicates": "duplicate",
        "failed": "failed try",
        "dead_letters": "dead letter",
        "overlaps_quarantined": "batch in quarantine",
        "filtered": "filtered",
    }
    plurals = {"failed": "failed tries", "overlaps_quarantined": "batches in quarantine", "filtered": "filtered"}
    parts = [counted(counts[key], noun, plurals.get(key)) for key, noun in more.items() if counts.get(key)]
    return ", ".join([text, *parts])


def _run_text(event: Event) -> str:
    match event:
        case PipelineStarted() | PipelineProgress() | PipelineEnded():
            return _pipeline_text(event)
        case RunStart():
            tables = counted(event.tables, "table")
            return f"{tables} of pipeline {one_line(event.pipeline)} for {event.load_date}; times are UTC"
        case RunDone():
            numbers = f"{event.done:,} done, {event.skipped:,} skipped, {event.failed:,} failed"
            numbers += f", {event.not_ended:,} not finished" if event.not_ended else ""
            return f"run ended: {numbers}, after {duration(event.seconds)}"
        case Heartbeat():
            tables = counted(event.total, "table")
            spark = "" if event.spark is None else f"; {counted(int(event.spark['tasks_active']), 'task')} in Spark"
            progress = f"{event.done:,} of {tables} done, {event.failed:,} failed"
            return f"{progress}; {counted(event.rows, 'row')} so far{spark}"
        case MetadataCollected() | SnapshotDamaged() | SchemaDrifted():
            return _metadata_text(event)
        case TableDescribed():
            return f"described: {counted(len(event.columns), 'column')}"
        case EventsLost():
            return (
                f"{counted(event.count, 'event')} did not reach {one_line(event.subscriber)}: {one_line(event.reason)}"
            )
        case StagingCleaned():
            text = f"staging of {event.root} cleaned: {counted(event.removed, 'directory', 'directories')} removed"
            text += f", {event.not_landed:,} kept that never landed" if event.not_landed else ""
            return text if event.error is None else f"{text}; stopped early: {one_line(event.error)}"
        case TableReconciled():
            found = ", ".join(f"{number:,} {kind}" for kind, number in event.differences.items() if number)
            reason = one_line(event.reason) if event.reason else found
            return f"compared with its source: {event.outcome}" + (f" ({reason})" if reason else "")
        case unknown:
            return f"{unknown.kind}: {json.dumps(unknown.payload())}"


def _metadata_text(event: MetadataCollected | SnapshotDamaged | SchemaDrifted) -> str:
    match event:
        case MetadataCollected():
            where = one_line(event.source + (f".{event.schema}" if event.schema else ""))
            if event.error or event.skipped:
                return f"metadata of {where} not collected: {one_line(event.error or event.skipped or '')}"
            how = "from the cache" if event.from_cache else "collected"
            damaged = f"; what the cache had was damaged: {one_line(event.damaged)}" if event.damaged else ""
            return f"metadata of {where} {how}: {counted(event.tables, 'table')}{damaged}"
        case SnapshotDamaged():
            return f"the metadata of the last load cannot be read: {one_line(event.reason)}"
        case SchemaDrifted():
            types = " -> ".join(one_line(each) for each in (event.old, event.new) if each)
            other = f" to {one_line(event.renamed_to)}" if event.renamed_to else ""
            return f"schema drift, {event.action}: {event.drift} {one_line(event.column)}{other} ({types})"


def _with(what: str, rows: int | None, *more: str) -> str:
    parts = [*([counted(rows, "row")] if rows is not None else []), *(part for part in more if part)]
    return f"{what}: {', '.join(parts)}" if parts else what
