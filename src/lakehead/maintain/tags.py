"""Checks and corrects our own tags on a table, so that none of them keeps rows that are not needed."""

from pyiceberg.table import Table as Iceberg
from pyiceberg.table.update import RemoveSnapshotRefUpdate, TableUpdate

from lakehead.lake.commits import LAST_LANDING, SWEEP, Changes, added, empty_table, set_tag
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Head, SnapshotId


def keeps_rows(table: Iceberg, tag: str) -> bool:
    """Whether a tag is on a snapshot that holds files."""
    snapshot = table.metadata.snapshot_by_name(tag) if tag in table.metadata.refs else None
    return snapshot is not None and bool(snapshot.manifests(table.io))


def misplaced(table: Iceberg, last_landing: SnapshotId | None) -> set[str]:
    """Which of our tags are on a wrong snapshot.

    The landing tag belongs on main's last landing; after a rollback it is on one that main no longer has. The sweep tag
    belongs on a snapshot without files; earlier versions put it on main.
    """
    tagged = table.metadata.refs.get(LAST_LANDING)
    wrong = {LAST_LANDING} if (tagged.snapshot_id if tagged else None) != _present(table, last_landing) else set()
    return wrong | ({SWEEP} if keeps_rows(table, SWEEP) else set())


def put_right(table: IcebergTable, at: Head, last_landing: SnapshotId | None) -> None:
    """Move our tags to the right snapshots, if needed. Raises `Moved` if the table's head is no longer `at`.

    If the sweep tag is moved, writers that have staged rows must stage them again.
    """
    if misplaced(table.load(), last_landing):
        table.commit(at, lambda iceberg: _changes(iceberg, last_landing))


def _changes(table: Iceberg, last_landing: SnapshotId | None) -> Changes:
    wrong, updates = misplaced(table, last_landing), list[TableUpdate]()
    if LAST_LANDING in wrong:
        right = _present(table, last_landing)
        removed = RemoveSnapshotRefUpdate(ref_name=LAST_LANDING)
        updates.append(removed if right is None else set_tag(LAST_LANDING, right))
    if SWEEP in wrong:
        made = empty_table(table)
        updates += [*made, set_tag(SWEEP, added(made))]
    return tuple(updates), ()


def _present(table: Iceberg, snapshot: SnapshotId | None) -> SnapshotId | None:
    """A snapshot, unless it has expired."""
    return snapshot if snapshot is not None and table.metadata.snapshot_by_id(snapshot) else None
