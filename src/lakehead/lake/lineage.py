"""A table's snapshots and their parents, including expired ones that an older metadata file still has."""

from collections.abc import Sequence

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.snapshots import Snapshot

from lakehead.errors import Unavailable
from lakehead.lake.landing import SnapshotId


class Lineage:
    """Finds snapshots in a table's metadata, and if needed in the older files of its metadata log."""

    def __init__(self, table: Iceberg, *, older: bool = True) -> None:
        """Use a loaded table; without `older`, only its current metadata."""
        self._table = table
        self._known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        log = table.metadata.metadata_log if older else []
        self._older = [entry.metadata_file for entry in log]  # the newest is the last
        self._made_since: set[SnapshotId] = set()
        self._gap = False
        """Whether a metadata file was missing: snapshots that older files lack may have had a parent in that one."""

    @property
    def present(self) -> Sequence[Snapshot]:
        """The snapshots that have not expired."""
        return self._table.metadata.snapshots

    def every(self) -> Sequence[Snapshot]:
        """Every snapshot that some metadata file has. Reads all older metadata files that exist."""
        while self._older:
            self._read_older()
        return list(self._known.values())

    def has(self, snapshot: SnapshotId) -> bool:
        """Whether the metadata read so far has a snapshot."""
        return snapshot in self._known

    def find(self, snapshot: SnapshotId) -> Snapshot | None:
        """A snapshot, from any metadata file that has it; None if there is none."""
        while snapshot not in self._known and self._older:
            self._read_older()
        return self._known.get(snapshot)

    def parent(self, snapshot: SnapshotId) -> SnapshotId | None:
        """The parent of a snapshot that was found; None if it had none.

        PyIceberg's expiry removes the parent id of the oldest snapshot that it keeps. Older metadata files still have
        it.
        """
        while self._known[snapshot].parent_snapshot_id is None and not self.begins_at(snapshot) and self._older:
            self._read_older()
        return self._known[snapshot].parent_snapshot_id

    def begins_at(self, snapshot: SnapshotId) -> bool:
        """Whether a snapshot without a parent never had one, as far as was read: the table was made or replaced by it.

        True for the table's very first one, and if a metadata file from before it was made does not have it.
        """
        return (self._known[snapshot].sequence_number or 0) <= 1 or snapshot in self._made_since

    def _read_older(self) -> None:
        """Read the next older metadata file that exists."""
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
