"""The progress of tables: watermarks and day status, for many tables at once."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import date, datetime
from typing import Any

from sqlalchemy import Connection, Row, select, update

from lakehead.state.database import Contended, Database, insert_new, insert_or_replace
from lakehead.state.keys import checked_key, chunks
from lakehead.state.model import DayState, DayStatus, Mark, ReadBy, Watermark
from lakehead.state.schema import days, watermarks
from lakehead.state.values import from_text, not_behind, to_text


class ProgressRecords:
    """Watermarks and day status. Writes are durable when the call returns."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def watermarks(self, tables: Iterable[str]) -> dict[tuple[str, Mark], Watermark]:
        """Both watermarks of many tables, in one query for each 1,000 tables."""
        wanted = set(tables)

        def work(connection: Connection) -> list[Watermark]:
            return [
                _watermark(row)
                for some in chunks(sorted(wanted))
                for row in connection.execute(select(watermarks).where(watermarks.c.table_uuid.in_(some)))
            ]

        return {(found.table, found.mark): found for found in self._database.read(work)}

    def watermark(self, table: str, mark: Mark = Mark.LANDED) -> Watermark | None:
        """One watermark of one table."""
        return self.watermarks([table]).get((table, mark))

    def advance(self, reached: Watermark) -> bool:
        """Move a watermark forward. False, and nothing is written, if it would move back within its generation."""
        return self._database.write(lambda connection: advance(connection, reached, self._database.now()))

    def days(self, tables: Iterable[str], load_date: date) -> list[DayStatus]:
        """Every phase of many tables for one load date, in one query for each 1,000 tables."""
        wanted = set(tables)

        def work(connection: Connection) -> list[DayStatus]:
            return [
                _day(row)
                for some in chunks(sorted(wanted))
                for row in connection.execute(
                    select(days).where(days.c.table_uuid.in_(some), days.c.load_date == load_date)
                )
            ]

        return self._database.read(work)

    def mark_days(self, statuses: Sequence[DayStatus]) -> None:
        """Write the status of phases; a later status replaces an earlier one."""
        now = self._database.now()
        rows = {(s.table, s.load_date, s.phase): _day_row(s, now) for s in statuses}
        self._database.write(lambda connection: insert_or_replace(connection, days, list(rows.values())))


def advance(connection: Connection, reached: Watermark, now: datetime) -> bool:
    """Move a watermark forward, in the caller's transaction. False if it would move back."""
    here = (watermarks.c.table_uuid == checked_key("table", reached.table), watermarks.c.mark == reached.mark)
    row = connection.execute(select(watermarks).where(*here)).first()
    if row is None:
        insert_new(connection, watermarks, [{**_watermark_row(reached, now), "version": 0}])
        # Another transaction's row may have been first. Ours has version 0, and no other can have changed it yet.
        mine = update(watermarks).where(*here, watermarks.c.version == 0, watermarks.c.updated_at == now)
        if connection.execute(mine.values(version=1)).rowcount != 1:
            raise Contended
        return True
    old = _watermark(row)
    if reached.generation < old.generation:
        return False
    if reached.generation == old.generation and not not_behind(reached.value, old.value):
        return False
    values = {**_watermark_row(reached, now), "version": row.version + 1}
    if (
        connection.execute(update(watermarks).where(*here, watermarks.c.version == row.version).values(values)).rowcount
        != 1
    ):
        raise Contended
    return True


def _watermark_row(reached: Watermark, now: datetime) -> dict[str, Any]:
    kind, value = to_text(reached.value)
    return {
        "table_uuid": reached.table,
        "mark": reached.mark,
        "generation": reached.generation,
        "kind": kind,
        "value": value,
        "slice": reached.slice,
        "snapshot_id": reached.snapshot,
        "last_loaded": reached.last_loaded,
        "updated_at": now,
        "read_by": None if reached.read_by is None else asdict(reached.read_by),
    }


def _watermark(row: Row[Any]) -> Watermark:
    return Watermark(
        table=row.table_uuid,
        mark=Mark(row.mark),
        generation=row.generation,
        value=from_text(row.kind, row.value),
        slice=row.slice,
        snapshot=row.snapshot_id,
        last_loaded=row.last_loaded,
        read_by=None if row.read_by is None else ReadBy(**row.read_by),
    )


def _day_row(status: DayStatus, now: datetime) -> dict[str, Any]:
    return {
        "table_uuid": checked_key("table", status.table),
        "load_date": status.load_date,
        "phase": checked_key("phase", status.phase),
        "state": status.state,
        "run": None if status.run is None else checked_key("run", status.run),
        "detail": dict(status.detail),
        "updated_at": now,
    }


def _day(row: Row[Any]) -> DayStatus:
    return DayStatus(
        table=row.table_uuid,
        load_date=row.load_date,
        phase=row.phase,
        state=DayState(row.state),
        run=row.run,
        detail=row.detail,
    )
