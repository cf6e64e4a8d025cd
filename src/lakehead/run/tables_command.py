"""`lakehead tables`: list, drop, rename and recover the Iceberg tables of a configuration. Starts no JVM."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.run.table_options import DryRun
from lakehead.run.text_table import table_lines

if TYPE_CHECKING:
    from lakehead.run.configured_tables import ConfiguredTable

app = typer.Typer(no_args_is_help=True, help="List, drop, rename and recover tables.")

ConfigArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration, JSON or TOML.", show_default=False)
]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
HEADERS = ("table", "rows", "bytes", "files", "landed", "watermark")


@app.callback()
def tables() -> None:
    """List, drop, rename and recover the Iceberg tables of a configuration."""


@app.command("list")
def list_tables(
    config: ConfigArgument,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List tables with their rows, size, files, freshness and last watermark.

    Reads metadata only, and starts no Spark session. The watermark of a mirror or final table is raw's last slice in
    it.

    Example: lakehead tables list shop.json
    """
    # Imported here: slow to load, and other commands should not wait for it.
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - see above

    from lakehead.maintain.table_figures import figures_of  # noqa: PLC0415 - see above
    from lakehead.run.configured_tables import iceberg_tables_of, wiring_of  # noqa: PLC0415 - see above

    now = datetime.fromtimestamp(SystemClock().now_ns() / 1e9, UTC)
    found: list[dict[str, Any]] = []
    with iceberg_tables_of(wiring_of(config)) as known:
        for table in known:
            for place in reversed(table.places):
                shown: dict[str, Any] = {"table": place.name, "of": table.config.full_name}
                try:
                    figures = figures_of(table.catalog.load_table(place.name))
                except NoSuchTableError:
                    found.append({**shown, "exists": False})
                    continue
                landed = figures.landed_at
                found.append(
                    {
                        **shown,
                        "exists": True,
                        "rows": figures.rows,
                        "bytes": figures.bytes,
                        "files": figures.files,
                        "landed_at": landed.isoformat() if landed else None,
                        "age_seconds": round((now - landed).total_seconds()) if landed else None,
                        "watermark": figures.watermark,
                        "slice": figures.slice,
                    }
                )
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for line in table_lines(HEADERS, [_row(each) for each in found], right=("rows", "bytes", "files")):
        typer.echo(line)


@app.command()
def drop(
    config: ConfigArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table, as the configuration names it.")],
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Drop a table: its raw table, its mirror or final table, and what the state has on them.

    Stop its loads first. The files and the ledger stay; remove the folders that are printed when nobody needs them,
    and no other table has files there. After a crash run it again.

    Example: lakehead tables drop shop.json public.orders
    """
    from lakehead.run.change_tables import drop_table  # noqa: PLC0415 - see `list_tables`
    from lakehead.run.configured_tables import iceberg_tables_of, named_table, wiring_of  # noqa: PLC0415 - see above

    wiring = wiring_of(config)
    with iceberg_tables_of(wiring) as known:
        chosen = named_table(known, table)
        there = _existing(chosen)
        if not there:
            raise Misconfigured(f"None of the tables of {table} exists. There is nothing to drop.")
        for name, location, others in there:
            shared = f", where another table has files too: {', '.join(others)}" if others else ""
            typer.echo(f"{name}: will be dropped with its state; its files stay in {location}{shared}")
        if chosen.view:
            typer.echo(f"{chosen.view.name}: is a view and stays; drop it with DROP VIEW in Spark")
        if dry_run:
            return
        if not yes:
            typer.confirm(f"Drop {table}?", abort=True)
        with wiring.open_state(SystemClock(), RandomIds()) as state:
            for place in chosen.places:
                if drop_table(chosen.catalog, place.name, state):
                    typer.echo(f"{place.name}: dropped")


@app.command()
def rename(
    config: ConfigArgument,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table, as the configuration names it.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name in the configuration.")],
    *,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Rename a table in the lakehouse: its raw table, and its mirror or final table. Its state moves with it.

    Stop its loads first, and change its name in the configuration afterwards. The files stay in their folders. After a
    crash run it again.

    Example: lakehead tables rename shop.json public.orders shop.orders
    """
    from lakehead.run.change_tables import check_rename, rename_table  # noqa: PLC0415 - see `list_tables`
    from lakehead.run.configured_tables import iceberg_tables_of, named_table, wiring_of  # noqa: PLC0415 - see above

    with iceberg_tables_of(wiring_of(config)) as known:
        chosen = named_table(known, table)
        if chosen.view:
            raise Misconfigured(
                f"The final of {table} is the view {chosen.view.name}, which cannot be renamed. Drop it with DROP VIEW "
                "in Spark and set finalize to table first."
            )
        moves = [(place.name, f"{place.name.removesuffix(table)}{new}") for place in chosen.places]
        if any(each.config.full_name == new for each in known):
            raise Misconfigured(f"The configuration has another table {new}, which would go on in this one's place.")
        check_rename(chosen.catalog, table, new, moves)
        for old, to in moves:
            typer.echo(f"{old}: will be renamed to {to}")
        if dry_run:
            return
        if not yes:
            typer.confirm(f"Rename {table} to {new}?", abort=True)
        for old, to in moves:
            if rename_table(chosen.catalog, old, to):
                typer.echo(f"{old}: renamed to {to}")
    typer.echo(f'Now change its name in {config}: "name": "{new}"')


@app.command()
def recover(config: ConfigArgument, *, dry_run: DryRun = False) -> None:
    """Register the tables of a lost catalog again, each by its newest metadata file.

    For an embedded catalog whose SQLite file was lost: its tables are found in the warehouse. A table that the catalog
    has is never changed, and one that was dropped with `lakehead tables drop` is left out. So is one whose newest
    metadata is lost, as its ledger tells; the exit code is then 1.

    Example: lakehead tables recover shop.json --dry-run
    """
    from lakehead.run.configured_tables import iceberg_tables_of, wiring_of  # noqa: PLC0415 - see `list_tables`
    from lakehead.run.recover_tables import Action  # noqa: PLC0415 - see above
    from lakehead.run.recover_tables import recover as recover_tables  # noqa: PLC0415 - see above

    wiring, lost = wiring_of(config), False
    with iceberg_tables_of(wiring) as known:
        catalogs = {table.catalog.name: table.catalog for table in known}
        for name, catalog in catalogs.items():
            theirs = [table for table in known if table.catalog.name == name]
            locations = {place.location: place.name for table in theirs for place in table.places if place.location}
            for each in recover_tables(catalog, wiring.open_ledger(), locations, dry_run=dry_run):
                done = {
                    Action.REGISTER: "would be registered" if dry_run else "registered",
                    Action.HAS_IT: "is in the catalog, and was not changed",
                    Action.DROPPED: "was dropped on purpose, and was left out",
                    Action.SHARED: "was left out: another table has its name",
                    Action.COPY: "is a copy of a table that is elsewhere, and was left out",
                    Action.LOST: "was left out: the ledger has newer landings than its newest metadata file. Restore "
                    "its newer metadata from a backup, or register this file yourself to go back to it",
                }[each.action]
                doubt = f" ({each.ambiguous} others are as new, of commits that failed)" if each.ambiguous else ""
                damaged = f" (cannot be read: {', '.join(each.unreadable)})" if each.unreadable else ""
                typer.echo(f"{each.name}: {done}: {each.metadata}{doubt}{damaged}")
                lost = lost or each.action is Action.LOST
    if lost:
        raise typer.Exit(1)


def _row(shown: dict[str, Any]) -> tuple[str, ...]:
    if not shown["exists"]:
        return (shown["table"], "", "", "", "does not exist", "")
    landed = "never" if shown["landed_at"] is None else f"{shown['landed_at'][:19]}Z ({_age(shown['age_seconds'])} ago)"
    reached = shown["watermark"] if shown["watermark"] is not None else ""
    return (shown["table"], f"{shown['rows']}", f"{shown['bytes']}", f"{shown['files']}", landed, reached)


def _age(seconds: int) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _existing(table: "ConfiguredTable") -> list[tuple[str, str, list[str]]]:
    """The names and locations of its tables that exist, and which other tables have files there."""
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - see `list_tables`

    from lakehead.run.change_tables import others_in_folder  # noqa: PLC0415 - see `list_tables`

    found = []
    for place in table.places:
        try:
            iceberg = table.catalog.load_table(place.name)
        except NoSuchTableError:
            continue
        found.append((place.name, iceberg.location(), others_in_folder(iceberg)))
    return found
