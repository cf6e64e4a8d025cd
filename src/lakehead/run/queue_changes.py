"""`lakehead queue gc`, `repartition` and `purge`: what changes a queue."""

import asyncio
import sys
from datetime import timedelta
from typing import Annotated

import typer

from lakehead.buffer.inspection import look
from lakehead.buffer.means import Means
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.partitions import Repartition
from lakehead.buffer.producer import APPENDS
from lakehead.buffer.purge import Purge
from lakehead.errors import Misconfigured
from lakehead.run.queue_options import MANIFEST, AsJson, ManifestPath, StoreUrl, means_of, own_root, readable
from lakehead.run.queue_tables import printable, say_json
from lakehead.run.tables import DryRun, age


def gc(
    *,
    store: StoreUrl,
    manifest: ManifestPath = MANIFEST,
    grace: Annotated[
        timedelta, typer.Option(parser=age, metavar="AGE", help="What was stored later stays: 90m, 12h, 3d, …")
    ] = "24h",  # type: ignore[assignment] # typer parses a default as it parses what is typed
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Delete batches that were stored and never queued: what an ingestor leaves that dies in between.

    A batch that a slow ingestor may still queue is safe whatever the grace time: the ingestor finds out, and stores it
    again. Only batches below the prefix that the queue itself names are deleted.

    Example: lakehead queue gc --store file:///tmp/lake --grace 12h --dry-run
    """
    means = means_of(store)
    deleted = asyncio.run(_collect(manifest, means, grace, dry_run=dry_run))
    if as_json:
        say_json({"orphans": deleted, "deleted": not dry_run})
        return
    for key in deleted:
        typer.echo(key)
    typer.echo(f"{len(deleted):,} batches {'would be' if dry_run else 'are'} deleted")


def repartition(
    partitions: Annotated[int, typer.Argument(metavar="N", min=1, help="How many partitions the queue is to have.")],
    *,
    store: StoreUrl,
    manifest: ManifestPath = MANIFEST,
) -> None:
    """Change how many partitions a queue has, once everything in it is acknowledged.

    Stop the ingestors and let the collectors finish first; meanwhile ingestors are refused. Start the ingestors again
    with the new number; collectors find out by themselves. If it is interrupted, run it again.

    Example: lakehead queue repartition 8 --store s3://bucket/lake
    """
    means = means_of(store)
    was = asyncio.run(_repartition(partitions, manifest, means))
    typer.echo(f"The queue {printable(manifest)} has {partitions} partitions; it had {was}")


def purge(
    *,
    store: StoreUrl,
    manifest: ManifestPath = MANIFEST,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove everything that waits in a queue, for good: nobody will read it.

    Collectors that hold a batch are fenced, and have to be started again. What is ingested meanwhile stays, and so
    does what was set aside.

    Example: lakehead queue purge --store file:///tmp/lake --dry-run
    """
    means = means_of(store)
    emptying = Purge(manifest_path=manifest, means=means)
    if not dry_run and not yes:
        waiting = asyncio.run(_purge(emptying, dry_run=True))
        if not sys.stdin.isatty():
            raise Misconfigured(
                f"{waiting:,} locations wait in {manifest}, and nobody is there to be asked. Nothing was removed; say "
                "--yes to remove them."
            )
        typer.confirm(f"Remove the {waiting:,} locations that wait in {printable(manifest)}, for good?", abort=True)
    purged = asyncio.run(_purge(emptying, dry_run=dry_run))
    if as_json:
        say_json({"locations": purged, "purged": not dry_run})
    else:
        typer.echo(f"{purged:,} locations {'would be' if dry_run else 'are'} removed")


async def _repartition(partitions: int, manifest: str, means: Means) -> int:
    """Change the number of partitions; what it was."""
    was = (await own_root(manifest, means)).partitions or 1
    await Repartition(manifest_path=manifest, means=means).run(partitions)
    return was


async def _purge(emptying: Purge, *, dry_run: bool) -> int:
    await own_root(emptying.manifest_path, emptying.means)
    return await emptying.run(dry_run=dry_run)


async def _collect(manifest: str, means: Means, grace: timedelta, *, dry_run: bool) -> list[str]:
    partitions = [readable(each) for each in await look(manifest, means)]
    prefix = next((each.data_path_prefix for each in partitions if each.data_path_prefix is not None), None)
    if prefix is None:
        raise Misconfigured(
            f"{manifest} does not say where the batches of its queue lie, so none of our ingestors has written it, and "
            "others do not know how to keep their batches from being deleted. Nothing was deleted."
        )
    orphans = OrphanCollector(
        data_path_prefix=prefix,
        manifest_path=manifest,
        means=means,
        backoff=APPENDS,
        grace_seconds=grace.total_seconds(),
    )
    return await orphans.run(dry_run=dry_run)
