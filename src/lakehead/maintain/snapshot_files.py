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
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Iceberg
from pyiceberg.types import IntegerType, NestedField, StringType, StructType

from lakehead.lake.landing import SnapshotId
from lakehead.maintain.avro_fields import read_fields
from lakehead.maintain.places import THREADS, place
from lakehead.maintain.references import read_or_explain

# The few fields that are needed, by their ids in Iceberg's specification.
_LIST = Schema(NestedField(500, "manifest_path", StringType(), required=True))
_FILE = StructType(NestedField(100, "file_path", StringType(), required=True))
_MANIFEST = Schema(
    NestedField(0, "status", IntegerType(), required=True), NestedField(2, "data_file", _FILE, required=True)
)
_DELETED = ManifestEntryStatus.DELETED.value


class SnapshotFiles:
    """Finds files of one table. Keep it for the next time: it remembers what it has read of snapshots that stay."""

    def __init__(self) -> None:
        self._manifests: dict[str, tuple[str, ...]] = {}
        """The manifests of each manifest list."""
        self._live: dict[str, array[int]] = {}
        """The hashes of the normalized names of a manifest's live files."""

    def only_of(self, table: Iceberg, going: Collection[SnapshotId]) -> list[str]:
        """The files that these snapshots need and no other snapshot of the table does.

        Reads nothing but files of the table's metadata. Raises `Incomplete` if one of them is missing, and
        `Unavailable` if one cannot be read.
        """
        going, metadata = set(going), table.metadata
        theirs = [one.manifest_list for one in metadata.snapshots if one.snapshot_id in going]
        others = [one.manifest_list for one in metadata.snapshots if one.snapshot_id not in going]
        with ThreadPoolExecutor(THREADS) as threads:
            self._read_lists(table.io, threads, [*theirs, *others])
            kept = {place(uri) for uri in self._listed(others)}
            manifests = [uri for uri in self._listed(theirs) if place(uri) not in kept]
            read = threads.map(lambda uri: read_or_explain(uri, lambda: _live_files(table.io, uri)), manifests)
            files = {file for some in read for file in some}
        every = [*metadata.statistics, *metadata.partition_statistics]
        statistics = {one.statistics_path for one in every if one.snapshot_id in going}
        return self.not_needed(table, [*files, *statistics, *manifests, *theirs], going)

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
            named = (*lists, *manifests, *(one.statistics_path for one in every if one.snapshot_id not in without))
            left.difference_update(hash(place(uri)) for uri in named)
            for live in self._live_of(table.io, threads, manifests):
                left.difference_update(live)
        self._live = {uri: live for uri, live in self._live.items() if uri in manifests}
        self._manifests = {uri: self._manifests[uri] for uri in lists}
        return [uri for uri in files if hash(place(uri)) in left]

    def _read_lists(self, io: FileIO, threads: ThreadPoolExecutor, lists: Iterable[str]) -> None:
        new = [uri for uri in lists if uri not in self._manifests]
        read = threads.map(lambda uri: read_or_explain(uri, lambda: _manifests(io, uri)), new)
        self._manifests.update(zip(new, read, strict=True))

    def _listed(self, lists: Iterable[str]) -> set[str]:
        return {manifest for uri in lists for manifest in self._manifests[uri]}

    def _live_of(self, io: FileIO, threads: ThreadPoolExecutor, manifests: Collection[str]) -> Iterator["array[int]"]:
        yield from (self._live[uri] for uri in manifests if uri in self._live)
        new = [uri for uri in manifests if uri not in self._live]
        for uri, live in zip(new, threads.map(lambda uri: _hashes(io, uri), new), strict=True):
            self._live[uri] = live
            yield live


def _manifests(io: FileIO, manifest_list: str) -> tuple[str, ...]:
    return tuple(str(record[0]) for record in read_fields(io, manifest_list, _LIST))


def _live_files(io: FileIO, manifest: str) -> tuple[str, ...]:
    return tuple(str(record[1][0]) for record in read_fields(io, manifest, _MANIFEST) if record[0] != _DELETED)


def _hashes(io: FileIO, manifest: str) -> "array[int]":
    files = read_or_explain(manifest, lambda: _live_files(io, manifest))
    return array("q", (hash(place(uri)) for uri in files))
