"""`lakehead queue gc`, `repartition` and `purge`: the commands that change a queue."""

import asyncio
import sys
from datetime import timedelta
from typing import Annotated

import typer

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.inspection import inspect_partitions
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.purge import Purge
from lakehead.buffer.repartition import Repartition
from lakehead.errors import Misconfigured
from lakehead.run.queue_options import (
    MANIFEST,
    AsJson,
    ManifestPath,
    StoreUrl,
    deps_for,
    owned_root_manifest,
    readable_producer,
)
from lakehead.run.queue_output import print_json, printable
from lakehead.run.table_options import DryRun, parse_age


def gc(
    *,
    store: StoreUrl,
    manifest: ManifestPath = MANIFEST,
    grace: Annotated[
        timedelta, typer.Option(parser=parse_age, metavar="AGE", help="Keep batches younger than this: 90m, 12h, 3d, …")
    ] = "24h",  # type: ignore[assignment] # typer parses a default as it parses what is typed
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete orphans: batches that were stored and never queued, because their ingestor died in between.

    A batch that a slow ingestor may still queue is safe whatever the grace time: the ingestor notices and stores it
    again. Only batches under the prefix in the queue's own manifest are deleted.

    Example: lakehead queue gc --store file:///tmp/lake --grace 12h --dry-run
    """
    deleted = asyncio.run(_delete_orphans(manifest, deps_for(store), grace, dry_run=dry_run))
    if as_json:
        print_json({"orphans": deleted, "deleted": not dry_run})
        return
    for key in deleted:
        typer.echo(key)
    typer.echo(f"{len(deleted):,} batches {'would be' if dry_run else 'were'} deleted")


def repartition(
    partitions: Annotated[int, typer.Argument(metavar="N", min=1, help="The new number of partitions.")],
    *,
    store: StoreUrl,
    manifest: ManifestPath = MANIFEST,
) -> None:
    """Change the number of partitions of a queue. Everything in it must be acknowledged.

    First stop the ingestors and let the collectors finish; ingestors are refused meanwhile. Then start the ingestors
    with the new number; collectors notice it by themselves. If it is interrupted, run it again.

    Example: lakehead queue repartition 8 --store s3://bucket/lake
    """
    before = asyncio.run(_repartition(partitions, manifest, deps_for(store)))
    typer.echo(f"The queue {printable(manifest)} has {partitions} partitions; it had {before}")


def purge(
    *,
    store: StoreUrl,
    manifest: ManifestPath = MANIFEST,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove everything from a queue that is not acknowledged. It cannot be undone.

    Collectors that hold a batch are fenced, and have to be restarted. What is ingested meanwhile stays, and so does the
    quarantine.

    Example: lakehead queue purge --store file:///tmp/lake --dry-run
    """
    operation = Purge(manifest_path=manifest, deps=deps_for(store))
    if not dry_run and not yes:
        waiting = asyncio.run(_purge(operation, dry_run=True))
        if not sys.stdin.isatty():
            raise Misconfigured(
                f"{waiting:,} locations are waiting in {manifest}, and there is no terminal to ask for confirmation. "
                "Nothing was removed; pass --yes to remove them."
            )
        typer.confirm(f"Remove the {waiting:,} locations waiting in {printable(manifest)}, for good?", abort=True)
    purged = asyncio.run(_purge(operation, dry_run=dry_run))
    if as_json:
        print_json({"locations": purged, "purged": not dry_run})
    else:
        typer.echo(f"{purged:,} locations {'would be' if dry_run else 'were'} removed")


async def _repartition(partitions: int, manifest: str, deps: BufferDeps) -> int:
    """Change the number of partitions; return the number before."""
    before = (await owned_root_manifest(manifest, deps)).partitions or 1
    await Repartition(manifest_path=manifest, deps=deps).run(partitions)
    return before


async def _purge(operation: Purge, *, dry_run: bool) -> int:
    await owned_root_manifest(operation.manifest_path, operation.deps)
    return await operation.run(dry_run=dry_run)


async def _delete_orphans(manifest: str, deps: BufferDeps, grace: timedelta, *, dry_run: bool) -> list[str]:
    partitions = [readable_producer(each) for each in await inspect_partitions(manifest, deps)]
    prefix = next((each.data_path_prefix for each in partitions if each.data_path_prefix is not None), None)
    if prefix is None:
        raise Misconfigured(
            f"{manifest} does not have the prefix of the queue's batches, so no ingestor of Lakehead has written it. "
            "Other writers cannot protect their batches from being deleted. Nothing was deleted."
        )
    orphans = OrphanGc(
        data_path_prefix=prefix,
        manifest_path=manifest,
        deps=deps,
        grace_seconds=grace.total_seconds(),
    )
    return await orphans.run(dry_run=dry_run)
