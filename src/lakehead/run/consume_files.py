"""`lakehead consume files`: what became of the files of a pipeline."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Annotated

import typer

from lakehead.run.consumed_tables import (
    ConfigArgument,
    ConsumedTables,
    OpenConsumedTables,
    PipelineOption,
    TableOption,
)
from lakehead.run.observe.event_text import counted
from lakehead.run.queue_options import AsJson
from lakehead.run.queue_output import print_json, print_table
from lakehead.run.table_options import parse_age
from lakehead.state.model import FileRecord, FileState

PAGE = 1000


class ShownState(StrEnum):
    """The states of files, as options name them."""

    LANDED = "landed"
    FAILED = "failed"
    DEAD_LETTER = "dead-letter"
    DROPPED = "dropped"


def files_command(open_tables: OpenConsumedTables) -> Callable[..., None]:
    """The command, for pipelines that `open_tables` opens."""

    def files(
        config: ConfigArgument,
        *,
        pipeline: PipelineOption = None,
        table: TableOption = None,
        state: Annotated[
            ShownState | None, typer.Option("--state", help="Only files in this state.", show_default=False)
        ] = None,
        since: Annotated[
            str | None,
            typer.Option(
                metavar="AGE", help="Only files that changed within this time: 90m, 12h, 3d.", show_default=False
            ),
        ] = None,
        unit: Annotated[
            str | None, typer.Option("--file", metavar="URI", help="Only this file.", show_default=False)
        ] = None,
        limit: Annotated[int, typer.Option(min=1, help="Show at most so many for each table.")] = 1000,
        as_json: AsJson = False,
    ) -> None:
        """Show what became of files: rows and bytes landed, tries, the first and the last error. Nothing is written.

        The oldest change comes first. The history is an audit trail: it is lost with the state.

        Example: lakehead consume files files.json --state failed --since 12h
        """
        with open_tables(config, pipeline) as tables:
            after = None if since is None else tables.state.now() - parse_age(since)
            found = {
                name: list(islice(records(tables, uuid, state=state, since=after, unit=unit), limit))
                for name, uuid in tables.named(table).items()
            }
        if as_json:
            print_json({"files": [as_document(name, record) for name, some in found.items() for record in some]})
            return
        rows = [
            (
                name,
                record.unit,
                record.state,
                record.changed_at.isoformat(sep=" ", timespec="seconds"),
                f"{record.rows:,}",
                f"{record.bytes:,}",
                f"{record.rescued_rows:,}",
                str(record.tries),
                record.first_error or "",
            )
            for name, some in found.items()
            for record in some
        ]
        print_table(("TABLE", "FILE", "STATE", "CHANGED", "ROWS", "BYTES", "RESCUED", "TRIES", "FIRST ERROR"), rows)
        typer.echo(counted(len(rows), "file"))

    return files


def records(
    tables: ConsumedTables,
    table: str,
    *,
    state: ShownState | None = None,
    since: datetime | None = None,
    unit: str | None = None,
) -> Iterator[FileRecord]:
    """The history of a table's files, read in pages."""
    wanted = None if state is None else FileState(state.replace("-", " "))
    if unit is not None:
        one = tables.state.files.find(table, unit)
        if one is not None and wanted in (None, one.state) and (since is None or one.changed_at >= since):
            yield one
        return
    after: FileRecord | None = None
    while page := tables.state.files.list(table, state=wanted, since=since, after=after, limit=PAGE):
        yield from page
        after = page[-1]


def as_document(name: str, record: FileRecord) -> dict[str, object]:
    """A record as JSON, with the table's name."""
    return {
        **asdict(record),
        "table": name,
        "first_seen": record.first_seen.isoformat(),
        "changed_at": record.changed_at.isoformat(),
    }
