"""Units of work: opened, acquired, extended, tried, released, acknowledged and at last pruned."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Delete, Row, and_, delete, func, or_, select, update

from lakehead.state.database import Database, insert_new
from lakehead.state.keys import by_key, chunks, word
from lakehead.state.leases import Leases
from lakehead.state.model import Shard, ShardState
from lakehead.state.schema import shards

PRUNING = "prune"


class Shards:
    """The shards of tables. An owner is one start of one process and belongs to one state."""

    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases

    def open(self, table: str, units: Iterable[str], *, token: str, generation: int = 0) -> list[Shard]:
        """Make the shards that are not there yet, ready; answer all as they are, in the order asked for.

        A shard carries the publish token of whoever opened it first, or has acquired it since.
        """
        wanted = list(dict.fromkeys(units))
        self._database.write(lambda connection: self._open(connection, table, wanted, token, generation))
        found = {shard.unit: shard for shard in self.read(table, wanted, generation=generation)}
        return [found[unit] for unit in wanted if unit in found]

    def read(self, table: str, units: Iterable[str], *, generation: int = 0) -> list[Shard]:
        """The shards that are there."""
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
        """Take the leases that are free, over, or this owner's already; the units that were got.

        Of two owners who ask at once exactly one gets each. A completed shard is never got.
        """
        now = self._database.now()
        free = and_(
            shards.c.state != ShardState.COMPLETED,
            or_(shards.c.owner.is_(None), shards.c.owner == owner, shards.c.lease_until <= now),
        )
        taken = {
            "state": ShardState.IN_PROGRESS,
            "owner": word("owner", owner),
            "publish_token": owner,
            "lease_until": lease_until,
            "extended_at": now,
            "updated_at": now,
        }
        return self._change(table, units, generation, free, taken, stamped=(owner, now))

    def extend(
        self, table: str, units: Iterable[str], *, owner: str, lease_until: datetime, generation: int = 0
    ) -> set[str]:
        """Extend the leases that this owner still holds, even if their time is over; the units that it still has."""
        now = self._database.now()
        extended = {"lease_until": lease_until, "extended_at": now, "updated_at": now}
        return self._change(table, units, generation, _held_by(owner), extended, stamped=(owner, now))

    def release(self, table: str, units: Iterable[str], *, owner: str, generation: int = 0) -> int:
        """Give back what this owner holds: the units are ready for anybody. How many they were."""
        given = {"state": ShardState.READY, "owner": None, "lease_until": None, "updated_at": self._database.now()}
        return self._count(table, units, generation, _held_by(owner), given)

    def count_try(self, table: str, units: Iterable[str], *, owner: str, generation: int = 0) -> dict[str, int]:
        """Count one more try of each unit that this owner holds, before it is read. The tries, this one included."""
        keys = by_key(units)

        def work(connection: Connection) -> dict[str, int]:
            tries: dict[str, int] = {}
            now = self._database.now()
            for some in chunks(keys):
                held = and_(_these(table, generation, some), _held_by(owner))
                connection.execute(update(shards).where(held).values(tries=shards.c.tries + 1, updated_at=now))
                counted = select(shards.c.unit, shards.c.tries).where(held, shards.c.updated_at == now)
                tries.update((row.unit, row.tries) for row in connection.execute(counted))
            return tries

        return self._database.write(work)

    def acknowledge(self, table: str, units: Iterable[str], *, generation: int = 0) -> int:
        """Record that the messages of completed units were acknowledged: their windows start. How many did."""
        now = self._database.now()
        completed = and_(shards.c.state == ShardState.COMPLETED, shards.c.acknowledged_at.is_(None))
        return self._count(table, units, generation, completed, {"acknowledged_at": now, "updated_at": now})

    def prune(self, table: str, *, owner: str, window: timedelta, every: timedelta) -> int | None:
        """Remove what was completed and acknowledged longer ago than the window; how many. Never one in progress.

        Whoever asks while another's pruning is less than `every` ago gets None, and nothing is done.
        """
        now = self._database.now()
        holder = self._leases.holder(PRUNING, table=table)
        if holder is not None and holder[1] > now:
            return None  # also if it is our own: it debounces our calls too
        if not self._leases.take(PRUNING, owner, now + every, table=table):
            return None
        return self._prune(table, now - window)

    def counts(self, table: str) -> dict[ShardState, int]:
        """How many shards of a table stand where."""
        query = select(shards.c.state, func.count()).where(shards.c.table_uuid == table).group_by(shards.c.state)
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return {ShardState(state): count for state, count in rows}

    def _open(self, connection: Connection, table: str, units: list[str], token: str, generation: int) -> None:
        fresh = {
            "table_uuid": word("table", table),
            "generation": generation,
            "state": ShardState.READY,
            "publish_token": word("publish token", token),
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
        """Update, and tell which rows it met: they carry this call's moment, which no other call of this owner has."""
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

    def _prune(self, table: str, before: datetime) -> int:
        old = and_(
            shards.c.table_uuid == word("table", table),
            shards.c.state == ShardState.COMPLETED,
            shards.c.acknowledged_at < before,
        )
        listed = select(shards.c.generation, shards.c.unit_key).where(old)
        rows = self._database.read(lambda connection: connection.execute(listed).all())
        generations: dict[int, list[str]] = {}
        for row in rows:
            generations.setdefault(row.generation, []).append(row.unit_key)
        # Small transactions: a long one would hold up whoever settles.
        return sum(
            self._remove(delete(shards).where(_these(table, generation, some), old))
            for generation, keys in generations.items()
            for some in chunks(sorted(keys))
        )

    def _remove(self, removed: Delete) -> int:
        return self._database.write(lambda connection: connection.execute(removed).rowcount)


def _these(table: str, generation: int, keys: Iterable[str]) -> ColumnElement[bool]:
    return and_(
        shards.c.table_uuid == word("table", table),
        shards.c.generation == generation,
        shards.c.unit_key.in_(list(keys)),
    )


def _held_by(owner: str) -> ColumnElement[bool]:
    return and_(shards.c.owner == word("owner", owner), shards.c.state != ShardState.COMPLETED)


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
    )
