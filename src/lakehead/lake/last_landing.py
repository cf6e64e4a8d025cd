"""A table's last landing, as its own metadata tells it. Reads no state and no ledger."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH

from lakehead.lake.documents import from_summary
from lakehead.lake.iceberg_table import summary_of
from lakehead.lake.landing import NewWatermark, SnapshotId

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LastLanding:
    """The newest landing on main."""

    snapshot: SnapshotId
    at: datetime
    watermark: NewWatermark


def last_landing_of(metadata: TableMetadata) -> LastLanding | None:
    """The newest landing on main; None if main's remaining history has none."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    main = metadata.refs.get(MAIN_BRANCH)
    at = main.snapshot_id if main else None
    while at is not None and (found := by_id.get(at)) is not None:
        recorded = from_summary(summary_of(found), f"snapshot {at}")
        if recorded is not None:
            when = EPOCH + timedelta(milliseconds=found.timestamp_ms)
            return LastLanding(at, when, recorded[0].new_watermark)
        at = found.parent_snapshot_id
    return None
