"""Plain text tables for the commands: aligned columns without borders."""

from collections.abc import Collection, Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

UNBOUNDED = 1_000_000_000
"""Wider than any line: nothing is wrapped or cut. Lines are also for `grep` and `awk`."""


def table_lines(
    headers: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    styles: Sequence[str] = (),
    colour: bool = False,
) -> list[str]:
    """Render a table: a line for the headers, and one for each row.

    `right` names the columns that are aligned to the right. `styles` are rich's styles of the rows, used with `colour`.
    """
    # Imported here: slow to load, and most commands that can print a table print none.
    from rich.table import Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        table.add_column(Text(header), justify="right" if header in right else "left", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style=styles[number] if styles else None)
    return [line.rstrip() for line in styled_text(table, colour=colour).splitlines()]


def styled_text(content: "Table | Text", *, colour: bool) -> str:
    """Render rich content as text, with colours as ANSI escapes if wanted."""
    from rich.console import Console  # noqa: PLC0415 - see `table_lines`
    from rich.text import Text  # noqa: PLC0415 - see `table_lines`

    written = StringIO()
    console = Console(
        file=written,
        width=UNBOUNDED,
        height=1,  # not used, but without it rich takes 80 for the width of a dumb terminal
        force_terminal=colour,
        color_system="standard" if colour else None,
        highlight=False,
        markup=False,
    )
    console.print(content, soft_wrap=isinstance(content, Text))
    return written.getvalue()
