"""`lakehead queue quarantine`: list quarantined batches, and queue them again."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.inspection import QuarantineNotes, inspect_partitions, quarantine_notes
from lakehead.buffer.layout import ManifestKeys, object_key
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.producer import Producer
from lakehead.buffer.quarantine import Quarantine
from lakehead.errors import Misconfigured
from lakehead.run.queue_options import (
    MANIFEST,
    AsJson,
    ManifestPath,
    StoreUrl,
    deps_for,
    exit_with_errors,
    owned_root_manifest,
)
from lakehead.run.queue_output import print_json, print_table, printable, utc_time

quarantine = typer.Typer(no_args_is_help=True, help="List quarantined batches, and queue them again.")


@quarantine.callback()
def quarantine_commands() -> None:
    """List batches that collectors have moved to quarantine, usually because they could not be read."""


@quarantine.command("list")
def list_(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Show quarantined batches: when, why, where the copy is, and whether it is queued again. Nothing is written.

    Example: lakehead queue quarantine list --store file:///tmp/lake
    """
    notes, queued = asyncio.run(_notes_and_queued_keys(manifest, deps_for(store)))
    listed = [(note, any(key in queued for key in note.keys)) for note in notes.readable.values()]
    if as_json:
        print_json({"set_aside": [{**msgspec.to_builtins(note), "queued_again": again} for note, again in listed]})
    else:
        rows = [
            (
                note.location,
                utc_time(note.at_ms),
                " ".join(note.keys) or "missing",
                "yes" if again else "no",
                note.reason,
            )
            for note, again in listed
        ]
        print_table(("LOCATION", "QUARANTINED", "COPY", "QUEUED AGAIN", "REASON"), rows)
        typer.echo(f"{len(rows):,} batches in quarantine")
    exit_with_errors(list(notes.unreadable.values()))


@quarantine.command()
def replay(
    location: Annotated[
        list[str], typer.Argument(metavar="LOCATION…", help="The locations to replay, as quarantine list shows them.")
    ],
    *,
    store: StoreUrl,
    manifest: ManifestPath = MANIFEST,
    data_prefix: Annotated[
        str | None,
        typer.Option(metavar="PREFIX", help="The prefix of the queue's batches, if its manifest does not have it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Queue quarantined batches again, at the end of the first partition, for example after a reader was updated.

    Each call queues them once more, also if they were queued before. The copies and notes stay in quarantine.

    Example: lakehead queue quarantine replay ingest/f47ac10b-58cc-4372-a567-0e02b2c3d479.batch --store file:///tmp/lake
    """
    queued: dict[str, str] = {}
    try:
        asyncio.run(_replay(location, manifest, data_prefix, deps_for(store), queued))
    finally:  # print what was queued even if the next one fails
        if as_json:
            print_json({"queued": queued})
        else:
            for each, entry in queued.items():
                typer.echo(printable(f"{each} is queued again as {entry}"))


async def _replay(
    locations: Sequence[str], manifest: str, data_prefix: str | None, deps: BufferDeps, queued: dict[str, str]
) -> None:
    root = await owned_root_manifest(manifest, deps, data_path_prefix=data_prefix)
    prefix = data_prefix or root.data_path_prefix
    if prefix is None:
        raise Misconfigured(f"{manifest} does not have the prefix of the queue's batches. Pass it with --data-prefix.")
    producer = Producer(
        ManifestPair.of(ManifestKeys.of(manifest), deps).producer,
        deps,
        data_path_prefix=prefix,
        partitions=root.partitions or 1,
    )
    for location in dict.fromkeys(locations):
        queued[location] = await Quarantine(manifest, deps).replay(location, producer)


async def _notes_and_queued_keys(manifest: str, deps: BufferDeps) -> tuple[QuarantineNotes, set[str]]:
    """Return the quarantine notes, and the keys of all objects that wait in the queue."""
    partitions = await inspect_partitions(manifest, deps)
    waiting = {object_key(location) for each in partitions for location in each.waiting}
    return await quarantine_notes(manifest, deps), waiting
