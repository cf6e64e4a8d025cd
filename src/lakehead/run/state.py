"""`lakehead state`: what is done to the state itself."""

import asyncio
from typing import Annotated

import typer

from lakehead.errors import Misconfigured
from lakehead.run.tables import (
    CatalogName,
    CatalogProperties,
    ConfigFile,
    DryRun,
    LakehouseFolder,
    LedgerUrl,
    StateUrl,
    TableName,
    chosen,
)

app = typer.Typer(no_args_is_help=True, help="Look after the state.")


@app.callback()
def state() -> None:
    """Look after the state, which remembers how far Lakehead got."""


@app.command()
def rebuild(  # noqa: PLR0913 - typer's shape: one argument for each option
    table: TableName,
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
            help="The last landing that the table holds, or 'none': only where its history does not tell any more.",
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Rebuild what the state knows of a table, from the table and its ledger.

    Use it after the state was lost or brought back from a backup, and after a table was rolled back, replaced, or
    expired by somebody else: landings stop there and say so. Only what the table's main branch holds counts as landed
    afterwards. Leases and plans of the table are forgotten; what was under way is done again. A ledger that lacks a
    landing which is known to be settled is refused: it is not the one of the landings.

    Example: lakehead state rebuild raw.orders --config shop.json --dry-run
    """
    named = chosen(table, lakehouse, catalog, catalog_property, config=config, state=state, ledger=ledger)
    # Not at the top: see `tables`.
    from lakehead.maintain.rebuild import Said  # noqa: PLC0415 - see above
    from lakehead.maintain.rebuild import rebuild as rebuild_table  # noqa: PLC0415 - see above

    said = None
    if last_landing is not None:
        if last_landing != "none" and not last_landing.isdecimal():
            raise Misconfigured(f"The last landing {last_landing!r} must be a snapshot's number or 'none'.")
        said = Said(None if last_landing == "none" else int(last_landing))
    with named.open_with_ledger() as (iceberg, records), named.open_state() as known:
        told = asyncio.run(rebuild_table(iceberg, known, records, said=said, dry_run=dry_run))
    would = "would be" if dry_run else "is"
    at = f"snapshot {told.pointer.snapshot}" if told.pointer.snapshot is not None else "its beginning"
    typer.echo(
        f"{told.table} {would} settled up to {at}: {told.landings} landings of {told.units} units, the last one in "
        f"snapshot {told.pointer.last_landing}"
        if told.landings
        else f"{told.table} {would} settled up to {at}: nothing has landed"
    )
    if told.recorded:
        typer.echo(f"ledger: {len(told.recorded)} landings were missing and {'would be' if dry_run else 'are'} written")
    if told.left:
        typer.echo(
            f"not on main: {len(told.left)} landings of the ledger, whose units count as not landed; "
            f"the newest is snapshot {told.left[-1]}"
        )
