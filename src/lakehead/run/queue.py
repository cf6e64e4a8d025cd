"""`lakehead queue`: show and verify a queue of the buffer, and change it."""

import asyncio
from dataclasses import asdict

import typer

from lakehead.buffer.inspection import PartitionStatus, inspect_partitions, partition_lags
from lakehead.buffer.verification import verify as verify_queue
from lakehead.run.queue_changes import gc, purge, repartition
from lakehead.run.queue_options import MANIFEST, AsJson, ManifestPath, StoreUrl, deps_for, exit_with_errors
from lakehead.run.queue_output import (
    as_stored,
    duration,
    location_rows,
    partition_summary,
    print_json,
    print_table,
    printable,
)
from lakehead.run.queue_quarantine import quarantine

FAULTS_FOUND = 1

app = typer.Typer(no_args_is_help=True, help="Show, verify and change a queue of the buffer.")


@app.callback()
def queue() -> None:
    """Show, verify and change a queue of the buffer. Ingestors and collectors may keep running.

    Credentials, endpoint and region of the store come from the same variables as for lakehead doctor.
    """


@app.command()
def dump(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Show every location of a queue: pending, claimed (by whom, and when last refreshed) or done.

    With --json, print both manifests of each partition as they are stored. Nothing is written. The exit code is 1 if a
    manifest cannot be read; the others are shown.

    Example: lakehead queue dump --store file:///tmp/lake
    """
    deps = deps_for(store)
    partitions = asyncio.run(inspect_partitions(manifest, deps))
    if as_json:
        print_json({"partitions": [_partition_json(each) for each in partitions]})
    else:
        now_ms = deps.clock.now_ns() // 1_000_000
        for each in partitions:
            typer.echo(partition_summary(each, now_ms))
            print_table(("LOCATION", "STATE", "OWNER", "REFRESHED"), location_rows(each, now_ms))
    exit_with_errors([error for each in partitions for error in each.unreadable.values()])


@app.command()
def lag(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Show how far collectors are behind: locations pending, waiting (not acknowledged yet), claimed and done.

    Also the bytes of the waiting batches, and the age of the first of them by the store's clock. Nothing is written.

    Example: lakehead queue lag --store s3://bucket/lake --json
    """
    partitions = asyncio.run(partition_lags(manifest, deps_for(store)))
    if as_json:
        print_json({"partitions": [asdict(each) for each in partitions]})
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
        for each in partitions
    ]
    print_table(("MANIFEST", "PENDING", "WAITING", "CLAIMED", "DONE", "BYTES", "OLDEST"), rows)


@app.command()
def verify(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Check the consistency of a queue, and explain each fault. The exit code is 1 if there is one.

    Pending batches are in the store; no location is duplicated; claims are on pending or done locations, and have the
    right owner; all partitions agree on their number and on the prefix of the batches; manifests and quarantine notes
    can be read; quarantined batches are in the store. Nothing is written.

    Example: lakehead queue verify --store file:///tmp/lake --manifest ingest/manifest.json
    """
    report = asyncio.run(verify_queue(manifest, deps_for(store)))
    if as_json:
        print_json(asdict(report))
    else:
        for fault in report.faults:
            typer.echo(printable(fault.sentence))
        typer.echo(
            f"{len(report.faults) or 'no'} {'fault' if len(report.faults) == 1 else 'faults'}: "
            f"{report.partitions:,} partitions, {report.waiting:,} locations waiting, {report.set_aside:,} in "
            f"quarantine, {report.unqueued:,} batches ({report.unqueued_bytes:,} bytes) stored and not queued"
        )
    if report.faults:
        raise typer.Exit(FAULTS_FOUND)


for change in (gc, repartition, purge):
    app.command()(change)
app.add_typer(quarantine, name="quarantine")


def _partition_json(partition: PartitionStatus) -> dict[str, object]:
    return {
        "partition": partition.number,
        "producer_manifest": partition.keys.producer,
        "producer": as_stored(partition.producer),
        "consumer_manifest": partition.keys.consumer,
        "consumer": as_stored(partition.consumer),
    }
