"""The landing protocol's transactions: read the pointer, plan, settle, rebuild.

They synchronize on the table's pointer row. Each begins with an update of that row, conditional on where the pointer
must be; it matches one row or none, and the row is locked from then on. So two settlers, or a settler and a planner,
run one after the other under any isolation level.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, and_, delete, select, update

from lakehead.state.begun_units import begin_units, newest_of_begun, object_progress
from lakehead.state.completion import complete_units
from lakehead.state.database import Database, insert_new
from lakehead.state.dead_letters import give_up_again
from lakehead.state.history import event_row
from lakehead.state.keys import by_key, checked_key, chunks
from lakehead.state.model import (
    DeadLetter,
    Mark,
    ObjectProgress,
    Planned,
    PointerMoved,
    ShardState,
    Spans,
    StoredLanding,
    StoredPointer,
    Watermark,
)
from lakehead.state.progress import advance
from lakehead.state.pruning import extend_pause
from lakehead.state.ranges import add_ranges, read_ranges
from lakehead.state.schema import (
    MICROSECOND,
    days,
    dead_letters,
    events,
    files,
    plans,
    pointers,
    pruning_pauses,
    ranges,
    shards,
    slices,
    watermarks,
    windows,
)
from lakehead.state.values import not_behind


class Landings:
    """What has landed in each table, as far as it is settled."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def pointer(self, table: str) -> StoredPointer | None:
        """The snapshot up to which the table is settled; None if none of its landings is."""
        return self._database.read(lambda connection: _pointer(connection, table))

    def ranges(self, table: str, streams: Iterable[str]) -> dict[str, Spans]:
        """The record numbers that have landed, as far as the table is settled: for each stream, in order and merged.

        A stream without landed records has no spans. To decide what to land, use those that `plan` returns.
        """
        wanted = list(streams)
        return self._database.read(lambda connection: read_ranges(connection, table, wanted))

    def settle(
        self, table: str, expected: StoredPointer | None, new: StoredPointer, landings: Sequence[StoredLanding]
    ) -> bool:
        """Write the landings between two pointers and move the pointer, if it is still at the expected snapshot.

        All in one transaction: the units are completed with their snapshots (also those that were never opened in this
        state) or recorded as begun, the record numbers are added to those that had landed, the watermark moves forward,
        the events are written. Returns False if the pointer is at another snapshot by now; then nothing was written:
        fence again. After `OutcomeUnknown`, read the pointer.
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
        """Choose what this owner may land from a fenced head, in one transaction that locks the pointer there.

        A unit is taken, and awaits its commit from then on, if this owner extended its lease after the fence.
        `fenced_at` comes from the same state's `now()`, after the last settle of the fence. The record numbers that
        have landed in the streams are read in the same transaction, so no settle can happen in between.
        """
        units, wanted = list(candidates), list(streams)

        def work(connection: Connection) -> Planned | PointerMoved:
            now = self._database.now()
            if not _hold(connection, table, at, now):
                return PointerMoved(_pointer(connection, table))
            verdicts, begun = _choose(connection, table, units, owner, fenced_at, generation, now)
            return _planned(units, verdicts, read_ranges(connection, table, wanted), begun)

        return self._database.write(work)

    def restore(
        self,
        table: str,
        landings: Sequence[StoredLanding],
        acknowledged: Sequence[datetime],
        *,
        paused_by: str,
        paused_until: datetime,
    ) -> bool:
        """Complete units of old landings again whose shards may have been pruned.

        `acknowledged` has for each landing when its units were acknowledged, for shards that do not exist any more.

        Needs a pause of pruning by this owner, and extends it in the same transaction. False, and nothing is written,
        if the pause was over: shards may have been deleted, or the table's state rebuilt.
        """

        def work(connection: Connection) -> bool:
            now = self._database.now()
            _lock(connection, table, now)
            if not extend_pause(connection, table, paused_by, paused_until):
                return False
            complete_units(connection, table, landings, now, acknowledged=acknowledged, are_old=True)
            return True

        return self._database.write(work)

    def rebuild(
        self,
        table: str,
        pointer: StoredPointer | None,
        landings: Sequence[StoredLanding],
        letters: Sequence[DeadLetter] = (),
    ) -> None:
        """Replace everything that the state has on a table by what its ledger and snapshots say, in one transaction.

        Leases on its units, its plan and its day status are deleted: work in progress fails safely and is done again;
        so do pauses of pruning. Events are history and stay. The stored dead letters, and those that the state has
        already, are given up again, unless they are being tried again. The deduplication window of the rebuilt shards
        starts now, because it is no longer known when they were acknowledged; the oldest landing's ends first.
        """
        self._database.write(lambda connection: self._rebuild(connection, table, pointer, landings, letters))

    def _settle(
        self,
        connection: Connection,
        table: str,
        expected: StoredPointer | None,
        new: StoredPointer,
        landings: Sequence[StoredLanding],
    ) -> bool:
        now = self._database.now()
        if not _hold(connection, table, expected.snapshot if expected else None, now):
            return False
        units = newest_of_begun(landings)
        complete_units(connection, table, units, now)
        begin_units(connection, table, units, now)
        add_ranges(connection, table, (numbered for landing in landings for numbered in landing.numbered))
        _go_forward(connection, table, landings, now)
        insert_new(connection, events, [event_row(event) for landing in landings for event in landing.events])
        _move(connection, table, new, now)
        return True

    def forget(self, table: str) -> None:
        """Delete everything that the state has on a table that is dropped, in one transaction. Events stay."""

        def work(connection: Connection) -> None:
            _lock(connection, table, self._database.now())
            known = (shards, ranges, watermarks, plans, slices, days, pruning_pauses, windows, dead_letters, files)
            for each in (*known, pointers):
                connection.execute(delete(each).where(each.c.table_uuid == table))

        self._database.write(work)

    def _rebuild(
        self,
        connection: Connection,
        table: str,
        pointer: StoredPointer | None,
        landings: Sequence[StoredLanding],
        letters: Sequence[DeadLetter],
    ) -> None:
        now = self._database.now()
        _lock(connection, table, now)
        for known in (shards, ranges, watermarks, plans, slices, days, pruning_pauses):
            connection.execute(delete(known).where(known.c.table_uuid == table))
        in_order = [now - number * MICROSECOND for number in range(len(landings), 0, -1)]
        units = newest_of_begun(landings)
        complete_units(connection, table, units, now, acknowledged=in_order)
        give_up_again(connection, table, letters, now)
        begin_units(connection, table, units, now)
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
) -> tuple[dict[str, str], dict[str, ObjectProgress]]:
    """Take the units that this owner holds.

    Returns for each unit that has a row which field of `Planned` it is in, and how far those have landed that were
    taken and are begun.
    """
    units = by_key(candidates)
    ours = and_(
        shards.c.owner == owner,
        shards.c.extended_at > fenced_at,
        shards.c.state.in_((ShardState.IN_PROGRESS, ShardState.AWAITING_COMMIT)),
    )
    verdicts: dict[str, str] = {}
    begun: dict[str, ObjectProgress] = {}
    for keys in chunks(units):
        these = and_(shards.c.table_uuid == table, shards.c.generation == generation, shards.c.unit_key.in_(keys))
        # The update comes first: it locks the rows, so that no unit is taken over between the choice and the commit.
        connection.execute(update(shards).where(these, ours).values(state=ShardState.AWAITING_COMMIT, updated_at=now))
        wanted = shards.c.unit_key, shards.c.state, shards.c.owner, shards.c.updated_at, shards.c.landed_part
        for row in connection.execute(select(*wanted).where(these)):
            if row.state == ShardState.COMPLETED:
                verdict = "landed"
            elif row.owner == owner and row.updated_at == now:  # exactly the rows that the update matched
                verdict = "taken"
                if (reached := object_progress(row.landed_part)) is not None:
                    begun[units[row.unit_key]] = reached
            else:
                verdict = "lost"
            verdicts[units[row.unit_key]] = verdict
    return verdicts, begun


def _planned(
    candidates: Iterable[str], verdicts: dict[str, str], landed: dict[str, Spans], begun: dict[str, ObjectProgress]
) -> Planned:
    piles: dict[str, list[str]] = {"taken": [], "landed": [], "lost": [], "gone": []}
    for unit in dict.fromkeys(candidates):
        piles[verdicts.get(unit, "gone")].append(unit)
    return Planned(**{pile: tuple(units) for pile, units in piles.items()}, ranges=landed, begun=begun)


def _pointer(connection: Connection, table: str) -> StoredPointer | None:
    here = pointers.c.table_uuid == checked_key("table", table)
    row = connection.execute(select(pointers.c.snapshot_id, pointers.c.last_landing).where(here)).first()
    return StoredPointer(row.snapshot_id, row.last_landing) if row and row.snapshot_id is not None else None


def _make_row(connection: Connection, table: str, now: datetime) -> None:
    row = {
        "table_uuid": checked_key("table", table),
        "snapshot_id": None,
        "last_landing": None,
        "settled_at": now,
        "locked_at": now,
    }
    insert_new(connection, pointers, [row])


def _lock(connection: Connection, table: str, now: datetime) -> None:
    """Lock the pointer, wherever it is, until the transaction ends."""
    _make_row(connection, table, now)
    connection.execute(update(pointers).where(pointers.c.table_uuid == table).values(locked_at=now))


def _hold(connection: Connection, table: str, at: int | None, now: datetime) -> bool:
    """Whether the pointer is at this snapshot; if so, it is locked there until the transaction ends."""
    if at is None:
        _make_row(connection, table, now)
    held = update(pointers).where(pointers.c.table_uuid == checked_key("table", table), _at(at)).values(locked_at=now)
    return connection.execute(held).rowcount == 1


def _at(snapshot: int | None) -> ColumnElement[bool]:
    # The id is enough: snapshot ids are unique in a table, and each snapshot has one last landing.
    return pointers.c.snapshot_id.is_(None) if snapshot is None else pointers.c.snapshot_id == snapshot


def _move(connection: Connection, table: str, pointer: StoredPointer | None, now: datetime) -> None:
    moved = {
        "snapshot_id": pointer.snapshot if pointer else None,
        "last_landing": pointer.last_landing if pointer else None,
        "settled_at": now,
    }
    connection.execute(update(pointers).where(pointers.c.table_uuid == table).values(moved))


def _go_forward(connection: Connection, table: str, landings: Sequence[StoredLanding], now: datetime) -> None:
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
