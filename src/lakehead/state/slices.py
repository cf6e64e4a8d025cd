"""Stored slice plans: fixed before they run, resumed unchanged, and shared by all runs of a table."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from lakehead.state.database import Database, insert_new
from lakehead.state.keys import checked_key, chunks, unit_key
from lakehead.state.model import SlicePlan, StoredSlice
from lakehead.state.schema import plans, slices


class SlicePlans:
    """One plan per table at most."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, plan: SlicePlan) -> SlicePlan:
        """Store a plan before it runs. Returns the plan to run: this one, or the one that the table has already."""
        return self._database.write(lambda connection: self._save(connection, plan))

    def load(self, table: str) -> SlicePlan | None:
        """The table's plan, with what is done of it."""
        return self.load_many([table]).get(table)

    def load_many(self, tables: Iterable[str]) -> dict[str, SlicePlan]:
        """The plans of many tables, in two queries for each 1,000 tables."""
        wanted = set(tables)

        def work(connection: Connection) -> dict[str, SlicePlan]:
            found: dict[str, SlicePlan] = {}
            for some in chunks(sorted(wanted)):
                found.update(_load(connection, some))
            return found

        return self._database.read(work)

    def mark_done(self, table: str, plan: str, position: int, snapshot: int | None = None) -> bool:
        """Mark a slice of this plan as landed. A second mark changes nothing. False if the plan was discarded."""
        return self._database.write(lambda connection: self._mark(connection, table, plan, position, snapshot))

    def discard(self, table: str, plan: str) -> bool:
        """Delete this plan. False if it is not the table's plan any more; a newer one is not deleted."""
        return self._database.write(lambda connection: self._discard(connection, table, plan))

    def _save(self, connection: Connection, plan: SlicePlan) -> SlicePlan:
        now = self._database.now()
        for each in plan.slices:
            unit_key(each.unit)  # raises for an id that a server could not store
        row = {
            "table_uuid": checked_key("table", plan.table),
            "plan_id": checked_key("plan", plan.id),
            "generation": plan.generation,
            "detail": dict(plan.detail),
            "saved_at": now,
        }
        insert_new(connection, plans, [row])
        # Locks the row: the stored plan cannot be discarded while its slices are written or read.
        held = update(plans).where(plans.c.table_uuid == plan.table).values(plan_id=plans.c.plan_id)
        connection.execute(held)
        there = connection.execute(select(plans.c.plan_id).where(plans.c.table_uuid == plan.table)).scalar_one()
        if there == plan.id:
            rows = [
                {
                    "table_uuid": plan.table,
                    "plan_id": plan.id,
                    "position": position,
                    "unit": each.unit,
                    "bounds": dict(each.bounds),
                    "done_at": now if each.done else None,
                    "snapshot_id": each.snapshot,
                }
                for position, each in enumerate(plan.slices)
            ]
            for some in chunks(rows):
                insert_new(connection, slices, some)
        return _load(connection, [plan.table])[plan.table]

    def _mark(self, connection: Connection, table: str, plan: str, position: int, snapshot: int | None) -> bool:
        here = (slices.c.table_uuid == table, slices.c.plan_id == plan, slices.c.position == position)
        done = {"done_at": self._database.now(), "snapshot_id": snapshot}
        if connection.execute(update(slices).where(*here, slices.c.done_at.is_(None)).values(done)).rowcount == 1:
            return True
        return connection.execute(select(slices.c.position).where(*here)).first() is not None

    def _discard(self, connection: Connection, table: str, plan: str) -> bool:
        removed = delete(plans).where(plans.c.table_uuid == table, plans.c.plan_id == plan)
        if connection.execute(removed).rowcount != 1:
            return False
        connection.execute(delete(slices).where(slices.c.table_uuid == table, slices.c.plan_id == plan))
        return True


def _load(connection: Connection, tables: Iterable[str]) -> dict[str, SlicePlan]:
    some = list(tables)
    stored = connection.execute(select(plans).where(plans.c.table_uuid.in_(some))).all()
    if not stored:
        return {}
    query = select(slices).where(slices.c.table_uuid.in_(some)).order_by(slices.c.position)
    parts: dict[tuple[str, str], list[StoredSlice]] = {}
    for row in connection.execute(query):
        parts.setdefault((row.table_uuid, row.plan_id), []).append(_slice(row))
    return {
        row.table_uuid: SlicePlan(
            id=row.plan_id,
            table=row.table_uuid,
            generation=row.generation,
            detail=row.detail,
            slices=tuple(parts.get((row.table_uuid, row.plan_id), ())),
        )
        for row in stored
    }


def _slice(row: Row[Any]) -> StoredSlice:
    return StoredSlice(unit=row.unit, bounds=row.bounds, done=row.done_at is not None, snapshot=row.snapshot_id)
