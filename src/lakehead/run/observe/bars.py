"""A run on a terminal: a line with a bar for every table that is running, what failed, and the totals."""

from datetime import datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lakehead.run.observe.standings import Outcome, Standing, Standings
from lakehead.run.observe.wording import counted, duration, one_line, place, shortened, totals

BAR = 12
WITH_BAR = 80
WITH_RATE = 100
"""On a narrower terminal there is no room for these."""

FAILURES = 5
"""As many of the latest failures stay in sight. All of them scroll by, and stand in the summary."""


def bars(standings: Standings, now: datetime, width: int, height: int) -> RenderableType:
    """How the run stands, in no more lines than the terminal has. The totals are always seen."""
    failures = _failures(standings.all(Outcome.FAILED), width, max(height // 3, 1))
    running = standings.all(Outcome.RUNNING)
    room = max(height - len(failures) - 2, 1)  # the last line is left to the cursor
    shown = running if len(running) <= room else running[: max(room - 1, 0)]
    parts: list[RenderableType] = []
    if shown:
        parts.append(_lines(shown, now, width))
    if len(shown) < len(running):
        parts.append(Text(f"and {counted(len(running) - len(shown), 'table')} more", style="dim"))
    return Group(*parts, *failures, _totals(standings, now, width))


def _lines(running: list[Standing], now: datetime, width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    with_bar, with_rate = width >= WITH_BAR, width >= WITH_RATE
    if with_bar:
        grid.add_column(width=BAR)
    for _ in ("slice", "rows", *(["rate"] if with_rate else []), "elapsed"):
        grid.add_column(no_wrap=True, justify="right")
    for each in running:
        elapsed = (now - each.began).total_seconds()
        rate = "" if not each.rows or elapsed < 1 else f"{each.rows / elapsed:,.0f}/s"
        grid.add_row(
            Text(shortened(one_line(each.table), max(width // 4, 12))),
            each.mode,
            Text(one_line(each.step)),
            *([_bar(each)] if with_bar else []),
            place(each).removeprefix("slice "),
            "" if each.rows is None else counted(each.rows, "row"),
            *([rate] if with_rate else []),
            duration(elapsed),
        )
    return grid


def _bar(standing: Standing) -> RenderableType:
    """The slices that have landed, of all; nothing where there are no slices to count."""
    if not place(standing):
        return ""
    return ProgressBar(total=standing.slices, completed=(standing.slice or 1) - 1, width=BAR)


def _failures(failed: list[Standing], width: int, room: int) -> list[Text]:
    latest = failed[-min(FAILURES, room) :]
    lines = [Text(f"{one_line(each.table)} failed: {one_line(each.said)}", style="red") for each in latest]
    if len(latest) < len(failed):
        lines.insert(0, Text(f"{counted(len(failed) - len(latest), 'table')} failed before", style="red"))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
    return lines


def _totals(standings: Standings, now: datetime, width: int) -> Text:
    counts = standings.counts()
    rows = sum(each.rows or 0 for each in standings.all())
    elapsed = "" if standings.began is None else f", {duration((now - standings.began).total_seconds())}"
    line = Text(
        f"{counted(counts.total, 'table')}: {totals(counts)}; {counted(rows, 'row')}{elapsed}",
        style="bold",
        no_wrap=True,
    )
    line.truncate(width, overflow="ellipsis")
    return line
