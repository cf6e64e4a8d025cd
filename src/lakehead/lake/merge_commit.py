"""The commit of a merge: new data files, position-delete files, and the files that they take the place of.

PyIceberg writes no delete files, so the manifests are written here with its writers.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.utils.properties import property_as_bool, property_as_int

from lakehead.lake.ports import Moved
from lakehead.lake.position_deletes import PATH_ID, POSITION_ID, DeleteFile


def delete_file(made: DeleteFile, of: DataFile) -> DataFile:
    """A position-delete file as Iceberg's metadata has it. Equal bounds of the path make it one data file's own."""
    path = made.data_file.encode()
    counts = dict.fromkeys((PATH_ID, POSITION_ID), made.rows)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=made.uri,
        file_format=FileFormat.PARQUET,
        partition=of.partition,
        record_count=made.rows,
        file_size_in_bytes=made.size,
        column_sizes={},
        value_counts=counts,
        null_value_counts=dict.fromkeys(counts, 0),
        nan_value_counts={},
        lower_bounds={PATH_ID: path, POSITION_ID: made.first.to_bytes(8, "little")},
        upper_bounds={PATH_ID: path, POSITION_ID: made.last.to_bytes(8, "little")},
        key_metadata=None,
        split_offsets=[4],
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = of.spec_id
    return file


class _DeleteManifestWriter(ManifestWriterV2):
    """A manifest of delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _DeleteManifests:
    """A producer of a snapshot, for the merging of its delete manifests."""

    def __init__(self, producer: "MergeFiles") -> None:
        self._producer = producer
        self.snapshot_id = producer.snapshot_id
        self.spec = producer.spec
        self.fetch_manifest_entry = producer.fetch_manifest_entry

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        return self._producer.writer_of(ManifestContent.DELETES, spec)


class MergeFiles(_OverwriteFiles):
    """The producer of a merge's snapshot, on top of main's present one."""

    def __init__(self, transaction: Transaction, io: Any, properties: Mapping[str, str]) -> None:
        super().__init__(
            operation=Operation.OVERWRITE,
            transaction=transaction,
            io=io,
            snapshot_properties=dict(properties),
            branch=MAIN_BRANCH,
        )
        self._added_deletes: list[DataFile] = []
        self._gone: dict[str, set[str]] = defaultdict(set)
        self._removed: list[DataFile] = []

    def add_deletes(self, file: DataFile) -> None:
        """Add a delete file."""
        self._added_deletes.append(file)

    def remove(self, manifest: str, path: str) -> None:
        """Remove a data or delete file, which this manifest has."""
        self._gone[manifest].add(path)

    def writer_of(self, content: ManifestContent, spec: PartitionSpec) -> ManifestWriter:
        """A writer of a manifest of data files or of delete files."""
        if content is ManifestContent.DATA:
            return self.new_manifest_writer(spec)
        return _DeleteManifestWriter(
            spec, self.schema(), self.new_manifest_output(), self.snapshot_id, self._compression
        )

    def _manifests(self) -> list[ManifestFile]:
        added = self._added(ManifestContent.DATA, self._added_data_files)
        added += self._added(ManifestContent.DELETES, self._added_deletes)
        snapshot = self._transaction.table_metadata.snapshot_by_name(MAIN_BRANCH)
        kept = [
            manifest if manifest.manifest_path not in self._gone else self._rewritten(manifest)
            for manifest in (snapshot.manifests(self._io) if snapshot else ())
            if manifest.has_added_files() or manifest.has_existing_files()
        ]
        if lacking := set().union(*self._gone.values()) - {file.file_path for file in self._removed}:
            raise Moved(f"The file {min(lacking)} is no longer in the table.")
        return self._merged(ManifestContent.DATA, added + kept) + self._merged(ManifestContent.DELETES, added + kept)

    def _added(self, content: ManifestContent, files: Iterable[DataFile]) -> list[ManifestFile]:
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for file in files:
            by_spec[file.spec_id].append(file)
        manifests = []
        for spec_id, theirs in by_spec.items():
            with self.writer_of(content, self.spec(spec_id)) as writer:
                for file in theirs:
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=self.snapshot_id,
                            sequence_number=None,
                            file_sequence_number=None,
                            data_file=file,
                        )
                    )
            manifests.append(writer.to_manifest_file())
        return manifests

    def _rewritten(self, manifest: ManifestFile) -> ManifestFile:
        """A manifest whose removed files are marked as deleted by this snapshot."""
        gone = self._gone[manifest.manifest_path]
        with self.writer_of(manifest.content, self.spec(manifest.partition_spec_id)) as writer:
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True):
                if entry.data_file.file_path in gone:
                    self._removed.append(entry.data_file)
                    writer.delete(entry)
                else:
                    writer.existing(entry)
        return writer.to_manifest_file()

    def _merged(self, content: ManifestContent, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """The manifests of one kind, merged as an append of PyIceberg does it."""
        properties = self._transaction.table_metadata.properties
        size, count = (
            property_as_int(properties, getattr(TableProperties, name), getattr(TableProperties, f"{name}_DEFAULT"))
            for name in ("MANIFEST_TARGET_SIZE_BYTES", "MANIFEST_MIN_MERGE_COUNT")
        )
        producer: Any = self if content is ManifestContent.DATA else _DeleteManifests(self)
        manager: _ManifestMergeManager[Any] = _ManifestMergeManager(
            target_size_bytes=size or 0,
            min_count_to_merge=count or 0,
            merge_enabled=property_as_bool(
                properties,
                TableProperties.MANIFEST_MERGE_ENABLED,
                TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT,
            ),
            snapshot_producer=producer,
        )
        return manager.merge_manifests([manifest for manifest in manifests if manifest.content is content])

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        """The summary with its totals: each file is counted in its own partition spec."""
        metadata = self._transaction.table_metadata
        limit = TableProperties.WRITE_PARTITION_SUMMARY_LIMIT
        default = TableProperties.WRITE_PARTITION_SUMMARY_LIMIT_DEFAULT
        collector = SnapshotSummaryCollector(int(metadata.properties.get(limit, default)))
        specs, schema = metadata.specs(), metadata.schema()
        for file in (*self._added_data_files, *self._added_deletes):
            collector.add_file(file, schema, specs[file.spec_id])
        for file in self._removed:
            collector.remove_file(file, schema, specs[file.spec_id])
        before = metadata.snapshot_by_name(MAIN_BRANCH)
        return update_snapshot_summaries(
            Summary(operation=self._operation, **collector.build(), **(snapshot_properties or {})),
            before.summary if before else None,
        )
