"""Removes snapshots of a table in one commit, and then the files that only they needed.

**Why no file goes that is still needed.** The files are found before the commit that removes the snapshots, and looked
for once more in the table as it is after the commit: only what no snapshot needs then is deleted (`snapshot_files` says
what a snapshot needs). A snapshot that is committed later is made from a snapshot that a reference points at, whose
files stay, and from files that its writer has written. To bring an expired snapshot back, a reference would have to be
put on it, which a catalog refuses because the snapshot is gone. A reference that was put on it before the commit makes
the commit fail: each reference is required to be where it was, and a new one is seen where the commit is applied. A
REST catalog applies it itself, and requirements cannot name what is not there: a reference that is created on an
expiring snapshot in the milliseconds between our reading and the catalog's commit is lost there, as with Iceberg's own
expiry. So is a cherry-pick of an expiring snapshot that a REST client commits in that time. The age protects both.

**What a crash leaves.** The snapshots go first. If the process ends before all of the files are deleted, or a store
refuses to delete some, these are orphan files, and `lakehead maintain sweep` removes them.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyiceberg.table import Table as Iceberg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from lakehead.errors import OutcomeUnknown
from lakehead.lake.commits import Changes
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import SnapshotId
from lakehead.lake.ports import Moved
from lakehead.lake.snapshot_removal import removal
from lakehead.maintain.manifests import Incomplete
from lakehead.maintain.places import delete_files
from lakehead.maintain.snapshot_files import SnapshotFiles

Read = TypeVar("Read")
LOG = logging.getLogger("lakehead.maintain")

TRIES = 3
"""Attempts to read what snapshots need, if another process expires some of them at the same time."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed."""

    snapshots: tuple[SnapshotId, ...] = ()
    files: int = 0
    not_deleted: int = 0

    def __add__(self, other: "Removed") -> "Removed":
        return Removed(self.snapshots + other.snapshots, self.files + other.files, self.not_deleted + other.not_deleted)


def remove_snapshots(
    table: IcebergTable, going: Sequence[SnapshotId], files: SnapshotFiles, main: SnapshotId | None
) -> Removed:
    """Remove snapshots in one commit, then the files that no other snapshot needs.

    `main` is the head for which it was decided that they may go. Raises `Moved` if main no longer comes from there.
    """
    theirs = _consistently(table, lambda iceberg: files.only_of(iceberg, going))

    def changes(iceberg: Iceberg) -> Changes:
        if main is not None and main not in (one.snapshot_id for one in ancestors(iceberg.metadata, MAIN_BRANCH)):
            raise Moved(f"Table {table.name} was rolled back or replaced during its expiry. Run it again.")
        return removal(iceberg.metadata, going)

    unknown: OutcomeUnknown | None = None
    try:
        table.commit(None, changes)
    except OutcomeUnknown as error:  # the table itself says it: snapshots that are gone do not come back
        unknown = error
    after = table.load()
    present = {snapshot.snapshot_id for snapshot in after.metadata.snapshots}
    gone = tuple(snapshot for snapshot in going if snapshot not in present)
    if not gone and unknown is not None:
        raise unknown
    orphans = _consistently(table, lambda iceberg: files.not_needed(iceberg, theirs))
    failed = delete_files(after, orphans)
    if failed:
        LOG.warning(
            "%d files that no snapshot needs any more could not be deleted; the first: %s. Remove them later: "
            "lakehead maintain sweep %s",
            len(failed),
            failed[0],
            table.name,
        )
    return Removed(gone, files=len(orphans) - len(failed), not_deleted=len(failed))


def _consistently(table: IcebergTable, read: Callable[[Iceberg], Read]) -> Read:
    """Read the table as it is now. Reads again if another expiry came between its metadata and its files."""
    for _ in range(TRIES - 1):
        try:
            return read(table.load())
        except Incomplete:
            continue
    return read(table.load())


def ancestors(metadata: TableMetadata, ref: str) -> Iterator[Snapshot]:
    """The snapshots from a reference back, as far as the history exists."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    at = metadata.refs[ref].snapshot_id if ref in metadata.refs else None
    while at is not None and (found := by_id.get(at)) is not None:
        yield found
        at = found.parent_snapshot_id
