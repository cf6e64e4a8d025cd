"""What happened: events, dead letters and the figures of runs."""

from collections.abc import Sequence
from datetime import datetime
from math import isfinite
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update

from lakehead.errors import Misconfigured
from lakehead.state.database import Database, insert_new, insert_or_replace
from lakehead.state.keys import chunks, unit_key, word
from lakehead.state.model import DeadLetter, Event, JsonObject, Metric, ShardState
from lakehead.state.schema import dead_letters, events, metrics, shards


class History:
    """Losing it loses no data: nothing decides by it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def event(
        self, kind: str, *, table: str | None = None, run: str | None = None, payload: JsonObject | None = None
    ) -> Event:
        """A new event with its id and its moment. It is not written yet."""
        return Event(
            id=self._database.ids.uuid(),
            at=self._database.now(),
            kind=kind,
            table=table,
            run=run,
            payload=payload or {},
        )

    def add_events(self, happened: Sequence[Event]) -> None:
        """Write events, all or none. One that is there already, by its id, is not written again."""
        rows = [event_row(event) for event in happened]

        def write(connection: Connection) -> None:
            for some in chunks(rows):
                insert_new(connection, events, some)

        if rows:
            self._database.write(write)

    def events(
        self, *, table: str | None = None, run: str | None = None, since: datetime | None = None, limit: int = 1000
    ) -> list[Event]:
        """Events by their moments, the oldest first; of one table, one run, or from a moment on."""
        query = select(events).order_by(events.c.at, events.c.event_id).limit(limit)
        if table is not None:
            query = query.where(events.c.table_uuid == table)
        if run is not None:
            query = query.where(events.c.run == run)
        if since is not None:
            query = query.where(events.c.at >= since)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [_event(row) for row in rows]

    def bury(self, table: str, unit: str, reason: str, *, owner: str, generation: int = 0) -> DeadLetter | None:
        """Give a unit up: remember why, and complete its shard without a snapshot, so that nobody tries it again.

        None, and nothing written, if this owner does not hold the unit: it may be landing elsewhere, or have landed.
        What was never opened is nobody's and can be buried by anybody.
        """
        return self._database.write(lambda connection: self._bury(connection, table, unit, reason, owner, generation))

    def revive(self, table: str, unit: str, *, generation: int = 0) -> bool:
        """Let a dead letter be tried anew, from its first try. False if it is none."""
        return self._database.write(lambda connection: self._revive(connection, table, unit, generation))

    def dead_letters(self, table: str, *, limit: int = 1000) -> list[DeadLetter]:
        """A table's dead letters, the oldest first."""
        query = (
            select(dead_letters)
            .where(dead_letters.c.table_uuid == table)
            .order_by(dead_letters.c.at, dead_letters.c.unit_key)
            .limit(limit)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [
            DeadLetter(
                table=row.table_uuid,
                unit=row.unit,
                generation=row.generation,
                reason=row.reason,
                tries=row.tries,
                at=row.at,
            )
            for row in rows
        ]

    def record_metrics(self, figures: Sequence[Metric]) -> None:
        """Write figures of runs; the last word counts."""
        now = self._database.now()
        rows = {(f.run, f.table, f.name): _metric_row(f, now) for f in figures}
        self._database.write(lambda connection: insert_or_replace(connection, metrics, list(rows.values())))

    def metrics(self, run: str) -> list[Metric]:
        """All figures of one run."""
        query = select(metrics).where(metrics.c.run == run).order_by(metrics.c.table_uuid, metrics.c.name)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [Metric(run=row.run, name=row.name, value=row.value, table=row.table_uuid or None) for row in rows]

    def _bury(
        self, connection: Connection, table: str, unit: str, reason: str, owner: str, generation: int
    ) -> DeadLetter | None:
        now = self._database.now()
        key = {"table_uuid": word("table", table), "generation": generation, "unit_key": unit_key(unit)}
        here = [shards.c[name] == value for name, value in key.items()]
        given_up = {"state": ShardState.COMPLETED, "owner": None, "lease_until": None, "updated_at": now}
        held = (*here, shards.c.owner == owner, shards.c.state != ShardState.COMPLETED)
        buried = connection.execute(update(shards).where(*held).values(given_up)).rowcount == 1
        tries = connection.execute(select(shards.c.tries).where(*here)).scalar()
        if tries is not None and not buried:
            return None
        tries = tries or 0
        storable = reason.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
        letter = {
            **key,
            "unit": unit,
            "reason": storable,
            "tries": tries,
            "at": now,
        }
        insert_or_replace(connection, dead_letters, [letter])
        return DeadLetter(table=table, unit=unit, generation=generation, reason=storable, tries=tries, at=now)

    def _revive(self, connection: Connection, table: str, unit: str, generation: int) -> bool:
        key = {"table_uuid": word("table", table), "generation": generation, "unit_key": unit_key(unit)}
        removed = delete(dead_letters).where(*(dead_letters.c[name] == value for name, value in key.items()))
        if connection.execute(removed).rowcount == 0:
            return False
        here = [shards.c[name] == value for name, value in key.items()]
        anew = {
            "state": ShardState.READY,
            "tries": 0,
            "acknowledged_at": None,
            "extended_at": None,
            "updated_at": self._database.now(),
        }
        connection.execute(update(shards).where(*here, shards.c.snapshot_id.is_(None)).values(anew))
        return True


def event_row(event: Event) -> dict[str, Any]:
    """An event as it is stored."""
    return {
        "event_id": word("event id", event.id),
        "at": event.at,
        "kind": word("event kind", event.kind),
        "table_uuid": None if event.table is None else word("table", event.table),
        "run": None if event.run is None else word("run", event.run),
        "payload": dict(event.payload),
    }


def _event(row: Row[Any]) -> Event:
    return Event(id=row.event_id, at=row.at, kind=row.kind, table=row.table_uuid, run=row.run, payload=row.payload)


def _metric_row(figure: Metric, now: datetime) -> dict[str, Any]:
    if not isfinite(figure.value):
        raise Misconfigured(f"The metric {figure.name!r} is {figure.value}, which MariaDB cannot store.")
    return {
        "run": word("run", figure.run),
        "table_uuid": "" if figure.table is None else word("table", figure.table),
        "name": word("metric", figure.name),
        "value": figure.value,
        "at": now,
    }
