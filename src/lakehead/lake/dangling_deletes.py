"""Delete files that delete nothing any more: every data file that they could apply to is gone.

Compactions and overwrites of partitions leave them. Readers open them in vain.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import TableUpdate

from lakehead.lake.commits import as_loaded, updates_of
from lakehead.lake.datafiles import same_partition
from lakehead.lake.merge_commit import MergeFiles
from lakehead.lake.position_deletes import PATH_ID, path_column
from lakehead.lake.stagers import filesystem_of


@dataclass(frozen=True, slots=True)
class Dangling:
    """A delete file, and the manifest that has it."""

    path: str
    manifest: str


def dangling_deletes(table: Iceberg) -> tuple[Dangling, ...]:
    """The delete files of main's snapshot that delete nothing. Reads those that may be about several data files."""
    files = _Files()
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.has_added_files() or manifest.has_existing_files():
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if manifest.content is ManifestContent.DATA:
                    files.add(entry)
                else:
                    files.deletes.append((entry, manifest.manifest_path))
    return tuple(
        Dangling(entry.data_file.file_path, manifest)
        for entry, manifest in files.deletes
        if _is_dangling(table, entry, files)
    )


def without_deletes(table: Iceberg, deletes: Collection[Dangling]) -> tuple[TableUpdate, ...]:
    """A snapshot with the same rows that lacks these delete files."""
    producer = _SameRows(as_loaded(table), table.io, {})
    for each in deletes:
        producer.remove(each.manifest, each.path)
    return updates_of(producer)


class _SameRows(MergeFiles):
    """A producer of a snapshot with other files and the same rows, as those of a compaction."""

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        summary = super()._summary(snapshot_properties)
        return Summary(operation=Operation.REPLACE, **summary.additional_properties)


@dataclass(slots=True)
class _Files:
    live: set[str] = field(default_factory=set)
    oldest: dict[object, int] = field(default_factory=lambda: defaultdict(lambda: 2**63 - 1))
    """The lowest sequence number among the data files of each partition; None: of all."""
    deletes: list[tuple[ManifestEntry, str]] = field(default_factory=list)

    def add(self, entry: ManifestEntry) -> None:
        self.live.add(entry.data_file.file_path)
        for partition in (None, _partition(entry.data_file)):
            self.oldest[partition] = min(self.oldest[partition], entry.sequence_number or 0)


def _is_dangling(table: Iceberg, entry: ManifestEntry, files: _Files) -> bool:
    file, sequence = entry.data_file, entry.sequence_number or 0
    if file.content is DataFileContent.EQUALITY_DELETES:
        # They apply to data files that are older than they are, of all partitions if they have none themselves.
        place = _partition(file) if table.specs()[file.spec_id].fields else None
        return sequence <= files.oldest[place]
    lower, upper = ((bounds or {}).get(PATH_ID) for bounds in (file.lower_bounds, file.upper_bounds))
    if lower and lower == upper:
        return lower.decode() not in files.live
    return file.file_format is FileFormat.PARQUET and files.live.isdisjoint(_named(table, file))


def _named(table: Iceberg, file: DataFile) -> Iterator[str]:
    """The data files that a file of position deletes names."""
    filesystem, path = filesystem_of(table, file.file_path)
    with filesystem.open_input_file(path) as source:
        parquet = pq.ParquetFile(source)
        name = path_column(parquet)
        for batch in parquet.iter_batches(columns=[name]):
            yield from pc.unique(batch.column(name)).to_pylist()


def _partition(file: DataFile) -> tuple[Any, ...]:
    return (file.spec_id, *same_partition(file.partition[number] for number in range(len(file.partition))))
