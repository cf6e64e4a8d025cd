"""The files that a table's metadata refers to, by their normalized names."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import Snapshot

from lakehead.errors import LakeheadError, Unavailable
from lakehead.maintain.places import THREADS, place

Read = TypeVar("Read")


class Incomplete(LakeheadError):
    """A table's metadata refers to a file that does not exist, so the files that this one refers to are unknown."""


class References:
    """Reads what a table refers to. Manifests never change, so each is read once and cached."""

    def __init__(self) -> None:
        self._manifests: dict[str, tuple[ManifestFile, ...]] = {}
        self._files: dict[str, tuple[str, ...]] = {}

    def of(self, table: Iceberg) -> set[str]:
        """All files: metadata files, statistics, and those of every snapshot. Raises `Incomplete`."""
        metadata = table.metadata
        named = [
            table.metadata_location,
            *(entry.metadata_file for entry in metadata.metadata_log),
            *(statistics.statistics_path for statistics in metadata.statistics),
            *(statistics.statistics_path for statistics in metadata.partition_statistics),
        ]
        return {place(uri) for uri in named} | self.held(table, metadata.snapshots)

    def held(self, table: Iceberg, snapshots: Iterable[Snapshot]) -> set[str]:
        """The files of these snapshots: manifest lists, manifests, data and delete files. Raises `Incomplete`."""
        lists = list(dict.fromkeys(snapshot.manifest_list for snapshot in snapshots))
        with ThreadPoolExecutor(THREADS) as threads:
            new = [uri for uri in lists if uri not in self._manifests]
            read = threads.map(lambda uri: read_or_explain(uri, lambda: tuple(_manifests(table.io, uri))), new)
            self._manifests.update(zip(new, read, strict=True))
            manifests = {manifest.manifest_path: manifest for uri in lists for manifest in self._manifests[uri]}
            unread = [manifest for path, manifest in manifests.items() if path not in self._files]
            files = threads.map(lambda one: read_or_explain(one.manifest_path, lambda: _files(table.io, one)), unread)
            self._files.update(zip((one.manifest_path for one in unread), files, strict=True))
        held = {place(uri) for uri in (*lists, *manifests)}
        for path in manifests:
            held.update(self._files[path])
        return held


def _manifests(io: FileIO, manifest_list: str) -> list[ManifestFile]:
    return list(read_manifest_list(io.new_input(manifest_list)))


def _files(io: FileIO, manifest: ManifestFile) -> tuple[str, ...]:
    entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
    return tuple(place(entry.data_file.file_path) for entry in entries)


def read_or_explain(uri: str, read: Callable[[], Read]) -> Read:
    """Read a file of a table's metadata. Raises `Incomplete` if it is missing, `Unavailable` if it cannot be read."""
    try:
        return read()
    except FileNotFoundError:
        raise Incomplete(
            f"The table refers to {uri}, which does not exist. Nothing was removed. If snapshots were expired just "
            "now, run it again; if the file was lost, restore it from a backup."
        ) from None
    except OSError as error:
        raise Unavailable(f"The file {uri} cannot be read ({error}). Nothing was removed.") from error
