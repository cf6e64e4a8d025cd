"""A table's snapshots and their parents, also of those that have expired as long as an older metadata file tells."""

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import Snapshot

from lakehead.errors import Unavailable
from lakehead.lake.landing import SnapshotId


class Lineage:
    """Finds snapshots in a table's metadata, and in the files of its metadata log where it must."""

    def __init__(self, table: Iceberg) -> None:
        self._table = table
        self._known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        self._older = [entry.metadata_file for entry in table.metadata.metadata_log]  # the newest is the last

    def find(self, snapshot: SnapshotId) -> Snapshot | None:
        """A snapshot, wherever it is still told of; None if nowhere."""
        while snapshot not in self._known and self._older:
            self._read_older()
        return self._known.get(snapshot)

    def parent(self, snapshot: SnapshotId) -> SnapshotId | None:
        """The parent of a snapshot that was found; None if it had none.

        PyIceberg's expiry takes it away from the oldest snapshot that it keeps. The metadata from before still has it.
        """
        while self._known[snapshot].parent_snapshot_id is None and self._is_not_the_first(snapshot) and self._older:
            if snapshot not in self._read_older():
                break  # It was not made yet, so there is nothing older to learn of it.
        return self._known[snapshot].parent_snapshot_id

    def _is_not_the_first(self, snapshot: SnapshotId) -> bool:
        return (self._known[snapshot].sequence_number or 0) > 1

    def _read_older(self) -> set[SnapshotId]:
        """Learn from the next older metadata file; the snapshots that it has."""
        while self._older:
            uri = self._older.pop()
            try:
                metadata = FromInputFile.table_metadata(self._table.io.new_input(uri))
            except FileNotFoundError:
                continue  # Old ones may be deleted.
            except OSError as error:
                raise Unavailable(f"The metadata file {uri} cannot be read ({error}). Nothing was changed.") from error
            for snapshot in metadata.snapshots:
                known = self._known.get(snapshot.snapshot_id)
                if known is None or known.parent_snapshot_id is None:
                    self._known[snapshot.snapshot_id] = snapshot
            return {snapshot.snapshot_id for snapshot in metadata.snapshots}
        return set()
