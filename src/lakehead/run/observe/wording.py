"""What happened, in words for a person."""

import json

from rich.cells import cell_len

from lakehead.run.observe.standings import Counts, Standing
from lakehead.telemetry.emitter import Told
from lakehead.telemetry.events import (
    Happened,
    Heartbeat,
    LateCommitsUnknown,
    PhaseMarked,
    RunDone,
    RunStart,
    StagingCleaned,
    TableDone,
    TableFailed,
    TableHeldBack,
    TablePlanned,
    TableProgress,
    TableSkipped,
    TableStart,
    TableWaits,
)


def one_line(text: str) -> str:
    """Text from elsewhere, fit for a terminal: on one line, and without what would move its cursor."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))


def shortened(name: str, cells: int) -> str:
    """A name that is not wider than that. Its end stays: tables of one schema differ there."""
    if cell_len(name) <= cells:
        return name
    while cell_len(name) > max(cells - 1, 0):
        name = name[1:]
    return f"…{name}"


def counted(number: int, word: str, words: str | None = None) -> str:
    """As in 1 table, and 12,000 tables."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {words or f'{word}s'}"


def duration(seconds: float) -> str:
    """Minutes and seconds, and hours if there are any; as in 0:07 and 1:02:03."""
    minutes, rest = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def place(standing: Standing | None) -> str:
    """Which slice a table is at, as in slice 3 of 10; empty if it has none or only one."""
    if standing is None or standing.slice is None or (standing.slices or 0) <= 1:
        return ""
    return f"slice {standing.slice:,} of {standing.slices:,}"


def totals(counts: Counts) -> str:
    """What has come of the tables, as in 7 done, 1 skipped, 1 failed."""
    numbers = (
        (counts.done, "done"),
        (counts.skipped, "skipped"),
        (counts.failed, "failed"),
        (counts.running, "running"),
        (counts.waiting, "waiting"),
    )
    return ", ".join(f"{number:,} {word}" for number, word in numbers if number) or "nothing to do"


def held_back(event: TableHeldBack) -> str:
    """As in held back 0:07 by app (psql, process 12)."""
    return f"held back {duration(event.seconds)} by {one_line(event.by)}"


def late_commits(event: LateCommitsUnknown) -> str:
    """What becomes of rows that are committed later than the source tells."""
    if event.accepted:
        return "late commits accepted"
    return f"late commits within {event.lag_seconds:,} s" if event.lag_seconds else "no lag for late commits"


def line_for(told: Told, standing: Standing | None) -> str:
    """An event as a line of a plain log, with how its table stands after it."""
    moment = f"{told.at:%H:%M:%S}"
    if isinstance(told.event, RunStart):
        moment = f"{moment} run {one_line(told.run)}:"
    elif told.table is not None:
        moment = f"{moment} {one_line(told.table)} "
    return f"{moment} {said(told.event, standing)}"


def said(event: Happened, standing: Standing | None = None) -> str:
    """What happened."""
    match event:
        case TableStart():
            return f"begun: {event.mode} for {event.load_date}" + (", reloaded from its start" if event.reload else "")
        case TableProgress():
            return _with(one_line(event.step), event.rows, place(standing))
        case TablePlanned():
            planned = "earlier plan resumed" if event.resumed else "planned"
            landed = f", {event.done:,} landed already" if event.done else ""
            return f"{planned}: {counted(event.slices, 'slice')}{landed}"
        case PhaseMarked(state="failed", detail={"error": str(error)}):
            return f"{event.phase} failed: {one_line(error)}"
        case PhaseMarked():
            return _with(f"{event.phase} {event.state}", event.rows, place(standing))
        case TableDone():
            slices = counted(event.slices, "slice") if event.slices is not None and event.slices > 1 else ""
            watermark = f"up to {one_line(event.watermark)}" if event.watermark is not None else ""
            published = f"{event.published:,} published" if event.published is not None else ""
            return _with("done", event.rows, published, slices, f"in {duration(event.seconds)}", watermark)
        case TableSkipped():
            return f"skipped: {one_line(event.reason)}"
        case TableFailed():
            return f"failed after {duration(event.seconds)}: {one_line(event.error)} [{event.stack_hash}]"
        case TableWaits() | TableHeldBack() | LateCommitsUnknown():
            return _said_of_others(event)
        case other:
            return _said_of_the_run(other)


def _said_of_others(event: TableWaits | TableHeldBack | LateCommitsUnknown) -> str:
    match event:
        case TableWaits():
            return f"waits: {one_line(event.reason)}"
        case TableHeldBack():
            return held_back(event)
        case LateCommitsUnknown():
            return f"{late_commits(event)}: {one_line(event.reason)}"


def _said_of_the_run(event: Happened) -> str:
    match event:
        case RunStart():
            tables = counted(event.tables, "table")
            return f"{tables} of {one_line(event.pipeline)} for {event.load_date}; times are UTC"
        case RunDone():
            numbers = f"{event.done:,} done, {event.skipped:,} skipped, {event.failed:,} failed"
            numbers += f", {event.not_ended:,} not ended" if event.not_ended else ""
            return f"run ended: {numbers}, after {duration(event.seconds)}"
        case Heartbeat():
            tables = counted(event.total, "table")
            return f"{event.done:,} of {tables} done, {event.failed:,} failed; {counted(event.rows, 'row')} so far"
        case StagingCleaned():
            told = f"staging of {event.root} cleaned: {counted(event.removed, 'directory', 'directories')} removed"
            told += f", {event.not_landed:,} of writers that were killed or are at work" if event.not_landed else ""
            return told if event.error is None else f"{told}; it ended early: {one_line(event.error)}"
        case unknown:
            return f"{unknown.kind}: {json.dumps(unknown.payload())}"


def _with(what: str, rows: int | None, *more: str) -> str:
    parts = [*([counted(rows, "row")] if rows is not None else []), *(part for part in more if part)]
    return f"{what}: {', '.join(parts)}" if parts else what
