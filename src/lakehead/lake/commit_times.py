"""Keeps the times of commits increasing, even if the clocks of drivers differ.

Iceberg's Java side refuses to load a table whose times (its snapshot log, its metadata log, its last update) go back by
more than a minute. PyIceberg writes the local time without comparing, so a driver whose clock is minutes behind would
make the table unreadable for Spark.
"""

from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.table import CommitTableResponse, StagedTable
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

from lakehead.clock import Clock

Requirements = tuple[TableRequirement, ...]
Updates = tuple[TableUpdate, ...]

TOLERANCE_MS = 60_000
"""How far times may go back before Iceberg's Java side refuses a table, or a commit of its own."""


def last_time_ms(metadata: TableMetadata) -> int:
    """The latest time in a table's metadata, in milliseconds since the epoch."""
    snapshots = (entry.timestamp_ms for entry in metadata.snapshot_log[-1:])
    files = (entry.timestamp_ms for entry in metadata.metadata_log[-1:])
    return max((metadata.last_updated_ms, *snapshots, *files))


def date_commits(catalog: Catalog, clock: Clock) -> None:
    """Make every commit through this catalog use the clock's time, but always one after the table's last time."""
    if isinstance(catalog, MetastoreCatalog):
        _date_metadata(catalog, clock)
    else:
        _date_requests(catalog, clock)


def _date_metadata(catalog: MetastoreCatalog, clock: Clock) -> None:
    """For a catalog whose metadata PyIceberg writes itself, with all the times in it."""
    stage = catalog._update_and_stage_table  # noqa: SLF001 - the only place where a commit's metadata is made

    def dated(
        current: Iceberg | None, identifier: Identifier, requirements: Requirements, updates: Updates
    ) -> StagedTable:
        if current is None:
            return stage(current, identifier, requirements, updates)
        at_ms = _next_ms(current.metadata, clock)
        staged = stage(current, identifier, requirements, _with_times(updates, at_ms))
        if staged.metadata.metadata_log != current.metadata.metadata_log:  # else nothing has changed
            staged.metadata = _with_last_time(staged.metadata, current.metadata, at_ms)
        return staged

    _override(catalog, "_update_and_stage_table", dated)


def _date_requests(catalog: Catalog, clock: Clock) -> None:
    """For a REST catalog: a snapshot's time is the client's, all other times are the server's."""
    commit = catalog.commit_table

    def dated(table: Iceberg, requirements: Requirements, updates: Updates) -> CommitTableResponse:
        return commit(table, requirements, _with_times(updates, _next_ms(table.metadata, clock)))

    _override(catalog, "commit_table", dated)


def _override(catalog: Catalog, method: str, by: Any) -> None:
    setattr(catalog, method, by)


def _next_ms(metadata: TableMetadata, clock: Clock) -> int:
    # Not the last time itself: PyIceberg would treat the commit as undated and set the time again.
    return max(clock.now_ns() // 1_000_000, last_time_ms(metadata) + 1)


def _with_times(updates: Updates, at_ms: int) -> Updates:
    return tuple(
        update.model_copy(update={"snapshot": update.snapshot.model_copy(update={"timestamp_ms": at_ms})})
        if isinstance(update, AddSnapshotUpdate)
        else update
        for update in updates
    )


def _with_last_time(made: TableMetadata, before: TableMetadata, at_ms: int) -> TableMetadata:
    known = {(entry.snapshot_id, entry.timestamp_ms) for entry in before.snapshot_log}
    log = [
        entry if (entry.snapshot_id, entry.timestamp_ms) in known else entry.model_copy(update={"timestamp_ms": at_ms})
        for entry in made.snapshot_log
    ]
    return made.model_copy(update={"last_updated_ms": at_ms, "snapshot_log": log})
