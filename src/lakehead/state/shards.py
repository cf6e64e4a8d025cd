"""Shards, the units of work: opened, acquired, extended, tried, released and acknowledged. `pruning` removes them."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, func, or_, select, update

from lakehead.state.begun_units import object_progress
from lakehead.state.database import Database, insert_new
from lakehead.state.keys import by_key, checked_key, chunks, unit_key
from lakehead.state.model import Shard, ShardState
from lakehead.state.schema import shards


class Shards:
    """The shards of tables. An owner is one start of one process and belongs to one state."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, table: str, units: Iterable[str], *, token: str, generation: int = 0) -> list[Shard]:
        """Create the shards that do not exist yet, ready. Returns all shards of these units, in the order given.

        A shard has the publish token of the owner that opened it first, or acquired it since.
        """
        wanted = list(dict.fromkeys(units))
        self._database.write(lambda connection: self._open(connection, table, wanted, token, generation))
        found = {shard.unit: shard for shard in self.read(table, wanted, generation=generation)}
        return [found[unit] for unit in wanted if unit in found]

    def read(self, table: str, units: Iterable[str], *, generation: int = 0) -> list[Shard]:
        """The shards of these units that exist."""
        keys = by_key(units)

        def work(connection: Connection) -> list[Shard]:
            return [
                _shard(row)
                for some in chunks(keys)
                for row in connection.execute(select(shards).where(_these(table, generation, some)))
            ]

        return self._database.read(work)

    def acquire(
        self, table: str, units: Iterable[str], *, owner: str, lease_until: datetime, generation: int = 0
    ) -> set[str]:
        """Take the leases that are free, expired, or this owner's already. Returns the units that were acquired.

        Of two concurrent owners exactly one gets each unit. A completed shard is never acquired.
        """
        now = self._database.now()
        free = and_(
            shards.c.state != ShardState.COMPLETED,
            or_(shards.c.owner.is_(None), shards.c.owner == owner, shards.c.lease_until <= now),
        )
        taken = {
            "state": ShardState.IN_PROGRESS,
            "owner": checked_key("owner", owner),
            "publish_token": owner,
            "lease_until": lease_until,
            "extended_at": now,
            "updated_at": now,
        }
        return self._change(table, units, generation, free, taken, stamped=(owner, now))

    def extend(
        self, table: str, units: Iterable[str], *, owner: str, lease_until: datetime, generation: int = 0
    ) -> set[str]:
        """Extend the leases that this owner still holds, even if they have expired. Returns those units."""
        now = self._database.now()
        extended = {"lease_until": lease_until, "extended_at": now, "updated_at": now}
        return self._change(table, units, generation, _held_by(owner), extended, stamped=(owner, now))

    def release(self, table: str, units: Iterable[str], *, owner: str, generation: int = 0) -> int:
        """Release the units that this owner holds, so that they are ready for other owners. Returns how many."""
        given = {"state": ShardState.READY, "owner": None, "lease_until": None, "updated_at": self._database.now()}
        return self._count(table, units, generation, _held_by(owner), given)

    def set_tries(self, table: str, tries: Mapping[str, int], *, owner: str, generation: int = 0) -> set[str]:
        """Set how often units were tried, of those that this owner holds. Returns these.

        The number is set, and not counted up or down: a call whose answer was lost can be repeated.
        """
        numbers: dict[int, dict[str, str]] = {}
        for key, unit in by_key(tries).items():
            numbers.setdefault(tries[unit], {})[key] = unit

        def work(connection: Connection) -> set[str]:
            changed: set[str] = set()
            now = self._database.now()
            for number, keys in sorted(numbers.items()):
                for some in chunks(keys):
                    held = and_(_these(table, generation, some), _held_by(owner))
                    connection.execute(update(shards).where(held).values(tries=number, updated_at=now))
                    found = select(shards.c.unit_key).where(held, shards.c.updated_at == now)
                    changed.update(keys[key] for key in connection.execute(found).scalars())
            return changed

        return self._database.write(work)

    def reset_tries(self, table: str, units: Iterable[str], *, owner: str, generation: int = 0) -> int:
        """Forget all tries of units that this owner holds, because reading them succeeded. Returns how many."""
        tried = and_(_held_by(owner), shards.c.tries > 0)
        return self._count(table, units, generation, tried, {"tries": 0, "updated_at": self._database.now()})

    def acknowledge(self, table: str, units: Iterable[str], *, generation: int = 0) -> int:
        """Record that the messages of completed units were acknowledged, which starts their deduplication windows.

        Returns how many units were not acknowledged before.
        """
        now = self._database.now()
        completed = and_(shards.c.state == ShardState.COMPLETED, shards.c.acknowledged_at.is_(None))
        return self._count(table, units, generation, completed, {"acknowledged_at": now, "updated_at": now})

    def renew_windows(self, table: str, units: Iterable[str], *, generation: int = 0) -> int:
        """Begin the deduplication windows of acknowledged units anew: a message has announced them again.

        Returns how many windows were renewed.
        """
        now = self._database.now()
        acknowledged = and_(shards.c.state == ShardState.COMPLETED, shards.c.acknowledged_at.is_not(None))
        return self._count(table, units, generation, acknowledged, {"acknowledged_at": now, "updated_at": now})

    def keep(self, table: str, units: Iterable[str], *, generation: int = 0) -> int:
        """Take back the acknowledgement of units: a folder still has them, so no window may end. Returns how many."""
        acknowledged = and_(shards.c.state == ShardState.COMPLETED, shards.c.acknowledged_at.is_not(None))
        return self._count(table, units, generation, acknowledged, {"acknowledged_at": None})

    def landed_contents(self, table: str, uris: Collection[str]) -> set[str]:
        """Which of these URIs have a unit with an ETag in its id, `<uri>?etag=…`, that has landed. Reads all shards."""

        def work(connection: Connection) -> set[str]:
            position = func.strpos if connection.dialect.name == "postgresql" else func.instr
            # Of a unit without an ETag it is the first character: PostgreSQL refuses negative lengths.
            uri = func.substr(shards.c.unit, 1, func.abs(position(shards.c.unit, "?etag=") - 1))
            landed = and_(shards.c.state == ShardState.COMPLETED, shards.c.snapshot_id.is_not(None))
            here = and_(shards.c.table_uuid == checked_key("table", table), landed)
            return {
                found
                for some in chunks(uris)
                for found in connection.execute(select(uri).where(here, uri.in_(some)).distinct()).scalars()
            }

        return self._database.read(work) & set(uris)  # MariaDB ignores spaces at the end

    def counts(self, table: str) -> dict[ShardState, int]:
        """How many shards of a table are in each state, counted in an index."""
        query = select(shards.c.state, func.count()).where(shards.c.table_uuid == table).group_by(shards.c.state)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return {ShardState(state): count for state, count in rows}

    def page(
        self, table: str, *, state: ShardState | None = None, after: Shard | None = None, limit: int = 1000
    ) -> list[Shard]:
        """Shards of a table in the order of their keys, at most so many; the next page comes after the last of them."""
        query = select(shards).where(shards.c.table_uuid == checked_key("table", table))
        if state is not None:
            query = query.where(shards.c.state == state)
        if after is not None:
            later = and_(shards.c.generation == after.generation, shards.c.unit_key > unit_key(after.unit))
            query = query.where(or_(shards.c.generation > after.generation, later))
        query = query.order_by(shards.c.generation, shards.c.unit_key).limit(limit)
        return [_shard(row) for row in self._database.read(lambda connection: connection.execute(query).all())]

    def _open(self, connection: Connection, table: str, units: list[str], token: str, generation: int) -> None:
        fresh = {
            "table_uuid": checked_key("table", table),
            "generation": generation,
            "state": ShardState.READY,
            "publish_token": checked_key("publish token", token),
            "owner": None,
            "lease_until": None,
            "extended_at": None,
            "tries": 0,
            "snapshot_id": None,
            "acknowledged_at": None,
            "updated_at": self._database.now(),
        }
        for some in chunks(by_key(units).items()):
            insert_new(connection, shards, [{**fresh, "unit_key": key, "unit": unit} for key, unit in some])

    def _change(
        self,
        table: str,
        units: Iterable[str],
        generation: int,
        which: ColumnElement[bool],
        values: dict[str, Any],
        *,
        stamped: tuple[str, datetime],
    ) -> set[str]:
        """Update, and return which rows matched: they have this call's time, which no other call of this owner has."""
        keys = by_key(units)
        owner, now = stamped
        met = and_(shards.c.owner == owner, shards.c.extended_at == now)

        def work(connection: Connection) -> set[str]:
            changed: set[str] = set()
            for some in chunks(keys):
                these = _these(table, generation, some)
                if connection.execute(update(shards).where(these, which).values(values)).rowcount:
                    changed.update(connection.execute(select(shards.c.unit_key).where(these, met)).scalars())
            return changed

        return {keys[key] for key in self._database.write(work)}

    def _count(
        self, table: str, units: Iterable[str], generation: int, which: ColumnElement[bool], values: dict[str, Any]
    ) -> int:
        keys = by_key(units)

        def work(connection: Connection) -> int:
            return sum(
                connection.execute(update(shards).where(_these(table, generation, some), which).values(values)).rowcount
                for some in chunks(keys)
            )

        return self._database.write(work)


def _these(table: str, generation: int, keys: Iterable[str]) -> ColumnElement[bool]:
    return and_(
        shards.c.table_uuid == checked_key("table", table),
        shards.c.generation == generation,
        shards.c.unit_key.in_(list(keys)),
    )


def _held_by(owner: str) -> ColumnElement[bool]:
    return and_(shards.c.owner == checked_key("owner", owner), shards.c.state != ShardState.COMPLETED)


def _shard(row: Row[Any]) -> Shard:
    return Shard(
        table=row.table_uuid,
        unit=row.unit,
        generation=row.generation,
        state=ShardState(row.state),
        publish_token=row.publish_token,
        owner=row.owner,
        lease_until=row.lease_until,
        extended_at=row.extended_at,
        tries=row.tries,
        snapshot=row.snapshot_id,
        acknowledged_at=row.acknowledged_at,
        updated_at=row.updated_at,
        landed_part=object_progress(row.landed_part),
    )
