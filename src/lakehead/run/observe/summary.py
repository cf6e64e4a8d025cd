"""The summary at the end of a run: one line per table, and totals."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.text import Text

from lakehead.run.observe.event_text import counted, duration, held_back, late_commits, one_line, totals
from lakehead.run.observe.run_status import RunStatus, TableOutcome, TableStatus
from lakehead.run.text_table import styled_text, table_lines
from lakehead.telemetry.background_sender import LostMessages
from lakehead.telemetry.emitter import Emitter, EventEnvelope
from lakehead.telemetry.events import EventsLost

HEADERS = ("table", "mode", "outcome", "rows", "published", "slices", "time", "note")
NUMBERS = {"rows", "published", "slices", "time"}
STYLES = {
    TableOutcome.DONE: "green",
    TableOutcome.SKIPPED: "dim",
    TableOutcome.FAILED: "red",
    TableOutcome.RUNNING: "red",
}
NOT_FINISHED = "It was started and has not finished."
INDENT = "    "


class RunSummary:
    """A subscriber that renders the outcome of every table at the end of a run."""

    def __init__(self) -> None:
        self.status = RunStatus()

    def __call__(self, envelope: EventEnvelope) -> None:
        """Update the status."""
        self.status(envelope)

    @property
    def exit_code(self) -> int:
        """0 if every table is done or skipped; 1 if one has failed, or was not started or not finished."""
        counts = self.status.counts()
        return 0 if counts.total == counts.done + counts.skipped else 1

    def render(self, *, colour: bool = False) -> str:
        """Render one line per table, sorted by name, failed ones last with their error messages; then the totals."""
        ended = self._by_name(TableOutcome.DONE, TableOutcome.SKIPPED)
        failed = self._by_name(TableOutcome.FAILED, TableOutcome.RUNNING)
        tables = [*ended, *failed]
        styles = [STYLES[each.outcome] for each in tables]
        header, *rows = table_lines(HEADERS, map(_cells, tables), right=NUMBERS, styles=styles, colour=colour)
        lines = [header] if rows else []
        for status, row in zip(tables, rows, strict=True):
            lines.append(row)
            if status.outcome in {TableOutcome.FAILED, TableOutcome.RUNNING}:
                lines.append(_styled(INDENT + _message(status), STYLES[status.outcome], colour=colour))
        lines.append(_styled(self._totals(), "bold", colour=colour))
        return "".join(f"{line}\n" for line in lines)

    def _by_name(self, *outcomes: TableOutcome) -> list[TableStatus]:
        return sorted(self.status.tables(*outcomes), key=lambda each: each.table)

    def _totals(self) -> str:
        counts = self.status.counts()
        rows = sum(each.rows or 0 for each in self.status.tables())
        took = "" if self.status.seconds is None else f" in {duration(self.status.seconds)}"
        return f"{counted(counts.total, 'table')}: {totals(counts)}; {counted(rows, 'row')}{took}"


class LossyOutputs(Protocol):
    """Outputs besides the subscribers that may lose messages."""

    @property
    def lost(self) -> Sequence[LostMessages]:
        """What did not arrive so far."""
        ...


@contextmanager
def emit_lost_events(emitter: Emitter, senders: LossyOutputs) -> Iterator[None]:
    """At the end of the `with`, emit an event for each subscriber or receiver that has missed some so far."""
    try:
        yield
    finally:
        for name, count in emitter.dropped.items():
            emitter.emit(EventsLost(subscriber=name, count=count, reason="too slow"))
        if emitter.failures:
            reason = f"it failed ({type(emitter.first_failure).__name__})"
            emitter.emit(EventsLost(subscriber="a subscriber", count=emitter.failures, reason=reason))
        for each in senders.lost:
            emitter.emit(EventsLost(subscriber=each.receiver, count=each.count, reason=each.reason))


def delivery_warnings(emitter: Emitter, lost: Sequence[LostMessages] = ()) -> list[str]:
    """Return a message for events that a subscriber or receiver did not get, or failed to handle."""
    warnings = []
    if emitter.failures:
        warnings.append(
            f"A subscriber failed on {counted(emitter.failures, 'event')}; the first error was "
            f"{emitter.first_failure!r}. The loaded data is not affected."
        )
    for name, count in emitter.dropped.items():
        warnings.append(f"{counted(count, 'event')} did not reach {name}: too slow. The loaded data is not affected.")
    warnings += [
        f"{counted(each.count, 'message')} did not reach {each.receiver}: {each.reason}. "
        "The loaded data is not affected."
        for each in lost
    ]
    return warnings


def _cells(status: TableStatus) -> tuple[str, ...]:
    return (
        one_line(status.table),
        status.mode,
        "not finished" if status.outcome is TableOutcome.RUNNING else status.outcome.value,
        "" if status.rows is None else f"{status.rows:,}",
        "" if status.published is None else f"{status.published:,}",
        "" if status.slices is None else f"{status.slices:,}",
        "" if status.seconds is None else duration(status.seconds),
        _note(status),
    )


def _note(status: TableStatus) -> str:
    notes = []
    if status.outcome is TableOutcome.SKIPPED:
        notes.append(one_line(status.message))
    else:
        notes += [f"up to {one_line(status.watermark)}"] if status.watermark is not None else []
        notes += [held_back(status.held_back)] if status.held_back else []
    notes += [late_commits(status.late_commits)] if status.late_commits else []
    return "; ".join(notes)


def _message(status: TableStatus) -> str:
    return NOT_FINISHED if status.outcome is TableOutcome.RUNNING else one_line(status.message)


def _styled(line: str, style: str, *, colour: bool) -> str:
    return styled_text(Text(line, style), colour=colour).rstrip("\n")
