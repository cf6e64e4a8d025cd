"""Finds the files that only some of a table's snapshots need.

A snapshot needs its manifest list, the manifests in that list, and the data and delete files that these have as added
or existing; nothing else is read to answer a query. So a file may go when it is needed by a snapshot that goes and by
none that stays. Both sides are read from the files themselves, of every snapshot of the metadata: whether a branch, a
tag or nothing points at it, whether it was staged, cherry-picked (which puts one data file into two manifests, with
different sequence numbers), rolled back or rewritten. No conclusion is drawn from the order of snapshots, from sequence
numbers or from what an entry says was deleted.

That stays cheap because manifest lists and manifests never change: of those that stay, each is read once. Of a manifest
only one number for each file is remembered.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.io import FileIO
from pyiceberg.table import Table as Iceberg

from lakehead.lake.landing import SnapshotId
from lakehead.maintain.manifests import Manifest, live_files_of, manifests_of
from lakehead.maintain.places import THREADS, place


class SnapshotFiles:
    """Finds files of one table. Keep it for the next time: it remembers what it has read of snapshots that stay."""

    def __init__(self) -> None:
        self._manifests: dict[str, tuple[Manifest, ...]] = {}
        """The manifests of each manifest list."""
        self._live: dict[Manifest, array[int]] = {}
        """The hashes of the normalized names of a manifest's live files."""

    def only_of(self, table: Iceberg, going: Collection[SnapshotId]) -> list[str]:
        """The files that these snapshots need and no other snapshot of the table does.

        Reads nothing but files of the table's metadata. Raises `Incomplete` if one of them is missing, `Unreadable` if
        one is damaged, and `Unavailable` if the store does not answer.
        """
        going, metadata = set(going), table.metadata
        theirs = [one.manifest_list for one in metadata.snapshots if one.snapshot_id in going]
        others = [one.manifest_list for one in metadata.snapshots if one.snapshot_id not in going]
        with ThreadPoolExecutor(THREADS) as threads:
            self._read_lists(table.io, threads, [*theirs, *others])
            kept = {place(one.uri) for one in self._listed(others)}
            manifests = [one for one in self._listed(theirs) if place(one.uri) not in kept]
            read = threads.map(lambda one: live_files_of(table.io, one), manifests)
            files = {file for some in read for file in some}
        every = [*metadata.statistics, *metadata.partition_statistics]
        statistics = {one.statistics_path for one in every if one.snapshot_id in going}
        return self.not_needed(table, [*files, *statistics, *(one.uri for one in manifests), *theirs], going)

    def not_needed(self, table: Iceberg, files: Sequence[str], without: Collection[SnapshotId] = ()) -> list[str]:
        """Those of the files that no snapshot of the table needs, apart from the snapshots `without`.

        Two files whose names have the same hash keep each other. Raises as `only_of` does.
        """
        metadata = table.metadata
        lists = [one.manifest_list for one in metadata.snapshots if one.snapshot_id not in without]
        every = [*metadata.statistics, *metadata.partition_statistics]
        left = {hash(place(uri)) for uri in files}
        with ThreadPoolExecutor(THREADS) as threads:
            self._read_lists(table.io, threads, lists)
            manifests = self._listed(lists)
            statistics = (one.statistics_path for one in every if one.snapshot_id not in without)
            named = (*lists, *(one.uri for one in manifests), *statistics)
            left.difference_update(hash(place(uri)) for uri in named)
            for live in self._live_of(table.io, threads, manifests):
                left.difference_update(live)
        self._live = {one: live for one, live in self._live.items() if one in manifests}
        self._manifests = {uri: self._manifests[uri] for uri in lists}
        return [uri for uri in files if hash(place(uri)) in left]

    def _read_lists(self, io: FileIO, threads: ThreadPoolExecutor, lists: Iterable[str]) -> None:
        new = [uri for uri in lists if uri not in self._manifests]
        self._manifests.update(zip(new, threads.map(lambda uri: manifests_of(io, uri), new), strict=True))

    def _listed(self, lists: Iterable[str]) -> set[Manifest]:
        return {manifest for uri in lists for manifest in self._manifests[uri]}

    def _live_of(
        self, io: FileIO, threads: ThreadPoolExecutor, manifests: Collection[Manifest]
    ) -> Iterator["array[int]"]:
        yield from (self._live[one] for one in manifests if one in self._live)
        new = [one for one in manifests if one not in self._live]
        for one, live in zip(new, threads.map(lambda one: _hashes(io, one), new), strict=True):
            self._live[one] = live
            yield live


def _hashes(io: FileIO, manifest: Manifest) -> "array[int]":
    return array("q", (hash(place(uri)) for uri in live_files_of(io, manifest)))
