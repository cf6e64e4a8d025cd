"""The end of a run: what has come of every table."""

import textwrap
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from lakehead.run.observe.standings import Outcome, Standing, Standings
from lakehead.run.observe.wording import counted, duration, held_back, late_commits, one_line, shortened, totals
from lakehead.telemetry.emitter import Told

HEADS = ("table", "mode", "outcome", "rows", "published", "slices", "time", "note")
TO_THE_RIGHT = {"rows", "published", "slices", "time"}
STYLES = {Outcome.DONE: "green", Outcome.SKIPPED: "dim", Outcome.FAILED: "red", Outcome.RUNNING: "red"}
NOT_ENDED = "It was begun and has not ended."
INDENT = "    "


class Summary:
    """Listens to a run, and says at its end what has come of every table."""

    def __init__(self) -> None:
        self.standings = Standings()

    def __call__(self, told: Told) -> None:
        """Hear of an event."""
        self.standings(told)

    @property
    def exit_code(self) -> int:
        """0 if every table is done or was skipped, else 1: one has failed, has not ended, or was not begun."""
        counts = self.standings.counts()
        return 0 if counts.total == counts.done + counts.skipped else 1

    def render(self, *, width: int | None = None, colour: bool = False) -> str:
        """A line for each table, by name, those that failed last and with their sentences; then a line of totals.

        With a width nothing is wider: long names and notes are cut, sentences go on in the next line.
        """
        ended = self._by_name(Outcome.DONE, Outcome.SKIPPED)
        failed = self._by_name(Outcome.FAILED, Outcome.RUNNING)
        rows = [_cells(each, width) for each in (*ended, *failed)]
        widths = [max(map(cell_len, column)) for column in zip(HEADS, *rows, strict=True)]
        lines = [_aligned(HEADS, widths, width, "bold")] if rows else []
        for standing, cells in zip((*ended, *failed), rows, strict=True):
            lines.append(_aligned(cells, widths, width, STYLES[standing.outcome]))
            if standing.outcome in {Outcome.FAILED, Outcome.RUNNING}:
                lines += [Text(INDENT + line, STYLES[standing.outcome]) for line in _sentence(standing, width)]
        lines.append(Text(self._totals(), "bold"))
        return _written(lines, colour=colour)

    def _by_name(self, *outcomes: Outcome) -> list[Standing]:
        return sorted(self.standings.all(*outcomes), key=lambda each: each.table)

    def _totals(self) -> str:
        counts = self.standings.counts()
        rows = sum(each.rows or 0 for each in self.standings.all())
        took = "" if self.standings.seconds is None else f" in {duration(self.standings.seconds)}"
        return f"{counted(counts.total, 'table')}: {totals(counts)}; {counted(rows, 'row')}{took}"


def _cells(standing: Standing, width: int | None) -> tuple[str, ...]:
    name = one_line(standing.table)
    return (
        name if width is None else shortened(name, max(width // 3, 8)),
        standing.mode,
        "not ended" if standing.outcome is Outcome.RUNNING else standing.outcome.value,
        "" if standing.rows is None else f"{standing.rows:,}",
        "" if standing.published is None else f"{standing.published:,}",
        "" if standing.slices is None else f"{standing.slices:,}",
        "" if standing.seconds is None else duration(standing.seconds),
        _note(standing),
    )


def _note(standing: Standing) -> str:
    notes = []
    if standing.outcome is Outcome.SKIPPED:
        notes.append(one_line(standing.said))
    else:
        notes += [f"up to {one_line(standing.watermark)}"] if standing.watermark is not None else []
        notes += [held_back(standing.held_back)] if standing.held_back else []
    notes += [late_commits(standing.late_commits)] if standing.late_commits else []
    return "; ".join(notes)


def _aligned(cells: tuple[str, ...], widths: list[int], width: int | None, style: str) -> Text:
    padded = []
    for head, cell, cells_wide in zip(HEADS, cells, widths, strict=True):
        blank = " " * (cells_wide - cell_len(cell))
        padded.append(blank + cell if head in TO_THE_RIGHT else cell + blank)
    line = Text("  ".join(padded).rstrip(), style)
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def _sentence(standing: Standing, width: int | None) -> list[str]:
    sentence = NOT_ENDED if standing.outcome is Outcome.RUNNING else one_line(standing.said)
    return [sentence] if width is None else textwrap.wrap(sentence, max(width - len(INDENT), 20))


def _written(lines: list[Text], *, colour: bool) -> str:
    if not colour:
        return "".join(f"{line.plain}\n" for line in lines)
    written = StringIO()
    console = Console(file=written, force_terminal=True, color_system="standard", highlight=False, markup=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    return written.getvalue()
