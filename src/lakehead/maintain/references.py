"""The files that a table's metadata refers to, by their normalized names."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import Snapshot

from lakehead.maintain.manifests import Manifest, live_files_of, manifests_of
from lakehead.maintain.places import THREADS, place


class References:
    """Reads what a table refers to. Manifests never change, so each is read once and cached."""

    def __init__(self) -> None:
        self._manifests: dict[str, tuple[Manifest, ...]] = {}
        self._files: dict[Manifest, tuple[str, ...]] = {}

    def of(self, table: Iceberg) -> set[str]:
        """All files: metadata files, statistics, and those of every snapshot.

        Raises `Incomplete` if one of the metadata is missing, `Unreadable` if it is damaged, and `Unavailable`.
        """
        metadata = table.metadata
        named = [
            table.metadata_location,
            *(entry.metadata_file for entry in metadata.metadata_log),
            *(statistics.statistics_path for statistics in metadata.statistics),
            *(statistics.statistics_path for statistics in metadata.partition_statistics),
        ]
        return {place(uri) for uri in named} | self.held(table, metadata.snapshots)

    def held(self, table: Iceberg, snapshots: Iterable[Snapshot]) -> set[str]:
        """The files of these snapshots: manifest lists, manifests, data and delete files. Raises as `of` does."""
        lists = list(dict.fromkeys(snapshot.manifest_list for snapshot in snapshots))
        with ThreadPoolExecutor(THREADS) as threads:
            new = [uri for uri in lists if uri not in self._manifests]
            self._manifests.update(zip(new, threads.map(lambda uri: manifests_of(table.io, uri), new), strict=True))
            manifests = {manifest for uri in lists for manifest in self._manifests[uri]}
            unread = [manifest for manifest in manifests if manifest not in self._files]
            files = threads.map(lambda one: tuple(map(place, live_files_of(table.io, one))), unread)
            self._files.update(zip(unread, files, strict=True))
        held = {place(uri) for uri in (*lists, *(manifest.uri for manifest in manifests))}
        for manifest in manifests:
            held.update(self._files[manifest])
        return held
