"""The files of a table's snapshot, each with the delete files that apply to it, for a merge of ours."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from lakehead.lake.datafiles import same_partition
from lakehead.lake.file_rows import StoredFile
from lakehead.lake.key_bounds import Bounds, stored_bounds
from lakehead.lake.position_deletes import PATH_ID
from lakehead.lake.stagers import filesystem_of


class NotByLane(Exception):
    """A table cannot be merged into in Arrow; Spark's MERGE can. The message says why, in a few words."""


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file, where its metadata is, and its delete files."""

    entry: DataFile
    manifest: str
    stored: StoredFile
    own_deletes: tuple["PlannedDelete", ...] = ()
    """Those that name this file alone: a new one takes their place."""


@dataclass(frozen=True, slots=True)
class PlannedDelete:
    """A delete file, and the manifest that has it."""

    path: str
    manifest: str


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The files of a snapshot."""

    files: tuple[PlannedFile, ...]
    dangling: tuple[PlannedDelete, ...] = ()
    """Delete files that name one data file alone, which the table no longer has."""


@dataclass(slots=True)
class _Deletes:
    own: dict[str, list[tuple[int, DataFile, str]]] = field(default_factory=lambda: defaultdict(list))
    shared: dict[tuple[object, ...], list[tuple[int, DataFile, str]]] = field(default_factory=lambda: defaultdict(list))


def plan_files(table: Iceberg, snapshot: Snapshot, wanted: Callable[[DataFile], bool]) -> FilePlan:
    """The snapshot's data files that are wanted. Raises `NotByLane` if it has files that only Spark can merge into."""
    found: list[tuple[ManifestEntry, str]] = []
    deletes, live = _Deletes(), set[str]()
    for manifest in snapshot.manifests(table.io):
        if not (manifest.has_added_files() or manifest.has_existing_files()):
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            if manifest.content is ManifestContent.DATA:
                live.add(file.file_path)
                if wanted(file):
                    found.append((entry, manifest.manifest_path))
            else:
                _add(deletes, entry, manifest.manifest_path)
    if any(entry.data_file.file_format is not FileFormat.PARQUET for entry, _ in found):
        raise NotByLane("it has data files of another format than Parquet")
    dangling = [
        PlannedDelete(file.file_path, manifest)
        for path, theirs in deletes.own.items()
        if path not in live
        for _, file, manifest in theirs
    ]
    return FilePlan(tuple(_planned(table, entry, path, deletes) for entry, path in found), tuple(dangling))


def _add(deletes: _Deletes, entry: ManifestEntry, manifest: str) -> None:
    file = entry.data_file
    if file.content is not DataFileContent.POSITION_DELETES:
        raise NotByLane("it has equality deletes")
    if file.file_format is not FileFormat.PARQUET:
        raise NotByLane("it has delete files of another format than Parquet")
    found = (entry.sequence_number or 0, file, manifest)
    lower, upper = ((bounds or {}).get(PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    if lower and lower == upper:
        deletes.own[lower.decode()].append(found)
    else:
        deletes.shared[_place(file)].append(found)


def _place(file: DataFile) -> tuple[object, ...]:
    return (file.spec_id, *same_partition(_values(file.partition)))


def _values(partition: Record) -> Iterator[object]:
    return (partition[number] for number in range(len(partition)))


def _planned(table: Iceberg, entry: ManifestEntry, manifest: str, deletes: _Deletes) -> PlannedFile:
    file, sequence = entry.data_file, entry.sequence_number or 0

    base = filesystem_of(table, table.location())[0]

    def path_of(uri: str) -> str:
        filesystem, path = filesystem_of(table, uri)
        if not filesystem.equals(base):
            raise NotByLane("its files are in several stores")
        return path

    own = [(each, place) for number, each, place in deletes.own.get(file.file_path, ()) if number >= sequence]
    shared = [each for number, each, _ in deletes.shared.get(_place(file), ()) if number >= sequence]
    stored = StoredFile(
        uri=file.file_path,
        path=path_of(file.file_path),
        rows=file.record_count,
        own_deletes=tuple(path_of(each.file_path) for each, _ in own),
        shared_deletes=tuple(path_of(each.file_path) for each in shared),
        constants=frozenset(
            each.source_id
            for each in table.specs()[file.spec_id].fields
            if isinstance(each.transform, IdentityTransform)
        ),
    )
    return PlannedFile(file, manifest, stored, tuple(PlannedDelete(each.file_path, place) for each, place in own))


def bounds_of(file: DataFile, columns: Sequence[tuple[int, object]]) -> list[Bounds]:
    """The bounds of some columns, given by their field ids and the table's types."""
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    return [stored_bounds(kind, lower.get(number), upper.get(number)) for number, kind in columns]
