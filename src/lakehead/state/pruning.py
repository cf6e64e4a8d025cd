"""Pruning: completed shards are deleted when no pipeline of their table can receive their messages again.

A queue forgets a message that was acknowledged, so its shards go by age. A folder announces a file for as long as it is
there: such a shard is not acknowledged, and goes only when a listing that began after its landing lacks the file.

Every deletion and every beginning of a pause lock the row of the table's pruning lease. So when a pause has begun,
no deletion is under way, and a later one finds the pause.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select, update

from lakehead.state.database import Database, insert_new, insert_or_replace
from lakehead.state.keys import CHUNK, checked_key, chunks, pipeline_key, storable, unit_key
from lakehead.state.leases import Leases
from lakehead.state.model import LandedShard, Pruned, PruneLimits, ShardState
from lakehead.state.schema import MICROSECOND, leases, pruning_pauses, shards, windows

PRUNING = "prune"
_NONE_LEFT = 0


class Pruning:
    """Removes old shards of tables, for all pipelines that land in them."""

    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases

    def record(self, table: str, pipeline: str, limits: PruneLimits) -> None:
        """Record a pipeline's limits. Do so when it starts; `prune` does it again with each call."""
        row = {
            "table_uuid": checked_key("table", table),
            "pipeline_key": pipeline_key(pipeline),
            "pipeline": storable(pipeline),
            "window_us": limits.window // MICROSECOND,
            "most_shards": limits.most_shards,
            "seen_at": self._database.now(),
        }
        self._database.write(lambda connection: insert_or_replace(connection, windows, [row]))

    def limits(self, table: str) -> PruneLimits | None:
        """The largest limits of the table's pipelines, or None if it has none.

        A pipeline that has not recorded its limits for as long as its own window no longer counts.
        """
        now = self._database.now()
        query = select(windows.c.window_us, windows.c.most_shards, windows.c.seen_at).where(
            windows.c.table_uuid == checked_key("table", table)
        )
        rows = self._database.read(lambda connection: connection.execute(query).all())
        alive = [row for row in rows if row.seen_at + row.window_us * MICROSECOND >= now]
        if not alive:
            return None
        caps = [row.most_shards for row in alive]
        return PruneLimits(
            window=max(row.window_us for row in alive) * MICROSECOND,
            most_shards=None if None in caps else max(caps),
        )

    def prune(self, table: str, *, owner: str, pipeline: str, limits: PruneLimits, every: timedelta) -> Pruned | None:
        """Delete completed shards that were acknowledged longer ago than the largest window of the table's pipelines.

        If there are then more acknowledged shards than the largest `most_shards`, the oldest are deleted too. A shard
        that is in progress, that was not acknowledged, or that was given up as a dead letter is never deleted. Returns
        None, and only records the limits, if the table was pruned less than `every` ago.
        """
        self.record(table, pipeline, limits)
        now = self._database.now()
        holder = self._leases.holder(PRUNING, table=table)
        if holder is not None and holder[1] > now:
            return None  # also if the lease is our own: it limits our own calls too
        if not self._leases.take(PRUNING, owner, now + every, table=table):
            return None
        largest = self.limits(table) or limits
        expired, paused = self._remove_oldest(table, owner, before=now - largest.window)
        over_limit = 0
        if largest.most_shards is not None and not paused:
            excess = self._acknowledged(table) - largest.most_shards
            over_limit, paused = self._remove_oldest(table, owner, most=excess)
        return Pruned(expired=expired, over_limit=over_limit, paused=paused, limits=largest)

    def keep_below(self, table: str, prefix: str) -> int:
        """Take back the acknowledgements of units below a prefix: a folder announces them, so no window may end.

        They may have been landed by a backfill, or have been rebuilt from the ledger. Returns how many there were.
        """
        acknowledged = (
            select(shards.c.unit_key)
            .where(_prunable(table), shards.c.generation == 0, _below(prefix))
            .order_by(shards.c.unit_key)
            .limit(CHUNK)
        )

        def keep(connection: Connection) -> int:
            keys = list(connection.execute(acknowledged).scalars())
            here = and_(_prunable(table), shards.c.generation == 0, shards.c.unit_key.in_(keys))
            return connection.execute(update(shards).where(here).values(acknowledged_at=None)).rowcount if keys else 0

        kept = 0
        while count := self._database.write(keep):
            kept += count
        return kept

    def not_acknowledged(
        self, table: str, prefix: str, *, before: datetime, after: LandedShard | None = None, limit: int = CHUNK
    ) -> list[LandedShard]:
        """Units below a prefix that landed before a time, and whose messages are never acknowledged.

        In the order of their keys, at most so many; the next ones come after the last of them.
        """
        query = (
            select(shards.c.unit, shards.c.snapshot_id)
            .where(_listed(table), _below(prefix), shards.c.updated_at < before)
            .order_by(shards.c.unit_key)
            .limit(limit)
        )
        if after is not None:
            query = query.where(shards.c.unit_key > unit_key(after.unit))
        rows = self._database.read(lambda connection: connection.execute(query).all())
        return [LandedShard(row.unit, row.snapshot_id) for row in rows]

    def remove_landed(self, table: str, gone: Iterable[LandedShard]) -> int | None:
        """Delete the shards of files that are gone, unless they were acknowledged or have landed again since.

        Returns how many were deleted, or None if a pause stopped it.
        """
        removed = 0
        for some in chunks(gone):
            count = self._database.write(lambda connection: self._remove_landed(connection, table, some))  # noqa: B023 - called at once
            if count is None:
                return None
            removed += count
        return removed

    def pause(self, table: str, owner: str, until: datetime) -> None:
        """Keep every shard of a table until the pause ends. When this returns, no deletion is under way."""
        self._database.write(lambda connection: self._pause(connection, table, owner, until))

    def extend_pause(self, table: str, owner: str, until: datetime) -> bool:
        """Extend a pause. False if it was over and shards may have been deleted since, or the state was rebuilt."""
        return self._database.write(lambda connection: extend_pause(connection, table, owner, until))

    def end_pause(self, table: str, owner: str) -> None:
        """End a pause, if it has not ended yet."""
        ended = delete(pruning_pauses).where(*_pause_of(table, owner))
        self._database.write(lambda connection: connection.execute(ended))

    def _pause(self, connection: Connection, table: str, owner: str, until: datetime) -> None:
        now = self._database.now()
        row = {"kind": PRUNING, "table_uuid": checked_key("table", table), "owner": checked_key("owner", owner)}
        insert_new(connection, leases, [{**row, "until": now, "taken_at": now}])
        connection.execute(update(leases).where(*_lease(table)).values(taken_at=now))
        insert_or_replace(connection, pruning_pauses, [{"table_uuid": table, "owner": owner, "until": until}])

    def _acknowledged(self, table: str) -> int:
        counted = select(func.count()).select_from(shards).where(_prunable(table))
        return self._database.read(lambda connection: connection.execute(counted).scalar_one())

    def _remove_oldest(
        self, table: str, owner: str, *, before: datetime | None = None, most: int | None = None
    ) -> tuple[int, bool]:
        """Delete the shards that were acknowledged first. Returns how many, and whether a pause stopped it."""
        removed = 0
        while most is None or removed < most:
            limit = CHUNK if most is None else min(CHUNK, most - removed)
            # Small transactions: a long one would block settling.
            count = self._database.write(lambda connection: self._remove(connection, table, owner, before, limit))  # noqa: B023 - called at once
            if count is None:
                return removed, True
            if count == _NONE_LEFT:
                break
            removed += count
        return removed, False

    def _remove(
        self, connection: Connection, table: str, owner: str, before: datetime | None, limit: int
    ) -> int | None:
        """Delete up to `limit` shards. Returns how many, or None if pruning is paused."""
        now = self._database.now()
        locked = update(leases).where(*_lease(table), leases.c.owner == owner).values(taken_at=now)
        if connection.execute(locked).rowcount != 1:
            return _NONE_LEFT  # another pipeline prunes by now
        if _is_paused(connection, table, now):
            return None
        old = _prunable(table) if before is None else and_(_prunable(table), shards.c.acknowledged_at < before)
        oldest = (
            select(shards.c.generation, shards.c.unit_key)
            .where(old)
            .order_by(shards.c.acknowledged_at, shards.c.generation, shards.c.unit_key)
            .limit(limit)
        )
        generations: dict[int, list[str]] = {}
        for row in connection.execute(oldest):
            generations.setdefault(row.generation, []).append(row.unit_key)
        return sum(
            connection.execute(
                delete(shards).where(old, shards.c.generation == generation, shards.c.unit_key.in_(sorted(keys)))
            ).rowcount
            for generation, keys in generations.items()
        )

    def _remove_landed(self, connection: Connection, table: str, gone: Sequence[LandedShard]) -> int | None:
        """Delete some shards. Returns how many, or None if pruning is paused."""
        now = self._database.now()
        connection.execute(update(leases).where(*_lease(table)).values(taken_at=now))
        if _is_paused(connection, table, now):
            return None
        snapshots = {unit_key(each.unit): each.snapshot for each in gone}
        here = and_(_listed(table), shards.c.unit_key.in_(sorted(snapshots)))
        found = connection.execute(select(shards.c.unit_key, shards.c.snapshot_id).where(here))
        same = sorted(row.unit_key for row in found if row.snapshot_id == snapshots[row.unit_key])
        return connection.execute(delete(shards).where(here, shards.c.unit_key.in_(same))).rowcount if same else 0


def _is_paused(connection: Connection, table: str, now: datetime) -> bool:
    """Whether pruning is paused. Ask with the lease row locked: then no pause begins before the transaction ends."""
    here = pruning_pauses.c.table_uuid == table
    connection.execute(delete(pruning_pauses).where(here, pruning_pauses.c.until <= now))
    return connection.execute(select(pruning_pauses.c.owner).where(here).limit(1)).first() is not None


def extend_pause(connection: Connection, table: str, owner: str, until: datetime) -> bool:
    """Extend a pause within a transaction; it cannot end before the transaction does."""
    extended = update(pruning_pauses).where(*_pause_of(table, owner)).values(until=until)
    return connection.execute(extended).rowcount == 1


def _prunable(table: str) -> ColumnElement[bool]:
    return and_(
        shards.c.table_uuid == checked_key("table", table),
        shards.c.state == ShardState.COMPLETED,
        shards.c.acknowledged_at.is_not(None),
        shards.c.snapshot_id.is_not(None),
    )


def _listed(table: str) -> ColumnElement[bool]:
    """Shards of files in folders: landed, and not acknowledged. Files have no generations."""
    return and_(
        shards.c.table_uuid == checked_key("table", table),
        shards.c.generation == 0,
        shards.c.state == ShardState.COMPLETED,
        shards.c.acknowledged_at.is_(None),
        shards.c.snapshot_id.is_not(None),
    )


def _below(prefix: str) -> ColumnElement[bool]:
    # Not LIKE, for which SQLite's letters have no case.
    return func.substr(shards.c.unit, 1, len(prefix)) == prefix


def _lease(table: str) -> tuple[ColumnElement[bool], ...]:
    return leases.c.kind == PRUNING, leases.c.table_uuid == table


def _pause_of(table: str, owner: str) -> tuple[ColumnElement[bool], ...]:
    return pruning_pauses.c.table_uuid == table, pruning_pauses.c.owner == owner
