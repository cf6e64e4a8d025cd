"""The history of runs: events, dead letters and metrics."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from math import isfinite
from typing import Any

from sqlalchemy import Connection, Row, select

from lakehead.errors import Misconfigured
from lakehead.state.database import Database, insert_new, insert_or_replace
from lakehead.state.dead_letters import (
    begin_replay_of,
    bury_unit,
    drop_letter,
    follow_letter,
    forget_letters,
    letter_of,
    letters_of,
    revive_unit,
)
from lakehead.state.keys import checked_key, chunks
from lakehead.state.model import DeadLetter, EventRecord, JsonObject, Metric
from lakehead.state.schema import dead_letters, events, metrics

RUN_START = "run_start"
"""The kind of the event with which a run begins."""


class History:
    """Events, dead letters and metrics. The state only indexes them; all of it is safe to lose."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def event(
        self, kind: str, *, table: str | None = None, run: str | None = None, payload: JsonObject | None = None
    ) -> EventRecord:
        """A new event with its id and time. It is not written yet."""
        return EventRecord(
            id=self._database.ids.uuid(),
            at=self._database.now(),
            kind=kind,
            table=table,
            run=run,
            payload=payload or {},
        )

    def add_events(self, happened: Sequence[EventRecord]) -> None:
        """Write events, all or none. An event whose id is stored already is not written again."""
        rows = [event_row(event) for event in happened]

        def write(connection: Connection) -> None:
            for some in chunks(rows):
                insert_new(connection, events, some)

        if rows:
            self._database.write(write)

    def events(
        self, *, table: str | None = None, run: str | None = None, since: datetime | None = None, limit: int = 1000
    ) -> list[EventRecord]:
        """Events, oldest first; optionally only those of one table, of one run, or from a time on."""
        query = select(events).order_by(events.c.at, events.c.event_id).limit(limit)
        if table is not None:
            query = query.where(events.c.table_uuid == table)
        if run is not None:
            query = query.where(events.c.run == run)
        if since is not None:
            query = query.where(events.c.at >= since)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [_event(row) for row in rows]

    def newest_runs(self, *, since: datetime | None = None, limit: int = 50) -> list[str]:
        """The newest runs of tables, by their `run_start` events, oldest first; optionally from a time on."""
        query = select(events.c.run).where(events.c.kind == RUN_START, events.c.run.is_not(None))
        if since is not None:
            query = query.where(events.c.at >= since)
        query = query.order_by(events.c.at.desc(), events.c.event_id).limit(limit)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return list(dict.fromkeys(row.run for row in reversed(rows)))

    def events_of_runs(self, runs: Iterable[str], kinds: Iterable[str]) -> list[EventRecord]:
        """The events of these kinds of some runs, oldest first: one query for each 1,000 runs."""
        wanted, some_kinds = list(dict.fromkeys(runs)), list(kinds)

        def work(connection: Connection) -> list[EventRecord]:
            return [
                _event(row)
                for some in chunks(wanted)
                for row in connection.execute(
                    select(events).where(events.c.run.in_(some), events.c.kind.in_(some_kinds))
                )
            ]

        return sorted(self._database.read(work), key=lambda event: (event.at, event.id))

    def bury(self, table: str, unit: str, reason: str, *, owner: str, generation: int = 0) -> DeadLetter | None:
        """Give a unit up: store the reason, and complete its shard without a snapshot, so that it is not tried again.

        None, and nothing is written, if this owner does not hold the unit: another owner may be landing it, or it has
        landed. A unit that was never opened has no owner, and anyone can bury it. A dropped letter stays dropped.
        """
        now = self._database.now()
        return self._database.write(
            lambda connection: bury_unit(connection, table, unit, reason, owner=owner, generation=generation, now=now)
        )

    def begin_replay(self, table: str, unit: str, *, generation: int = 0) -> bool:
        """Announce a replay, before its message is sent. False if there is no such dead letter, or it was dropped.

        The unit stays given up until `revive`. A pipeline that receives the message of a given-up unit whose letter
        has a `replayed_at` revives it, instead of acknowledging the message.
        """
        now = self._database.now()
        return self._database.write(
            lambda connection: begin_replay_of(connection, table, unit, generation=generation, now=now)
        )

    def revive(self, table: str, unit: str, *, generation: int = 0) -> bool:
        """Make a dead letter's unit ready again, with no tries counted.

        False if there is no such dead letter, if it was dropped, or if its unit is not given up (any more).
        """
        now = self._database.now()
        return self._database.write(
            lambda connection: revive_unit(connection, table, unit, generation=generation, now=now)
        )

    def drop(self, letter: DeadLetter) -> bool:
        """Drop a dead letter: its unit is never tried again. False, and nothing is written, if it has landed.

        A unit that is being landed right now may land all the same.
        """
        now = self._database.now()
        return self._database.write(lambda connection: drop_letter(connection, letter, now))

    def follow(self, letter: DeadLetter) -> None:
        """Index a dead letter whose unit is still tried, so that its landing closes it."""
        now = self._database.now()
        self._database.write(lambda connection: follow_letter(connection, letter, now))

    def close(self, table: str, units: Iterable[str], *, generation: int = 0) -> int:
        """Remove dead letters whose units have landed from the index. Returns how many."""
        some = list(units)
        return self._database.write(lambda connection: forget_letters(connection, table, some, generation))

    def letters_of(self, table: str, units: Iterable[str], *, generation: int = 0) -> list[DeadLetter]:
        """The dead letters of these units: given up, tried again, or dropped."""
        some = list(units)
        return self._database.read(lambda connection: letters_of(connection, table, some, generation))

    def dead_letters(self, table: str, *, limit: int = 1000) -> list[DeadLetter]:
        """A table's dead letters that wait for a decision, the oldest first: neither tried again nor dropped."""
        query = (
            select(dead_letters)
            .where(
                dead_letters.c.table_uuid == table,
                dead_letters.c.replayed_at.is_(None),
                dead_letters.c.dropped_at.is_(None),
            )
            .order_by(dead_letters.c.at, dead_letters.c.unit_key)
            .limit(limit)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [letter_of(row) for row in rows]

    def replayed_letters(self, table: str, *, limit: int = 1000) -> list[DeadLetter]:
        """A table's dead letters whose units are tried again, the first replayed first."""
        query = (
            select(dead_letters)
            .where(
                dead_letters.c.table_uuid == table,
                dead_letters.c.replayed_at.is_not(None),
                dead_letters.c.dropped_at.is_(None),
            )
            .order_by(dead_letters.c.replayed_at, dead_letters.c.unit_key)
            .limit(limit)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [letter_of(row) for row in rows]

    def record_metrics(self, figures: Sequence[Metric]) -> None:
        """Write metrics of runs; a later value replaces an earlier one."""
        now = self._database.now()
        rows = {(f.run, f.table, f.name): _metric_row(f, now) for f in figures}
        self._database.write(lambda connection: insert_or_replace(connection, metrics, list(rows.values())))

    def metrics(self, run: str) -> list[Metric]:
        """All metrics of one run."""
        query = select(metrics).where(metrics.c.run == run).order_by(metrics.c.table_uuid, metrics.c.name)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [Metric(run=row.run, name=row.name, value=row.value, table=row.table_uuid or None) for row in rows]


def event_row(event: EventRecord) -> dict[str, Any]:
    """An event as a row of its table."""
    return {
        "event_id": checked_key("event id", event.id),
        "at": event.at,
        "kind": checked_key("event kind", event.kind),
        "table_uuid": None if event.table is None else checked_key("table", event.table),
        "run": None if event.run is None else checked_key("run", event.run),
        "payload": dict(event.payload),
    }


def _event(row: Row[Any]) -> EventRecord:
    return EventRecord(
        id=row.event_id, at=row.at, kind=row.kind, table=row.table_uuid, run=row.run, payload=row.payload
    )


def _metric_row(figure: Metric, now: datetime) -> dict[str, Any]:
    if not isfinite(figure.value):
        raise Misconfigured(f"The metric {figure.name!r} is {figure.value}, which MariaDB cannot store.")
    return {
        "run": checked_key("run", figure.run),
        "table_uuid": "" if figure.table is None else checked_key("table", figure.table),
        "name": checked_key("metric", figure.name),
        "value": figure.value,
        "at": now,
    }
