"""What the commands of `lakehead queue` have in common: which queue, and how it is opened."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from lakehead.buffer.config import ObjectStoreConfig
from lakehead.buffer.inspection import Partition, look
from lakehead.buffer.means import Means
from lakehead.buffer.ownership import PrefixOwner
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError
from lakehead.run.environment import store_settings
from lakehead.run.queue_tables import printable
from lakehead.wire.errors import Unreadable
from lakehead.wire.queue_manifests import ProducerManifest

MANIFEST = "ingest/manifest.json"

StoreUrl: TypeAlias = Annotated[
    str,
    typer.Option("--store", metavar="URL", help="The store of the queue: file:///folder, s3://…, gs://… or az://…"),
]
ManifestPath: TypeAlias = Annotated[
    str, typer.Option("--manifest", metavar="PATH", help="The key of its producer manifest.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document, for machines.")]


def readable(partition: Partition) -> ProducerManifest:
    """The producer manifest of a partition. Raises `Unreadable` where it cannot be read."""
    if partition.producer is None:
        raise Unreadable(partition.unreadable[partition.pair.producer])
    return partition.producer


async def own_root(manifest: str, means: Means, *, data_path_prefix: str | None = None) -> ProducerManifest:
    """The producer manifest of a queue's first partition, for whoever is going to change the queue.

    Raises `Misconfigured` where there is no queue, or where its batches, which lie below `data_path_prefix` if the
    manifest does not say where, are those of another queue: it may be a partition, taken for a queue.
    """
    root = readable((await look(manifest, means))[0])
    prefix = data_path_prefix if root.data_path_prefix is None else root.data_path_prefix
    if prefix is not None:
        await PrefixOwner(prefix, manifest, means).check_stored()
    return root


def means_of(url: str) -> Means:
    """What the buffer works with for the store at a URL."""
    where = ObjectStoreConfig(url=url, settings=store_settings(url))
    return where.means(SystemClock())


def fail(sentences: Sequence[str]) -> None:
    """End with all of them, if there are any."""
    for sentence in sentences[:-1]:
        typer.echo(f"lakehead: {printable(sentence)}", err=True)
    for sentence in sentences[-1:]:
        raise LakeheadError(printable(sentence))
