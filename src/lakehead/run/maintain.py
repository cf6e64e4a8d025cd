"""`lakehead maintain`: removing what nobody needs, and making large files of small ones."""

import asyncio
from datetime import timedelta
from typing import Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds, system_random
from lakehead.run.tables import (
    CatalogName,
    CatalogProperties,
    ConfigFile,
    DryRun,
    LakehouseFolder,
    LedgerUrl,
    StateUrl,
    TableName,
    age,
    chosen,
)

app = typer.Typer(no_args_is_help=True, help="Look after tables.")


@app.callback()
def maintain() -> None:
    """Look after tables. Landings may go on meanwhile; what a command cannot do safely it does not do."""


@app.command()
def sweep(
    table: TableName,
    *,
    config: ConfigFile = None,
    lakehouse: LakehouseFolder = None,
    catalog: CatalogName = None,
    catalog_property: CatalogProperties = None,
    older_than: Annotated[
        timedelta, typer.Option(parser=age, metavar="AGE", help="What is younger stays: 12h, 3d, …")
    ] = "3d",  # type: ignore[assignment] # typer parses a default as it parses what is typed
    dropped: Annotated[
        list[str] | None,
        typer.Option(
            metavar="UUID", help="A dropped table that has left its files in the same folder: they may go too."
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Remove files that no snapshot holds, and branches that a crash has left.

    Only in the folders data and metadata of the table's location. The tag lakehead-sweep is moved first, so that no
    landing can publish what is being removed. No Spark session is started.

    Example: lakehead maintain sweep raw.orders --config shop.json --dry-run
    """
    named = chosen(table, lakehouse, catalog, catalog_property, config=config)
    # Not at the top: see `tables`.
    from lakehead.maintain.sweep import sweep as sweep_table  # noqa: PLC0415 - see above

    with named.open() as (iceberg, _):
        told = asyncio.run(
            sweep_table(iceberg, SystemClock(), older_than=older_than, dropped=dropped or (), dry_run=dry_run)
        )
    if dry_run:
        for name in (*told.files, *(f"branch {branch}" for branch in told.branches)):
            typer.echo(name)
    typer.echo(
        f"{told.table}: {len(told.files)} files ({told.bytes} bytes) and {len(told.branches)} branches "
        f"{_done('removed', dry_run=dry_run)}; {told.young} files that nothing refers to are too young"
    )


@app.command()
def expire(  # noqa: PLR0913 - typer's shape: one argument for each option
    table: TableName,
    *,
    config: ConfigFile = None,
    state: StateUrl = None,
    ledger: LedgerUrl = None,
    lakehouse: LakehouseFolder = None,
    catalog: CatalogName = None,
    catalog_property: CatalogProperties = None,
    older_than: Annotated[
        timedelta, typer.Option(parser=age, metavar="AGE", help="What is younger stays: 12h, 5d, …")
    ] = "5d",  # type: ignore[assignment] # typer parses a default as it parses what is typed
    min_snapshots: Annotated[int, typer.Option(min=1, help="So many of every branch stay, whatever their age.")] = 1,
    dry_run: DryRun = False,
) -> None:
    """Expire old snapshots, with the files that only they hold.

    The last landing and all after it stay, and so does whatever a branch or tag points at. Landings are settled first,
    so that the ledger has those that go. Use this one: an expiry that does not know of landings may stop them.

    Example: lakehead maintain expire sales.orders --state sqlite:///state.db --ledger file:///data/records
    """
    named = chosen(table, lakehouse, catalog, catalog_property, config=config, state=state, ledger=ledger)
    # Not at the top: see `tables`.
    from lakehead.lake.progress import StateProgress  # noqa: PLC0415 - see above
    from lakehead.maintain.expiry import expire as expire_snapshots  # noqa: PLC0415 - see above
    from lakehead.state.owners import owner_named  # noqa: PLC0415 - see above

    with named.open_with_ledger() as (iceberg, records), named.open_state() as known, named.session() as session:
        told = asyncio.run(
            expire_snapshots(
                iceberg,
                session,
                StateProgress(state=known, owner=owner_named(RandomIds().uuid())),
                records,
                SystemClock(),
                older_than=older_than,
                min_snapshots=min_snapshots,
                dry_run=dry_run,
            )
        )
    if dry_run:
        for snapshot in told.snapshots:
            typer.echo(f"snapshot {snapshot}")
    typer.echo(
        f"{told.table}: {len(told.snapshots)} snapshots and {told.files} files {_done('removed', dry_run=dry_run)}; "
        f"{told.kept} snapshots stay"
    )
    if told.no_landing:
        typer.echo(f"{told.table}: no landing is left in the history of main, so all of it is kept")


@app.command()
def compact(
    table: TableName,
    *,
    config: ConfigFile = None,
    state: StateUrl = None,
    lakehouse: LakehouseFolder = None,
    catalog: CatalogName = None,
    catalog_property: CatalogProperties = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of Iceberg's rewrite_data_files, such as min-input-files=2."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Make large files of small ones, and deletes part of the files that they are about.

    It waits for its turn at the table, and tries again when a landing was quicker. The old files stay until their
    snapshots are expired.

    Example: lakehead maintain compact mirror.orders --config shop.json
    """
    named = chosen(table, lakehouse, catalog, catalog_property, config=config, state=state)
    options = dict(pair.partition("=")[::2] for pair in option or ())
    if wrong := [pair for pair in option or () if "=" not in pair]:
        raise Misconfigured(f"The option {wrong[0]!r} must be written as KEY=VALUE.")
    # Not at the top: see `tables`.
    from lakehead.lake.turns import Turns  # noqa: PLC0415 - see above
    from lakehead.maintain.compaction import Compactor, candidates  # noqa: PLC0415 - see above
    from lakehead.spark.jobs import all_progress  # noqa: PLC0415 - see above
    from lakehead.state.owners import owner_named  # noqa: PLC0415 - see above

    if dry_run:
        with named.open() as (iceberg, _):
            told = candidates(iceberg, options)
        typer.echo(f"{told.table}: {told.data_files} data files ({told.bytes} bytes) would be compacted")
        return
    clock, random = SystemClock(), system_random()
    with named.open() as (iceberg, _), named.open_state() as known, named.session() as session:
        turns = Turns(
            state=known, owner=owner_named(RandomIds().uuid()), clock=clock, random=random, work=all_progress(session)
        )
        compactor = Compactor(session=session, turns=turns, clock=clock, random=random, options=options)
        told = asyncio.run(compactor.compact(iceberg))
    typer.echo(
        f"{told.table}: {told.data_files} data files ({told.bytes} bytes) became {told.into}; {told.delete_files} "
        f"delete files and {told.manifests} manifests were rewritten"
    )


def _done(what: str, *, dry_run: bool) -> str:
    return f"would be {what}" if dry_run else what
