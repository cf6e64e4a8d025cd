"""`lakehead queue`: what stands in a queue, what is wrong with it, and what has to be done by hand."""

import asyncio
from dataclasses import asdict

import typer

from lakehead.buffer.inspection import Partition, lags, look
from lakehead.buffer.verification import verify as verify_queue
from lakehead.run.queue_changes import gc, purge, repartition
from lakehead.run.queue_options import MANIFEST, AsJson, ManifestPath, StoreUrl, fail, means_of
from lakehead.run.queue_quarantine import quarantine
from lakehead.run.queue_tables import (
    duration,
    headline,
    locations,
    printable,
    say_json,
    say_table,
    stored,
)

SOMETHING_IS_WRONG = 1

app = typer.Typer(no_args_is_help=True, help="Look into a queue of the buffer, and change it.")


@app.callback()
def queue() -> None:
    """Look into a queue of the buffer, all its partitions, and change it. Ingestors and collectors may go on meanwhile.

    Credentials, endpoint and region of the store come from the same variables as for lakehead doctor.
    """


@app.command()
def dump(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Show every location of a queue: pending, claimed (by whom, and how long ago it was refreshed) or done.

    With --json both manifests of each partition are told as they are stored. Nothing is written. The exit code is 1
    where a manifest cannot be read; the others are shown.

    Example: lakehead queue dump --store file:///tmp/lake
    """
    means = means_of(store)
    partitions = asyncio.run(look(manifest, means))
    if as_json:
        say_json({"partitions": [_stored(each) for each in partitions]})
    else:
        now_ms = means.clock.now_ns() // 1_000_000
        for each in partitions:
            typer.echo(headline(each, now_ms))
            say_table(("LOCATION", "STATE", "OWNER", "REFRESHED"), locations(each, now_ms))
    fail([why for each in partitions for why in each.unreadable.values()])


@app.command()
def lag(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Show how far readers are behind: locations pending, waiting (not acknowledged yet), claimed and done.

    Beside them the bytes of the batches that wait, and the age of the first of them: when it was stored, by the
    store's clock. Nothing is written.

    Example: lakehead queue lag --store s3://bucket/lake --json
    """
    found = asyncio.run(lags(manifest, means_of(store)))
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
    verdict = asyncio.run(verify_queue(manifest, means_of(store)))
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


for change in (gc, repartition, purge):
    app.command()(change)
app.add_typer(quarantine, name="quarantine")


def _stored(partition: Partition) -> dict[str, object]:
    return {
        "partition": partition.number,
        "producer_manifest": partition.pair.producer,
        "producer": stored(partition.producer),
        "consumer_manifest": partition.pair.consumer,
        "consumer": stored(partition.consumer),
    }
