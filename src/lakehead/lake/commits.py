"""The updates and requirements of commits, as PyIceberg's objects."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent
from pyiceberg.table import Table as Iceberg
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Record

from lakehead.errors import Misconfigured
from lakehead.lake.datafiles import same_partition
from lakehead.lake.landing import SnapshotId
from lakehead.lake.merge_commit import MergeFiles
from lakehead.lake.merged_files import MergedFiles
from lakehead.lake.ports import Moved
from lakehead.lake.replace_commit import ReplaceFiles
from lakehead.lake.staged_rows import Branch, Change, NewFiles

SWEEP = "lakehead-sweep"
"""The tag on the last sweep's snapshot, which has no files and no parent, so the tag keeps no data."""

LAST_LANDING = "lakehead-last-landing"
"""The tag on the newest landing. Every landing moves it, so that no tool expires that snapshot."""

FOR_EVER_MS = 2**63 - 1
_NO_BRANCH = "lakehead-no-branch"
"""A branch that no table has: a snapshot made for it has no parent, and the branch itself is not committed."""

Changes = tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]
Commit = Callable[[Iceberg], Changes]


def publication(table: Iceberg, rows: NewFiles | MergedFiles | Branch, properties: Mapping[str, str]) -> Changes:
    """The changes that publish new files with these properties, or a branch whose snapshot has them already.

    Raises `Moved` if the branch has moved or the table's partitioning has changed since the files were written.
    """
    match rows:
        case Branch():
            ref = table.metadata.refs.get(rows.name)
            if ref is None or ref.snapshot_id != rows.head:
                raise Moved(f"The branch {rows.name} was dropped or written to before it was published.")
            moved = (set_main(rows.head), set_tag(LAST_LANDING, rows.head), RemoveSnapshotRefUpdate(ref_name=rows.name))
            return moved, (AssertRefSnapshotId(ref=rows.name, snapshot_id=rows.head),)
        case NewFiles():
            updates = _new_snapshot(table, rows, properties)
            return (*updates, set_tag(LAST_LANDING, added(updates))), ()
        case MergedFiles():
            updates = empty(table, properties) if rows.changes_nothing else _merged(table, rows, properties)
            return (*updates, set_tag(LAST_LANDING, added(updates))), ()


def replacement(table: Iceberg, rows: NewFiles) -> tuple[TableUpdate, ...]:
    """A snapshot of new files that is no landing."""
    return _new_snapshot(table, rows, {})


def empty(table: Iceberg, properties: Mapping[str, str], branch: str = MAIN_BRANCH) -> tuple[TableUpdate, ...]:
    """A snapshot that changes no row."""
    return updates_of(as_loaded(table).update_snapshot(dict(properties), branch).fast_append())


def empty_table(table: Iceberg) -> tuple[TableUpdate, ...]:
    """An empty snapshot without a parent, which no reference points at yet."""
    updates = updates_of(as_loaded(table).update_snapshot({}, _NO_BRANCH).fast_append())
    return tuple(update for update in updates if isinstance(update, AddSnapshotUpdate))


def added(updates: Iterable[TableUpdate]) -> SnapshotId:
    """The id of the snapshot that these updates add."""
    return next(update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate))


class _AsLoaded(Transaction):
    """A transaction without changes, whose metadata is the table's: PyIceberg's own copies it at every access."""

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata


def as_loaded(table: Iceberg) -> Transaction:
    """A transaction without changes, for a producer of a snapshot on top of the table as it was loaded."""
    return _AsLoaded(table)


def updates_of(producer: Any) -> tuple[TableUpdate, ...]:
    """Write a snapshot's manifests, and return the updates that commit it."""
    updates: tuple[TableUpdate, ...] = producer._commit()[0]  # noqa: SLF001 - the public method commits at once
    return updates


def set_main(snapshot: SnapshotId) -> SetSnapshotRefUpdate:
    """The update that moves main to a snapshot."""
    return set_ref(MAIN_BRANCH, SnapshotRefType.BRANCH, snapshot)


def set_ref(
    name: str, kind: Literal[SnapshotRefType.TAG, SnapshotRefType.BRANCH], snapshot: SnapshotId
) -> SetSnapshotRefUpdate:
    """The update that moves a reference to a snapshot."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=kind,
        snapshot_id=snapshot,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def set_tag(name: str, snapshot: SnapshotId) -> SetSnapshotRefUpdate:
    """The update that moves a tag of ours to a snapshot. The table's maximum age of references does not apply to it."""
    update = set_ref(name, SnapshotRefType.TAG, snapshot)
    return update.model_copy(update={"max_ref_age_ms": FOR_EVER_MS})


def settings_kept(metadata: TableMetadata, updates: Iterable[TableUpdate]) -> tuple[TableUpdate, ...]:
    """The same updates, changed so that a reference that moves keeps its retention settings."""
    return tuple(
        update.model_copy(update=_settings(ref))
        if isinstance(update, SetSnapshotRefUpdate)
        and (ref := metadata.refs.get(update.ref_name)) is not None
        and ref.snapshot_ref_type is update.type
        else update
        for update in updates
    )


def _settings(ref: SnapshotRef) -> dict[str, int]:
    names = ("max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep")
    return {name: value for name in names if (value := getattr(ref, name)) is not None}


def standing(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """The requirements that main and the sweep tag have not moved since this metadata."""
    # A table without snapshots has no references to require; every commit of its first one moves main.
    names = (MAIN_BRANCH, SWEEP) if metadata.snapshots else (MAIN_BRANCH,)
    refs = metadata.refs
    return tuple(
        AssertRefSnapshotId(ref=name, snapshot_id=refs[name].snapshot_id if name in refs else None) for name in names
    )


def _new_snapshot(table: Iceberg, rows: NewFiles, properties: Mapping[str, str]) -> tuple[TableUpdate, ...]:
    metadata = table.metadata
    if metadata.default_spec_id != rows.spec_id:
        raise Moved("The table's partitions were changed after the files were written.")
    if rows.change is Change.REPLACE:
        whole = ReplaceFiles(as_loaded(table), table.io, properties)
        for file in _data_files(metadata, rows):
            file.spec_id = rows.spec_id
            whole.append_data_file(file)
        return updates_of(whole)
    update = as_loaded(table).update_snapshot(dict(properties))
    producer: Any = update.merge_append() if rows.change is Change.APPEND else update.overwrite()
    if rows.change is not Change.APPEND:
        # PyIceberg skips manifests by a predicate, which it cannot build for every partition, and slowly for many.
        producer._build_delete_files_partition_predicate = lambda: producer.delete_by_predicate(AlwaysTrue())  # noqa: SLF001 - see `updates_of`
    for file in _data_files(metadata, rows):
        producer.append_data_file(file)
    if rows.change is not Change.APPEND:
        for old in _overwritten(table, rows):
            producer.delete_data_file(old)
    return updates_of(producer)


def without_files(table: Iceberg, files: Iterable[IcebergDataFile]) -> tuple[TableUpdate, ...]:
    """A snapshot that lacks these data files of main's snapshot, and is the same otherwise."""
    producer: Any = as_loaded(table).update_snapshot({}).overwrite()
    producer._build_delete_files_partition_predicate = lambda: producer.delete_by_predicate(AlwaysTrue())  # noqa: SLF001 - see `_new_snapshot`
    for file in files:
        producer.delete_data_file(file)
    return updates_of(producer)


def _merged(table: Iceberg, rows: MergedFiles, properties: Mapping[str, str]) -> tuple[TableUpdate, ...]:
    if table.metadata.default_spec_id != rows.new.spec_id:
        raise Moved("The table's partitions were changed after the files were written.")
    producer = MergeFiles(as_loaded(table), table.io, properties)
    for file in _data_files(table.metadata, rows.new):
        file.spec_id = rows.new.spec_id
        producer.append_data_file(file)
    for deletes in rows.deletes:
        producer.add_deletes(deletes)
    for manifest, path in rows.removed:
        producer.remove(manifest, path)
    return updates_of(producer)


def _data_files(metadata: TableMetadata, rows: NewFiles) -> Iterable[IcebergDataFile]:
    schema = next(schema for schema in metadata.schemas if schema.schema_id == rows.schema_id)
    plan, paths = compute_statistics_plan(schema, metadata.properties), parquet_path_to_id_mapping(schema)
    for file in rows.files:
        footer = pq.read_metadata(pa.BufferReader(file.footer))
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer, stats_columns=plan, parquet_column_mapping=paths
        )
        for unknown in _without_bounds(footer, paths):
            statistics.column_aggregates.pop(unknown, None)
        yield IcebergDataFile.from_args(
            content=DataFileContent.DATA,
            file_path=file.uri,
            file_format=FileFormat.PARQUET,
            partition=Record(*file.partition),
            file_size_in_bytes=file.size,
            sort_order_id=rows.sort_order_id,
            spec_id=rows.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


def _without_bounds(footer: pq.FileMetaData, ids: Mapping[str, int]) -> set[int]:
    """The columns that have a row group without bounds, because its values are too long for them.

    PyIceberg takes the bounds of the other row groups for those of the file, and readers would miss its rows.
    """
    found = set[int]()
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            column = footer.row_group(group).column(number)
            statistics = column.statistics
            if statistics is not None and not statistics.has_min_max and statistics.num_values:
                found.add(ids[column.path_in_schema])
    return found


def _overwritten(table: Iceberg, rows: NewFiles) -> Iterable[IcebergDataFile]:
    partitions = {same_partition(file.partition) for file in rows.files}
    for old in live_files(table):
        if rows.change is Change.REPLACE_FILES:
            if old.file_path in rows.replaced:
                yield old
        elif old.spec_id != rows.spec_id:
            raise Misconfigured(
                f"The table {'.'.join(table.name())} has files of an earlier partitioning, so its partitions cannot be "
                "overwritten one by one. Rewrite them first: CALL system.rewrite_data_files(table => …, options => "
                "map('rewrite-all', 'true'))."
            )
        elif same_partition(old.partition[number] for number in range(len(old.partition))) in partitions:
            yield old


def live_files(table: Iceberg) -> Iterable[IcebergDataFile]:
    """The data files of main's snapshot."""
    snapshot = table.metadata.snapshot_by_name(MAIN_BRANCH)
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.content is ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file
