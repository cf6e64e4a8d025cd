"""`lakehead queue`: what stands in a queue, what is wrong with it, and what has to be done by hand."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, TypeAlias

import msgspec
import typer

from lakehead.buffer.config import ObjectStoreConfig
from lakehead.buffer.inspection import Notes, Partition, lags, look, notes
from lakehead.buffer.layout import object_key
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.means import Means
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.partitions import Repartition
from lakehead.buffer.producer import APPENDS, Producer
from lakehead.buffer.purge import Purge
from lakehead.buffer.quarantine import Quarantine
from lakehead.buffer.verification import verify as verify_queue
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.run.environment import store_settings
from lakehead.run.queue_tables import (
    duration,
    headline,
    locations,
    moment,
    printable,
    say_json,
    say_table,
    stored,
)
from lakehead.run.tables import DryRun, age
from lakehead.wire.errors import Unreadable
from lakehead.wire.queue_manifests import ProducerManifest

MANIFEST = "ingest/manifest.json"
SOMETHING_IS_WRONG = 1

app = typer.Typer(no_args_is_help=True, help="Look into a queue of the buffer.")
quarantine = typer.Typer(no_args_is_help=True, help="Look after batches that could not be read.")
app.add_typer(quarantine, name="quarantine")

StoreUrl: TypeAlias = Annotated[
    str,
    typer.Option("--store", metavar="URL", help="The store of the queue: file:///folder, s3://…, gs://… or az://…"),
]
ManifestPath: TypeAlias = Annotated[
    str, typer.Option("--manifest", metavar="PATH", help="The key of its producer manifest.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document, for machines.")]


@app.callback()
def queue() -> None:
    """Look into a queue of the buffer: all its partitions. Ingestors and collectors may go on meanwhile.

    Credentials, endpoint and region of the store come from the same variables as for lakehead doctor.
    """


@quarantine.callback()
def set_aside() -> None:
    """Look after batches that collectors have set aside because they could not be read."""


@app.command()
def dump(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Show every location of a queue: pending, claimed (by whom, and how long ago it was refreshed) or done.

    With --json both manifests of each partition are told as they are stored. Nothing is written. The exit code is 1
    where a manifest cannot be read; the others are shown.

    Example: lakehead queue dump --store file:///tmp/lake
    """
    means = _means(store)
    partitions = asyncio.run(look(manifest, means))
    if as_json:
        say_json({"partitions": [_stored(each) for each in partitions]})
    else:
        now_ms = means.clock.now_ns() // 1_000_000
        for each in partitions:
            typer.echo(headline(each, now_ms))
            say_table(("LOCATION", "STATE", "OWNER", "REFRESHED"), locations(each, now_ms))
    _fail([why for each in partitions for why in each.unreadable.values()])


@app.command()
def lag(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Show how far readers are behind: locations pending, waiting (not acknowledged yet), claimed and done.

    Beside them the bytes of the batches that wait, and the age of the first of them: when it was stored, by the
    store's clock. Nothing is written.

    Example: lakehead queue lag --store s3://bucket/lake --json
    """
    found = asyncio.run(lags(manifest, _means(store)))
    if as_json:
        say_json({"partitions": [asdict(each) for each in found]})
        return
    rows = [
        (
            each.manifest,
            f"{each.pending:,}",
            f"{each.waiting:,}",
            f"{each.claimed:,}",
            f"{each.done:,}",
            f"{each.waiting_bytes:,}",
            "" if each.oldest_seconds is None else duration(each.oldest_seconds),
        )
        for each in found
    ]
    say_table(("MANIFEST", "PENDING", "WAITING", "CLAIMED", "DONE", "BYTES", "OLDEST"), rows)


@app.command()
def verify(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Check what must hold, and tell each fault in a sentence. The exit code is 1 where there is one.

    What is pending is in the store; no location stands twice; claims name what is pending or done, and have the owner
    that they must have; all partitions agree on their number and on the prefix of the batches; manifests and notes
    can be read; what was set aside is there. Nothing is written, whatever is found.

    Example: lakehead queue verify --store file:///tmp/lake --manifest ingest/manifest.json
    """
    verdict = asyncio.run(verify_queue(manifest, _means(store)))
    if as_json:
        say_json(asdict(verdict))
    else:
        for fault in verdict.faults:
            typer.echo(printable(fault.sentence))
        typer.echo(
            f"{len(verdict.faults) or 'no'} {'fault' if len(verdict.faults) == 1 else 'faults'}: "
            f"{verdict.partitions:,} partitions, {verdict.waiting:,} locations wait, {verdict.set_aside:,} are set "
            f"aside, {verdict.unqueued:,} batches ({verdict.unqueued_bytes:,} bytes) are stored and not queued"
        )
    if verdict.faults:
        raise typer.Exit(SOMETHING_IS_WRONG)


@app.command()
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
    means = _means(store)
    deleted = asyncio.run(_collect(manifest, means, grace, dry_run=dry_run))
    if as_json:
        say_json({"orphans": deleted, "deleted": not dry_run})
        return
    for key in deleted:
        typer.echo(key)
    typer.echo(f"{len(deleted):,} batches {'would be' if dry_run else 'are'} deleted")


@app.command()
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
    means = _means(store)
    was = asyncio.run(_repartition(partitions, manifest, means))
    typer.echo(f"The queue {printable(manifest)} has {partitions} partitions; it had {was}")


@app.command()
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
    means = _means(store)
    emptying = Purge(manifest_path=manifest, means=means, backoff=APPENDS)
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


@quarantine.command("list")
def list_(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Show what was set aside: when, why, where its bytes are, and whether it is queued again. Nothing is written.

    Example: lakehead queue quarantine list --store file:///tmp/lake
    """
    aside, queued = asyncio.run(_set_aside(manifest, _means(store)))
    found = [(note, any(key in queued for key in note.keys)) for note in aside.read.values()]
    if as_json:
        say_json({"set_aside": [{**msgspec.to_builtins(note), "queued_again": again} for note, again in found]})
    else:
        rows = [
            (
                note.location,
                moment(note.at_ms),
                " ".join(note.keys) or "gone",
                "yes" if again else "no",
                note.reason,
            )
            for note, again in found
        ]
        say_table(("LOCATION", "SET ASIDE", "BYTES AT", "QUEUED AGAIN", "REASON"), rows)
        typer.echo(f"{len(rows):,} are set aside")
    _fail(list(aside.unreadable.values()))


@quarantine.command()
def replay(
    location: Annotated[
        list[str], typer.Argument(metavar="LOCATION…", help="What was set aside, as quarantine list shows it.")
    ],
    *,
    store: StoreUrl,
    manifest: ManifestPath = MANIFEST,
    data_prefix: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="Where the batches of the queue lie, if its manifest does not say so."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Queue what was set aside once more, at the end of the first partition: when readers can read it now.

    Each call queues it once more, also when it was queued before. The copy and its note stay.

    Example: lakehead queue quarantine replay ingest/f47ac10b-58cc-4372-a567-0e02b2c3d479.batch --store file:///tmp/lake
    """
    queued: dict[str, str] = {}
    try:
        asyncio.run(_replay(location, manifest, data_prefix, _means(store), queued))
    finally:  # what is queued is told also where the next one fails
        if as_json:
            say_json({"queued": queued})
        else:
            for each, entry in queued.items():
                typer.echo(printable(f"{each} is queued again as {entry}"))


async def _replay(
    chosen: Sequence[str], manifest: str, data_prefix: str | None, means: Means, queued: dict[str, str]
) -> None:
    root = (await look(manifest, means))[0]
    told = _readable(root).data_path_prefix
    if told is None and data_prefix is None:
        raise Misconfigured(f"{manifest} does not say where the batches of its queue lie. Say it with --data-prefix.")
    producer = Producer(
        PairFiles.of(root.pair, means).producer,
        means,
        data_path_prefix=data_prefix or told or "",
        partitions=_readable(root).partitions or 1,
    )
    for location in dict.fromkeys(chosen):
        queued[location] = await Quarantine(manifest, means).replay(location, producer)


async def _repartition(partitions: int, manifest: str, means: Means) -> int:
    """Change the number of partitions; what it was."""
    was = _readable((await look(manifest, means))[0]).partitions or 1
    await Repartition(manifest_path=manifest, means=means, backoff=APPENDS).run(partitions)
    return was


async def _purge(emptying: Purge, *, dry_run: bool) -> int:
    _readable((await look(emptying.manifest_path, emptying.means))[0])
    return await emptying.run(dry_run=dry_run)


async def _collect(manifest: str, means: Means, grace: timedelta, *, dry_run: bool) -> list[str]:
    root = (await look(manifest, means))[0]
    prefix = _readable(root).data_path_prefix
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


async def _set_aside(manifest: str, means: Means) -> tuple[Notes, set[str]]:
    """What is set aside, and the keys of all objects that wait in the queue."""
    partitions = await look(manifest, means)
    return await notes(manifest, means), {object_key(each) for found in partitions for each in found.waiting}


def _readable(partition: Partition) -> ProducerManifest:
    if partition.producer is None:
        raise Unreadable(partition.unreadable[partition.pair.producer])
    return partition.producer


def _means(url: str) -> Means:
    where = ObjectStoreConfig(url=url, settings=store_settings(url))
    return where.means(SystemClock())


def _fail(sentences: Sequence[str]) -> None:
    """End with all of them, if there are any."""
    for sentence in sentences[:-1]:
        typer.echo(f"lakehead: {printable(sentence)}", err=True)
    for sentence in sentences[-1:]:
        raise LakeheadError(printable(sentence))


def _stored(partition: Partition) -> dict[str, object]:
    return {
        "partition": partition.number,
        "producer_manifest": partition.pair.producer,
        "producer": stored(partition.producer),
        "consumer_manifest": partition.pair.consumer,
        "consumer": stored(partition.consumer),
    }
