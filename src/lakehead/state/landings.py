"""The landing protocol's transactions: read the pointer, plan, settle, rebuild.

A table's pointer row is what they agree on. Each begins with an update of that row which names where the pointer must
be; it counts one row or none, and from then on the row is held. So two settlers, or a settler and a planner, come one
after the other under any isolation level.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, delete, or_, select, update

from lakehead.state.database import Database, insert_new
from lakehead.state.history import event_row
from lakehead.state.keys import by_key, chunks, word
from lakehead.state.model import Landing, Mark, Planned, Pointer, PointerMoved, ShardState, Spans, Watermark
from lakehead.state.progress import advance
from lakehead.state.ranges import add_ranges, read_ranges
from lakehead.state.schema import days, events, plans, pointers, ranges, shards, slices, watermarks
from lakehead.state.values import not_behind

NOBODY = "-"
"""The publish token of a shard that nobody opened here: its landing was found in the table."""


class Landings:
    """What has landed in which table, as far as it is settled."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pointer(self, table: str) -> Pointer | None:
        """The snapshot up to which the table is settled; None before its first landing is."""
        return self._database.read(lambda connection: _pointer(connection, table))

    def ranges(self, table: str, streams: Iterable[str]) -> dict[str, Spans]:
        """The record numbers that have landed, as far as the table is settled: for each stream, in order and merged.

        A stream of which nothing has landed has no spans. To choose what to land, take those of a plan.
        """
        wanted = list(streams)
        return self._database.read(lambda connection: read_ranges(connection, table, wanted))

    def settle(self, table: str, expected: Pointer | None, new: Pointer, landings: Sequence[Landing]) -> bool:
        """Write the landings between two pointers and move the pointer, if it is still where it was read.

        All in one transaction: the units are completed with their snapshots (also those that were never opened here),
        the record numbers join those that had landed, the watermark goes forward, the events are written. False means
        that the pointer's snapshot is another by now and that nothing was written: fence again. After `OutcomeUnknown`
        read the pointer.
        """
        return self._database.write(lambda connection: self._settle(connection, table, expected, new, landings))

    def plan(
        self,
        table: str,
        at: int | None,
        candidates: Iterable[str],
        *,
        owner: str,
        fenced_at: datetime,
        generation: int = 0,
        streams: Iterable[str] = (),
    ) -> Planned | PointerMoved:
        """Choose what this owner may land from a fenced head, in one transaction that holds the pointer there.

        A unit is taken, and awaits its commit from then on, if this owner extended its lease after the fence.
        `fenced_at` comes from the same state's `now()`, after the last settle of the fence. The record numbers that
        have landed in the streams are those of this transaction: no settle comes between them and the choice.
        """
        units, wanted = list(candidates), list(streams)

        def work(connection: Connection) -> Planned | PointerMoved:
            now = self._database.now()
            if not _hold(connection, table, at, now):
                return PointerMoved(_pointer(connection, table))
            verdicts = _choose(connection, table, units, owner, fenced_at, generation, now)
            return _planned(units, verdicts, read_ranges(connection, table, wanted))

        return self._database.write(work)

    def rebuild(self, table: str, pointer: Pointer | None, landings: Sequence[Landing]) -> None:
        """Replace everything known of a table by what its ledger and its snapshots say, in one transaction.

        Leases on its units, its plan and its day status are forgotten: what was under way fails closed and is done
        again. Events and dead letters are history and stay. The deduplication window of the rebuilt shards starts now,
        because nobody knows any more when they were acknowledged.
        """
        self._database.write(lambda connection: self._rebuild(connection, table, pointer, landings))

    def _settle(
        self, connection: Connection, table: str, expected: Pointer | None, new: Pointer, landings: Sequence[Landing]
    ) -> bool:
        now = self._database.now()
        if not _hold(connection, table, expected.snapshot if expected else None, now):
            return False
        _complete(connection, table, landings, now)
        add_ranges(connection, table, (numbered for landing in landings for numbered in landing.numbered))
        _go_forward(connection, table, landings, now)
        insert_new(connection, events, [event_row(event) for landing in landings for event in landing.events])
        _move(connection, table, new, now)
        return True

    def _rebuild(
        self, connection: Connection, table: str, pointer: Pointer | None, landings: Sequence[Landing]
    ) -> None:
        now = self._database.now()
        _make_row(connection, table, now)
        connection.execute(update(pointers).where(pointers.c.table_uuid == table).values(locked_at=now))
        for known in (shards, ranges, watermarks, plans, slices, days):
            connection.execute(delete(known).where(known.c.table_uuid == table))
        _complete(connection, table, landings, now)
        connection.execute(update(shards).where(shards.c.table_uuid == table).values(acknowledged_at=now))
        add_ranges(connection, table, (numbered for landing in landings for numbered in landing.numbered))
        _go_forward(connection, table, landings, now)
        _move(connection, table, pointer, now)


def _choose(
    connection: Connection,
    table: str,
    candidates: Iterable[str],
    owner: str,
    fenced_at: datetime,
    generation: int,
    now: datetime,
) -> dict[str, str]:
    """Take the units that are this owner's; which pile of a plan each unit that has a row belongs to."""
    units = by_key(candidates)
    ours = and_(
        shards.c.owner == owner,
        shards.c.extended_at > fenced_at,
        shards.c.state.in_((ShardState.IN_PROGRESS, ShardState.AWAITING_COMMIT)),
    )
    verdicts: dict[str, str] = {}
    for keys in chunks(units):
        these = and_(shards.c.table_uuid == table, shards.c.generation == generation, shards.c.unit_key.in_(keys))
        # The update comes first: it locks the rows, so that nobody takes a unit over between choice and commit.
        connection.execute(update(shards).where(these, ours).values(state=ShardState.AWAITING_COMMIT, updated_at=now))
        found = select(shards.c.unit_key, shards.c.state, shards.c.owner, shards.c.updated_at).where(these)
        for row in connection.execute(found):
            if row.state == ShardState.COMPLETED:
                verdict = "landed"
            elif row.owner == owner and row.updated_at == now:  # what the update met, and nothing else
                verdict = "taken"
            else:
                verdict = "lost"
            verdicts[units[row.unit_key]] = verdict
    return verdicts


def _planned(candidates: Iterable[str], verdicts: dict[str, str], landed: dict[str, Spans]) -> Planned:
    piles: dict[str, list[str]] = {"taken": [], "landed": [], "lost": [], "gone": []}
    for unit in dict.fromkeys(candidates):
        piles[verdicts.get(unit, "gone")].append(unit)
    return Planned(**{pile: tuple(units) for pile, units in piles.items()}, ranges=landed)


def _pointer(connection: Connection, table: str) -> Pointer | None:
    here = pointers.c.table_uuid == word("table", table)
    row = connection.execute(select(pointers.c.snapshot_id, pointers.c.last_landing).where(here)).first()
    return Pointer(row.snapshot_id, row.last_landing) if row and row.snapshot_id is not None else None


def _make_row(connection: Connection, table: str, now: datetime) -> None:
    row = {
        "table_uuid": word("table", table),
        "snapshot_id": None,
        "last_landing": None,
        "settled_at": now,
        "locked_at": now,
    }
    insert_new(connection, pointers, [row])


def _hold(connection: Connection, table: str, at: int | None, now: datetime) -> bool:
    """Whether the pointer is at this snapshot; if so it stays there until the transaction ends."""
    if at is None:
        _make_row(connection, table, now)
    held = update(pointers).where(pointers.c.table_uuid == word("table", table), _at(at)).values(locked_at=now)
    return connection.execute(held).rowcount == 1


def _at(snapshot: int | None) -> ColumnElement[bool]:
    # The id alone: a table has no two snapshots with the same one, and no snapshot with two last landings.
    return pointers.c.snapshot_id.is_(None) if snapshot is None else pointers.c.snapshot_id == snapshot


def _move(connection: Connection, table: str, pointer: Pointer | None, now: datetime) -> None:
    moved = {
        "snapshot_id": pointer.snapshot if pointer else None,
        "last_landing": pointer.last_landing if pointer else None,
        "settled_at": now,
    }
    connection.execute(update(pointers).where(pointers.c.table_uuid == table).values(moved))


def _complete(connection: Connection, table: str, landings: Sequence[Landing], now: datetime) -> None:
    """Complete the units, each with the first snapshot that holds it, in few statements for however many landings."""
    units: dict[tuple[int, str], tuple[str, int]] = {}
    for landing in landings:
        for key, unit in by_key(landing.units).items():
            units.setdefault((landing.generation, key), (unit, landing.snapshot))
    done = {"state": ShardState.COMPLETED, "owner": None, "lease_until": None, "updated_at": now}
    fresh = {"publish_token": NOBODY, "extended_at": None, "tries": 0, "acknowledged_at": None, "table_uuid": table}
    ordered = sorted(units.items())
    # All are inserted before any is looked at. So a shard that is opened in this moment waits for us and then finds
    # ours there, or is seen below: also where a transaction goes on seeing what it saw first.
    for some in chunks(ordered):
        rows = [
            {**fresh, **done, "generation": generation, "unit_key": key, "unit": unit, "snapshot_id": snapshot}
            for (generation, key), (unit, snapshot) in some
        ]
        insert_new(connection, shards, rows)
    # The first landing of a unit is the one to remember; a dead letter that landed after all has none.
    open_still = or_(shards.c.state != ShardState.COMPLETED, shards.c.snapshot_id.is_(None))
    for generation in sorted({generation for generation, _ in units}):
        for keys in chunks(key for (of, key), _ in ordered if of == generation):
            here = and_(shards.c.table_uuid == table, shards.c.generation == generation, open_still)
            found = connection.execute(select(shards.c.unit_key).where(here, shards.c.unit_key.in_(keys))).scalars()
            by_snapshot: dict[int, list[str]] = {}
            for key in sorted(found):
                by_snapshot.setdefault(units[generation, key][1], []).append(key)
            for snapshot, theirs in by_snapshot.items():
                connection.execute(
                    update(shards).where(here, shards.c.unit_key.in_(theirs)).values({**done, "snapshot_id": snapshot})
                )


def _go_forward(connection: Connection, table: str, landings: Sequence[Landing], now: datetime) -> None:
    furthest: Watermark | None = None
    for landing in landings:
        if landing.watermark is None:
            continue
        reached = Watermark(
            table=table,
            mark=Mark.LANDED,
            generation=landing.generation,
            value=landing.watermark,
            slice=landing.slice,
            snapshot=landing.snapshot,
            last_loaded=landing.load_date,
            read_by=landing.read_by,
        )
        if (
            furthest is None
            or reached.generation > furthest.generation
            or (reached.generation == furthest.generation and not_behind(reached.value, furthest.value))
        ):
            furthest = reached
    if furthest is not None:
        advance(connection, furthest, now)
