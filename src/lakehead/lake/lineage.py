"""A table's snapshots and their parents, also of those that have expired as long as an older metadata file tells."""

from collections.abc import Sequence

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import Snapshot

from lakehead.errors import Unavailable
from lakehead.lake.landing import SnapshotId


class Lineage:
    """Finds snapshots in a table's metadata, and in the files of its metadata log where it must and may."""

    def __init__(self, table: Iceberg, *, older: bool = True) -> None:
        """Look at a table as it was loaded; without `older`, at nothing but the metadata that it has now."""
        self._table = table
        self._known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        log = table.metadata.metadata_log if older else []
        self._older = [entry.metadata_file for entry in log]  # the newest is the last
        self._made_since: set[SnapshotId] = set()
        self._gap = False
        """Whether a metadata file was missing: what older ones do not have may have had a parent in that one."""

    @property
    def present(self) -> Sequence[Snapshot]:
        """The snapshots that have not expired."""
        return self._table.metadata.snapshots

    def every(self) -> Sequence[Snapshot]:
        """Every snapshot that is still told of. Reads all older metadata files that are there."""
        while self._older:
            self._read_older()
        return list(self._known.values())

    def has(self, snapshot: SnapshotId) -> bool:
        """Whether a snapshot is told of by what was read so far."""
        return snapshot in self._known

    def find(self, snapshot: SnapshotId) -> Snapshot | None:
        """A snapshot, wherever it is still told of; None if nowhere."""
        while snapshot not in self._known and self._older:
            self._read_older()
        return self._known.get(snapshot)

    def parent(self, snapshot: SnapshotId) -> SnapshotId | None:
        """The parent of a snapshot that was found; None if it had none.

        PyIceberg's expiry takes it away from the oldest snapshot that it keeps. The metadata from before still has it.
        """
        while self._known[snapshot].parent_snapshot_id is None and not self.begins_at(snapshot) and self._older:
            self._read_older()
        return self._known[snapshot].parent_snapshot_id

    def begins_at(self, snapshot: SnapshotId) -> bool:
        """Whether a snapshot without a parent never had one, as far as was read: the table was made or replaced by it.

        It is the table's very first, or a metadata file from before it was made is there: nothing older tells of it.
        """
        return (self._known[snapshot].sequence_number or 0) <= 1 or snapshot in self._made_since

    def _read_older(self) -> None:
        """Learn from the next older metadata file that is there."""
        while self._older:
            uri = self._older.pop()
            try:
                metadata = FromInputFile.table_metadata(self._table.io.new_input(uri))
            except FileNotFoundError:
                self._gap = True  # Old ones may be deleted.
                continue
            except OSError as error:
                raise Unavailable(f"The metadata file {uri} cannot be read ({error}). Nothing was changed.") from error
            if not self._gap:
                self._made_since |= self._known.keys() - {snapshot.snapshot_id for snapshot in metadata.snapshots}
            for snapshot in metadata.snapshots:
                known = self._known.get(snapshot.snapshot_id)
                if known is None or known.parent_snapshot_id is None:
                    self._known[snapshot.snapshot_id] = snapshot
            return
