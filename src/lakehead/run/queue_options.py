"""What the commands of `lakehead queue` share: options, and opening the queue."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from lakehead.buffer.config import ObjectStoreConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.inspection import PartitionStatus, inspect_partitions
from lakehead.buffer.ownership import PrefixOwner
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError
from lakehead.run.environment import store_settings
from lakehead.run.queue_output import printable
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
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def readable_producer(partition: PartitionStatus) -> ProducerManifest:
    """Return the producer manifest of a partition. Raises `Unreadable` if it cannot be read."""
    if partition.producer is None:
        raise Unreadable(partition.unreadable[partition.keys.producer])
    return partition.producer


async def owned_root_manifest(
    manifest: str, deps: BufferDeps, *, data_path_prefix: str | None = None
) -> ProducerManifest:
    """Return the producer manifest of a queue's first partition, for commands that change the queue.

    Raises `Misconfigured` if there is no queue, or if its prefix (`data_path_prefix` if the manifest has none) belongs
    to another queue, as it does when `manifest` is that of a partition.
    """
    root = readable_producer((await inspect_partitions(manifest, deps))[0])
    prefix = data_path_prefix if root.data_path_prefix is None else root.data_path_prefix
    if prefix is not None:
        await PrefixOwner(prefix, manifest, deps).check_stored()
    return root


def deps_for(url: str) -> BufferDeps:
    """Return what the buffer depends on, for the store at a URL."""
    config = ObjectStoreConfig(url=url, settings=store_settings(url))
    return config.deps(SystemClock())


def exit_with_errors(messages: Sequence[str]) -> None:
    """Print all messages to standard error and end with exit code 1, if there are any."""
    for message in messages[:-1]:
        typer.echo(f"lakehead: {printable(message)}", err=True)
    for message in messages[-1:]:
        raise LakeheadError(printable(message))
