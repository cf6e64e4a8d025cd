"""The commit that removes snapshots from a table's metadata, and nothing that anybody needs with them."""

from collections.abc import Collection

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import SnapshotLogEntry
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemoveSnapshotsUpdate,
    _apply_table_update,
    _TableMetadataUpdateContext,
)

from lakehead.lake.commits import Changes
from lakehead.lake.landing import SnapshotId


class RemoveUnreferencedSnapshots(RemoveSnapshotsUpdate):
    """Iceberg's removal of snapshots, as a REST catalog knows it. Other catalogs apply it as `_removed` does.

    PyIceberg's own would silently drop a branch or tag that was put on one of the snapshots a moment ago, erase the
    parent id of every child, so that incremental readers no longer see that snapshots are missing, and leave gaps in
    the log by which readers travel in time.
    """


def removal(metadata: TableMetadata, snapshots: Collection[SnapshotId]) -> Changes:
    """The changes that remove those of the snapshots that are still there and that no reference points at.

    Requires every reference to be where this metadata has it, so a catalog refuses the commit if one was moved onto a
    snapshot that goes. Without anything to remove there are no changes.
    """
    referenced = {ref.snapshot_id for ref in metadata.refs.values()}
    present = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    going = [snapshot for snapshot in snapshots if snapshot in present and snapshot not in referenced]
    if not going:
        return (), ()
    standing = (AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in metadata.refs.items())
    return (RemoveUnreferencedSnapshots(snapshot_ids=going),), tuple(standing)


@_apply_table_update.register(RemoveUnreferencedSnapshots)
def _removed(
    update: RemoveUnreferencedSnapshots, base_metadata: TableMetadata, context: _TableMetadataUpdateContext
) -> TableMetadata:
    """Apply the removal to the metadata that the commit replaces, as Iceberg's Java side does.

    This metadata is newer than the one that the commit was made from. So this is where a reference is seen that no
    requirement can name, because it was created in between: the commit is refused then.
    """
    gone = set(update.snapshot_ids)
    for name, ref in base_metadata.refs.items():
        if ref.snapshot_id in gone:
            raise CommitFailedException(f"The reference {name} is on snapshot {ref.snapshot_id}, which was to expire.")
    if missing := gone - {snapshot.snapshot_id for snapshot in base_metadata.snapshots}:
        raise CommitFailedException(f"Snapshot {min(missing)} has expired already.")
    context.add_update(update)
    return base_metadata.model_copy(
        update={
            "snapshots": [one for one in base_metadata.snapshots if one.snapshot_id not in gone],
            "snapshot_log": _after_the_last_gap(base_metadata.snapshot_log, gone),
            "statistics": [one for one in base_metadata.statistics if one.snapshot_id not in gone],
            "partition_statistics": [one for one in base_metadata.partition_statistics if one.snapshot_id not in gone],
        }
    )


def _after_the_last_gap(log: list[SnapshotLogEntry], gone: set[SnapshotId]) -> list[SnapshotLogEntry]:
    """The entries after the last one that goes: with gaps, a query of an earlier time would get wrong rows."""
    gaps = [number for number, entry in enumerate(log) if entry.snapshot_id in gone]
    return log[gaps[-1] + 1 :] if gaps else log
