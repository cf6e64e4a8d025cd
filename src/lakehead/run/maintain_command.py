"""`lakehead maintain`: remove orphan files and old snapshots, and compact small files."""

import asyncio
from datetime import timedelta
from typing import Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds, system_random
from lakehead.run.table_options import (
    CatalogName,
    CatalogProperties,
    ConfigFile,
    DryRun,
    LakehouseFolder,
    LedgerUrl,
    StateUrl,
    TableArgument,
    parse_age,
    resolve_table,
)

app = typer.Typer(no_args_is_help=True, help="Maintain tables: sweep orphan files, expire snapshots, compact files.")


@app.callback()
def maintain() -> None:
    """Maintain tables. Runs may continue meanwhile."""


@app.command()
def sweep(
    table: TableArgument,
    *,
    config: ConfigFile = None,
    lakehouse: LakehouseFolder = None,
    catalog: CatalogName = None,
    catalog_property: CatalogProperties = None,
    older_than: Annotated[
        timedelta, typer.Option(parser=parse_age, metavar="AGE", help="Keep what is younger: 12h, 3d, …")
    ] = "3d",  # type: ignore[assignment] # typer parses a default as it parses what is typed
    dropped: Annotated[
        list[str] | None,
        typer.Option(metavar="UUID", help="A dropped table whose files are in the same folder and may be removed too."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Remove orphan files, and branches that a crash has left.

    Looks only into the folders data and metadata of the table's location. Moves the tag lakehead-sweep first, so that
    no landing can publish a file that is being removed. Starts no Spark session.

    Example: lakehead maintain sweep raw.orders --config shop.json --dry-run
    """
    named = resolve_table(table, lakehouse, catalog, catalog_property, config=config)
    # Imported here: see `TableRef.open`.
    from lakehead.maintain.sweep import sweep as sweep_table  # noqa: PLC0415 - see above

    with named.open() as (iceberg, _):
        result = asyncio.run(
            sweep_table(iceberg, SystemClock(), older_than=older_than, dropped=dropped or (), dry_run=dry_run)
        )
    if dry_run:
        for name in (*result.files, *(f"branch {branch}" for branch in result.branches)):
            typer.echo(name)
    typer.echo(
        f"{result.table}: {len(result.files)} files ({result.bytes} bytes) and {len(result.branches)} branches "
        f"{_done('removed', dry_run=dry_run)}; {result.young} orphan files are too young"
    )


@app.command()
def expire(  # noqa: PLR0913 - typer's shape: one argument for each option
    table: TableArgument,
    *,
    config: ConfigFile = None,
    state: StateUrl = None,
    ledger: LedgerUrl = None,
    lakehouse: LakehouseFolder = None,
    catalog: CatalogName = None,
    catalog_property: CatalogProperties = None,
    older_than: Annotated[
        timedelta, typer.Option(parser=parse_age, metavar="AGE", help="Keep what is younger: 12h, 5d, …")
    ] = "5d",  # type: ignore[assignment] # typer parses a default as it parses what is typed
    min_snapshots: Annotated[
        int, typer.Option(min=1, help="Keep this many snapshots of every branch, whatever their age.")
    ] = 1,
    dry_run: DryRun = False,
) -> None:
    """Expire old snapshots, and remove the files that only they refer to.

    Keeps the last landing and all later snapshots, and those that a branch or tag refers to. Settles landings first, so
    that the ledger has them. Use this instead of Iceberg's own expiry, which may remove a snapshot that landings need.
    Starts no Spark session.

    Example: lakehead maintain expire sales.orders --state sqlite:///state.db --ledger file:///data/records
    """
    named = resolve_table(table, lakehouse, catalog, catalog_property, config=config, state=state, ledger=ledger)
    # Imported here: see `TableRef.open`.
    from lakehead.lake.state_progress import StateProgress  # noqa: PLC0415 - see above
    from lakehead.maintain.expiry import ExpiryLimits  # noqa: PLC0415 - see above
    from lakehead.maintain.expiry import expire as expire_snapshots  # noqa: PLC0415 - see above
    from lakehead.state.owners import owner_named  # noqa: PLC0415 - see above

    with named.open_with_ledger() as (iceberg, records), named.open_state() as state_db:
        result = asyncio.run(
            expire_snapshots(
                iceberg,
                StateProgress(state=state_db, owner=owner_named(RandomIds().uuid())),
                records,
                SystemClock(),
                limits=ExpiryLimits(older_than=older_than, min_snapshots=min_snapshots),
                dry_run=dry_run,
            )
        )
    if dry_run:
        for snapshot in result.snapshots:
            typer.echo(f"snapshot {snapshot}")
    typer.echo(
        f"{result.table}: {len(result.snapshots)} snapshots and {result.files} files "
        f"{_done('removed', dry_run=dry_run)}; {result.kept} snapshots kept"
    )
    if result.not_deleted:
        typer.echo(
            f"{result.table}: {result.not_deleted} files could not be deleted. Remove them later: "
            f"lakehead maintain sweep {result.table}"
        )
    if result.no_landing:
        typer.echo(f"{result.table}: main has no landing in its history, so all its snapshots are kept")


@app.command()
def compact(
    table: TableArgument,
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
    """Rewrite small data files as large ones, and apply their delete files.

    Waits for the table's lease, and retries if a landing commits first. The old files stay until their snapshots are
    expired.

    Example: lakehead maintain compact mirror.orders --config shop.json
    """
    named = resolve_table(table, lakehouse, catalog, catalog_property, config=config, state=state)
    options = dict(pair.partition("=")[::2] for pair in option or ())
    if wrong := [pair for pair in option or () if "=" not in pair]:
        raise Misconfigured(f"The option {wrong[0]!r} must be written as KEY=VALUE.")
    # Imported here: see `TableRef.open`.
    from lakehead.lake.table_leases import StateTableLeases  # noqa: PLC0415 - see above
    from lakehead.maintain.compaction import Compactor, candidates  # noqa: PLC0415 - see above
    from lakehead.spark.jobs import all_progress  # noqa: PLC0415 - see above
    from lakehead.state.owners import owner_named  # noqa: PLC0415 - see above

    if dry_run:
        with named.open() as (iceberg, _):
            result = candidates(iceberg, options)
        typer.echo(f"{result.table}: {result.data_files} data files ({result.bytes} bytes) would be compacted")
        return
    clock, random = SystemClock(), system_random()
    with named.open() as (iceberg, _), named.open_state() as state_db, named.session() as session:
        table_leases = StateTableLeases(
            state=state_db,
            owner=owner_named(RandomIds().uuid()),
            clock=clock,
            random=random,
            work=all_progress(session),
        )
        compactor = Compactor(session=session, table_leases=table_leases, clock=clock, random=random, options=options)
        result = asyncio.run(compactor.compact(iceberg))
    typer.echo(
        f"{result.table}: {result.data_files} data files ({result.bytes} bytes) became {result.into}; "
        f"{result.delete_files} delete files and {result.manifests} manifests were rewritten"
    )


def _done(what: str, *, dry_run: bool) -> str:
    return f"would be {what}" if dry_run else what
