"""`lakehead state`: repair the state database."""

import asyncio
from typing import Annotated

import typer

from lakehead.errors import Misconfigured
from lakehead.run.table_options import (
    CatalogName,
    CatalogProperties,
    ConfigFile,
    DryRun,
    LakehouseFolder,
    LedgerUrl,
    StateUrl,
    TableArgument,
    resolve_table,
)

app = typer.Typer(no_args_is_help=True, help="Repair the state.")


@app.callback()
def state() -> None:
    """Repair the state, which remembers the progress of every table."""


@app.command()
def rebuild(  # noqa: PLR0913 - typer's shape: one argument for each option
    table: TableArgument,
    *,
    config: ConfigFile = None,
    state: StateUrl = None,
    ledger: LedgerUrl = None,
    lakehouse: LakehouseFolder = None,
    catalog: CatalogName = None,
    catalog_property: CatalogProperties = None,
    last_landing: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="The last landing in the table, or 'none': only needed if its history no longer shows it.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Rebuild the state of a table from the table and its ledger.

    Use it after the state was lost or restored from a backup, and after a table was rolled back, replaced, or expired
    by another tool: runs fail then and suggest this command. Afterwards only landings on the table's main branch count.
    Leases and plans of the table are deleted, so unfinished work is repeated. A ledger that lacks a settled landing is
    refused, because it belongs to other runs.

    Example: lakehead state rebuild raw.orders --config shop.json --dry-run
    """
    named = resolve_table(table, lakehouse, catalog, catalog_property, config=config, state=state, ledger=ledger)
    # Imported here: see `TableRef.open`.
    from lakehead.maintain.rebuild import Said  # noqa: PLC0415 - see above
    from lakehead.maintain.rebuild import rebuild as rebuild_table  # noqa: PLC0415 - see above

    last = None
    if last_landing is not None:
        if last_landing != "none" and not last_landing.isdecimal():
            raise Misconfigured(f"The last landing {last_landing!r} must be a snapshot's number or 'none'.")
        last = Said(None if last_landing == "none" else int(last_landing))
    with named.open_with_ledger() as (iceberg, records), named.open_state() as state_db:
        result = asyncio.run(rebuild_table(iceberg, state_db, records, said=last, dry_run=dry_run))
    would = "would be" if dry_run else "is"
    at = f"snapshot {result.pointer.snapshot}" if result.pointer.snapshot is not None else "its beginning"
    typer.echo(
        f"{result.table} {would} settled up to {at}: {result.landings} landings of {result.units} units, the last "
        f"one in snapshot {result.pointer.last_landing}"
        if result.landings
        else f"{result.table} {would} settled up to {at}: nothing has landed"
    )
    if result.recorded:
        typer.echo(
            f"ledger: {len(result.recorded)} landings were missing and {'would be' if dry_run else 'are'} written"
        )
    if result.dead_letters:
        typer.echo(f"dead letters: {result.dead_letters} units {'would stay' if dry_run else 'stay'} given up")
    if result.left:
        typer.echo(
            f"not on main: {len(result.left)} landings of the ledger, whose units count as not landed; "
            f"the newest is snapshot {result.left[-1]}"
        )
