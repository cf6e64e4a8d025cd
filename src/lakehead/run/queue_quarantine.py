"""`lakehead queue quarantine`: what collectors have set aside, and queueing it once more."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from lakehead.buffer.inspection import Notes, look, notes
from lakehead.buffer.layout import Pair, object_key
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.means import Means
from lakehead.buffer.producer import Producer
from lakehead.buffer.quarantine import Quarantine
from lakehead.errors import Misconfigured
from lakehead.run.queue_options import MANIFEST, AsJson, ManifestPath, StoreUrl, fail, means_of, own_root
from lakehead.run.queue_tables import moment, printable, say_json, say_table

quarantine = typer.Typer(no_args_is_help=True, help="Look after batches that could not be read.")


@quarantine.callback()
def set_aside() -> None:
    """Look after batches that collectors have set aside because they could not be read."""


@quarantine.command("list")
def list_(*, store: StoreUrl, manifest: ManifestPath = MANIFEST, as_json: AsJson = False) -> None:
    """Show what was set aside: when, why, where its bytes are, and whether it is queued again. Nothing is written.

    Example: lakehead queue quarantine list --store file:///tmp/lake
    """
    aside, queued = asyncio.run(_set_aside(manifest, means_of(store)))
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
    fail(list(aside.unreadable.values()))


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
        asyncio.run(_replay(location, manifest, data_prefix, means_of(store), queued))
    finally:  # what is queued is told also where the next one fails
        if as_json:
            say_json({"queued": queued})
        else:
            for each, entry in queued.items():
                typer.echo(printable(f"{each} is queued again as {entry}"))


async def _replay(
    chosen: Sequence[str], manifest: str, data_prefix: str | None, means: Means, queued: dict[str, str]
) -> None:
    root = await own_root(manifest, means, data_path_prefix=data_prefix)
    told = root.data_path_prefix
    if told is None and data_prefix is None:
        raise Misconfigured(f"{manifest} does not say where the batches of its queue lie. Say it with --data-prefix.")
    producer = Producer(
        PairFiles.of(Pair.of(manifest), means).producer,
        means,
        data_path_prefix=data_prefix or told or "",
        partitions=root.partitions or 1,
    )
    for location in dict.fromkeys(chosen):
        queued[location] = await Quarantine(manifest, means).replay(location, producer)


async def _set_aside(manifest: str, means: Means) -> tuple[Notes, set[str]]:
    """What is set aside, and the keys of all objects that wait in the queue."""
    partitions = await look(manifest, means)
    return await notes(manifest, means), {object_key(each) for found in partitions for each in found.waiting}
