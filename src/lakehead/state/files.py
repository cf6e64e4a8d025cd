"""The history of files: what became of each, and its errors. Audit trail only; safe to lose."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, delete, or_, select

from lakehead.state.database import Database, insert_or_replace
from lakehead.state.keys import CHUNK, checked_key, chunks, storable, unit_key
from lakehead.state.model import FileOutcome, FileRecord, FileState
from lakehead.state.schema import files

LONGEST_ERROR = 2_000
"""Characters of an error that are kept."""


class FileHistory:
    """One record for each file of a table."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, table: str, outcomes: Iterable[FileOutcome]) -> None:
        """Write what became of files. The time when a file was first seen, and its first error, stay as they were.

        A file's last error stays until another one comes, so that one can see why a file needed many tries.
        """
        now = self._database.now()
        rows = sorted((_row(table, outcome, now) for outcome in outcomes), key=lambda row: str(row["unit_key"]))

        def write(connection: Connection) -> None:
            for some in chunks(rows):
                insert_or_replace(
                    connection, files, some, keep=("first_seen", "first_error"), keep_if_null=("last_error",)
                )

        if rows:
            self._database.write(write)

    def list(
        self,
        table: str,
        *,
        state: FileState | None = None,
        since: datetime | None = None,
        after: FileRecord | None = None,
        limit: int = 1000,
    ) -> Sequence[FileRecord]:
        """Files in the order of their last changes, at most so many; the next page comes after the last of them.

        Optionally only those in one state, or that changed at a time or later. A file that changes between two pages
        may be in both.
        """
        query = select(files).where(files.c.table_uuid == checked_key("table", table))
        if state is not None:
            query = query.where(files.c.state == state)
        if since is not None:
            query = query.where(files.c.changed_at >= since)
        if after is not None:
            key = unit_key(after.unit)
            later = or_(
                files.c.generation > after.generation,
                and_(files.c.generation == after.generation, files.c.unit_key > key),
            )
            query = query.where(
                files.c.changed_at >= after.changed_at, or_(files.c.changed_at > after.changed_at, later)
            )
        query = query.order_by(files.c.changed_at, files.c.generation, files.c.unit_key).limit(limit)
        return [_record(row) for row in self._database.read(lambda connection: connection.execute(query).all())]

    def find(self, table: str, unit: str, *, generation: int = 0) -> FileRecord | None:
        """The history of one file."""
        query = select(files).where(
            files.c.table_uuid == checked_key("table", table),
            files.c.generation == generation,
            files.c.unit_key == unit_key(unit),
        )
        row = self._database.read(lambda connection: connection.execute(query).first())
        return None if row is None else _record(row)

    def forget(self, table: str, before: datetime) -> int:
        """Delete the history of files that changed last before a time. Returns how many."""
        here = files.c.table_uuid == checked_key("table", table)
        oldest = (
            select(files.c.generation, files.c.unit_key)
            .where(here, files.c.changed_at < before)
            .order_by(files.c.changed_at)
            .limit(CHUNK)
        )

        def remove(connection: Connection) -> int:
            removed = 0
            for row in connection.execute(oldest).all():
                which = (files.c.generation == row.generation, files.c.unit_key == row.unit_key)
                removed += connection.execute(delete(files).where(here, *which, files.c.changed_at < before)).rowcount
            return removed

        total = 0
        while removed := self._database.write(remove):
            total += removed
        return total


def _row(table: str, outcome: FileOutcome, now: datetime) -> dict[str, Any]:
    error = None if outcome.error is None else storable(outcome.error, LONGEST_ERROR)
    return {
        "table_uuid": checked_key("table", table),
        "generation": outcome.generation,
        "unit_key": unit_key(outcome.unit),
        "unit": outcome.unit,
        "state": outcome.state,
        "landed_rows": outcome.rows,
        "landed_bytes": outcome.bytes,
        "rescued_rows": outcome.rescued_rows,
        "tries": outcome.tries,
        "first_error": error,
        "last_error": error,
        "snapshot_id": outcome.snapshot,
        "first_seen": now,
        "changed_at": now,
    }


def _record(row: Row[Any]) -> FileRecord:
    return FileRecord(
        table=row.table_uuid,
        unit=row.unit,
        generation=row.generation,
        state=FileState(row.state),
        rows=row.landed_rows,
        bytes=row.landed_bytes,
        rescued_rows=row.rescued_rows,
        tries=row.tries,
        first_error=row.first_error,
        last_error=row.last_error,
        snapshot=row.snapshot_id,
        first_seen=row.first_seen,
        changed_at=row.changed_at,
    )
