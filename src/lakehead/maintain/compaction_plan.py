"""Which files a compaction rewrites: known before Spark is started, by the same rules as Iceberg's procedures."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, TableProperties
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import Operation
from pyiceberg.utils.properties import property_as_int

from lakehead.lake.dangling_deletes import dangling_deletes
from lakehead.lake.landing import SnapshotId

SMALL, LARGE = 0.75, 1.8
"""Fractions of the target size outside which Iceberg rewrites a file."""

MANY_DEAD = 0.3
"""The fraction of deleted rows from which on Iceberg rewrites a file of any size."""

FILE_PATH_ID = 2147483546
"""The field id of the path column of position delete files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """The files that a compaction rewrites, or has rewritten."""

    data_files: tuple[str, ...] = ()
    delete_files: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.data_files or self.delete_files)


def plan_compaction(iceberg: Iceberg, *, min_input_files: int = 5, without: Collection[str] = ()) -> Compaction:
    """The files that a compaction would rewrite now; `without` are data files that will be gone by then.

    Data files go by their size, if a partition has enough of them, or by their share of deleted rows. Position deletes
    are rewritten if a data file has several files of them, or if some are left of data files that are gone by then.
    Deletes of any kind that delete nothing any more are dropped.
    """
    gone = set(without)
    tasks = [task for task in iceberg.scan().plan_files() if task.file.file_path not in gone]
    chosen = set(_data_files(iceberg, tasks, min_input_files))
    left = {task.file.file_path for task in tasks} - chosen
    deletes = [file for file in _delete_files(iceberg) if file.content is DataFileContent.POSITION_DELETES]
    needed = Counter(_referenced(file) for file in deletes)
    rewritten = [file for file in deletes if needed[one := _referenced(file)] > 1 or (one and one not in left)]
    dropped = {each.path for each in dangling_deletes(iceberg)}
    return Compaction(
        data_files=tuple(sorted(chosen)),
        delete_files=tuple(sorted(dropped | {file.file_path for file in deletes if rewritten})),
    )


def manifests_of_main(iceberg: Iceberg) -> tuple[str, ...]:
    """The manifests of main's snapshot that have the table's current partitioning."""
    snapshot, spec = iceberg.current_snapshot(), iceberg.metadata.default_spec_id
    found = snapshot.manifests(iceberg.io) if snapshot else []
    return tuple(sorted(manifest.manifest_path for manifest in found if manifest.partition_spec_id == spec))


def rewritten_since(iceberg: Iceberg, known: Collection[SnapshotId]) -> Compaction:
    """The files that compactions have rewritten in the snapshots that are not `known`."""
    data, deletes = set[str](), set[str]()
    for snapshot in iceberg.metadata.snapshots:
        if snapshot.snapshot_id in known or not snapshot.summary or snapshot.summary.operation is not Operation.REPLACE:
            continue
        for manifest in snapshot.manifests(iceberg.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=False):
                if entry.status is ManifestEntryStatus.DELETED and entry.snapshot_id == snapshot.snapshot_id:
                    is_data = manifest.content is ManifestContent.DATA
                    (data if is_data else deletes).add(entry.data_file.file_path)
    return Compaction(data_files=tuple(sorted(data)), delete_files=tuple(sorted(deletes)))


def _data_files(iceberg: Iceberg, tasks: Iterable[FileScanTask], min_input_files: int) -> Iterator[str]:
    name, default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    target = property_as_int(iceberg.metadata.properties, name, default) or default
    groups = defaultdict[object, list[FileScanTask]](list)
    for task in tasks:
        size = task.file.file_size_in_bytes
        if not target * SMALL <= size <= target * LARGE or _is_mostly_dead(task):
            current = task.file.spec_id == iceberg.metadata.default_spec_id
            groups[task.file.partition if current else None].append(task)
    for group in groups.values():
        total = sum(task.file.file_size_in_bytes for task in group)
        enough = len(group) >= min_input_files or (len(group) > 1 and total > target) or total > target * LARGE
        if enough or any(map(_is_mostly_dead, group)):
            yield from (task.file.file_path for task in group)


def _is_mostly_dead(task: FileScanTask) -> bool:
    dead = sum(file.record_count for file in task.delete_files if _referenced(file) is not None)
    return bool(task.file.record_count) and min(dead, task.file.record_count) / task.file.record_count >= MANY_DEAD


def _delete_files(iceberg: Iceberg) -> Iterator[DataFile]:
    snapshot = iceberg.current_snapshot()
    for manifest in snapshot.manifests(iceberg.io) if snapshot else ():
        if manifest.content is ManifestContent.DELETES:
            for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=True):
                yield entry.data_file


def _referenced(file: DataFile) -> str | None:
    """The only data file that a file of position deletes is about; None if it may be about several."""
    lower, upper = ((bounds or {}).get(FILE_PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    return lower.decode() if lower is not None and lower == upper else None
