"""What a commit changes, as PyIceberg says it: updates, and what they require beside the head."""

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
from lakehead.lake.ports import Moved
from lakehead.lake.rows import Branch, Change, NewFiles

SWEEP = "lakehead-sweep"
"""The tag on the snapshot of the last sweep. That one holds no file and has no parent, so the tag keeps no data."""

LAST_LANDING = "lakehead-last-landing"
"""The tag on the newest landing. Every landing moves it, so whoever expires snapshots keeps that one."""

FOR_EVER_MS = 2**63 - 1
_NO_BRANCH = "lakehead-no-branch"
"""No table has it: a snapshot that is made for it has no parent, and the branch itself is left out of the commit."""

Changes = tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]
Commit = Callable[[Iceberg], Changes]


def publication(table: Iceberg, rows: NewFiles | Branch, properties: Mapping[str, str]) -> Changes:
    """Main's next snapshot: new files under these properties, or the branch that has them already.

    Raises `Moved` if the branch, or the partitioning that the files were written by, is no longer there.
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


def empty(table: Iceberg, properties: Mapping[str, str], branch: str = MAIN_BRANCH) -> tuple[TableUpdate, ...]:
    """A snapshot that changes no row."""
    return _made(_AsLoaded(table).update_snapshot(dict(properties), branch).fast_append())


def empty_table(table: Iceberg) -> tuple[TableUpdate, ...]:
    """A snapshot that holds nothing and has no parent. No reference has it yet."""
    updates = _made(_AsLoaded(table).update_snapshot({}, _NO_BRANCH).fast_append())
    return tuple(update for update in updates if isinstance(update, AddSnapshotUpdate))


def added(updates: Iterable[TableUpdate]) -> SnapshotId:
    """The snapshot that updates add."""
    return next(update.snapshot.snapshot_id for update in updates if isinstance(update, AddSnapshotUpdate))


class _AsLoaded(Transaction):
    """A transaction that changes nothing, so its metadata is the table's: PyIceberg's own copies it at every look."""

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata


def _made(producer: Any) -> tuple[TableUpdate, ...]:
    """Write a snapshot's manifests, and tell what a commit of it changes."""
    updates: tuple[TableUpdate, ...] = producer._commit()[0]  # noqa: SLF001 - the public way commits it at once
    return updates


def set_main(snapshot: SnapshotId) -> SetSnapshotRefUpdate:
    """Main moves to a snapshot."""
    return set_ref(MAIN_BRANCH, SnapshotRefType.BRANCH, snapshot)


def set_ref(
    name: str, kind: Literal[SnapshotRefType.TAG, SnapshotRefType.BRANCH], snapshot: SnapshotId
) -> SetSnapshotRefUpdate:
    """A reference moves to a snapshot."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=kind,
        snapshot_id=snapshot,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def set_tag(name: str, snapshot: SnapshotId) -> SetSnapshotRefUpdate:
    """A tag of ours moves to a snapshot. It stays whatever the table says of the age of references."""
    update = set_ref(name, SnapshotRefType.TAG, snapshot)
    return update.model_copy(update={"max_ref_age_ms": FOR_EVER_MS})


def settings_kept(metadata: TableMetadata, updates: Iterable[TableUpdate]) -> tuple[TableUpdate, ...]:
    """The same updates, in which a reference that moves keeps the retention settings that it has."""
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
    """That main and the last sweep are where this metadata has them."""
    # A table without snapshots has no references to require; whoever makes its first one moves main.
    names = (MAIN_BRANCH, SWEEP) if metadata.snapshots else (MAIN_BRANCH,)
    refs = metadata.refs
    return tuple(
        AssertRefSnapshotId(ref=name, snapshot_id=refs[name].snapshot_id if name in refs else None) for name in names
    )


def _new_snapshot(table: Iceberg, rows: NewFiles, properties: Mapping[str, str]) -> tuple[TableUpdate, ...]:
    metadata = table.metadata
    if metadata.default_spec_id != rows.spec_id:
        raise Moved("The table's partitions were changed after the files were written.")
    update = _AsLoaded(table).update_snapshot(dict(properties))
    producer: Any = update.merge_append() if rows.change is Change.APPEND else update.overwrite()
    if rows.change is not Change.APPEND:
        # It leaves out manifests by a predicate, which it cannot make of every partition, and not fast of many.
        producer._build_delete_files_partition_predicate = lambda: producer.delete_by_predicate(AlwaysTrue())  # noqa: SLF001 - see `_made`
    for file in _data_files(metadata, rows):
        producer.append_data_file(file)
    if rows.change is not Change.APPEND:
        for old in _overwritten(table, rows):
            producer.delete_data_file(old)
    return _made(producer)


def _data_files(metadata: TableMetadata, rows: NewFiles) -> Iterable[IcebergDataFile]:
    schema = next(schema for schema in metadata.schemas if schema.schema_id == rows.schema_id)
    plan, paths = compute_statistics_plan(schema, metadata.properties), parquet_path_to_id_mapping(schema)
    for file in rows.files:
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=pq.read_metadata(pa.BufferReader(file.footer)),
            stats_columns=plan,
            parquet_column_mapping=paths,
        )
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


def _overwritten(table: Iceberg, rows: NewFiles) -> Iterable[IcebergDataFile]:
    partitions = {same_partition(file.partition) for file in rows.files}
    for old in live_files(table):
        if rows.change is Change.REPLACE:
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
    """The data files that main holds."""
    snapshot = table.metadata.snapshot_by_name(MAIN_BRANCH)
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.content is ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file
