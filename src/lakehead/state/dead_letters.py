"""The index of dead letters, as steps of a transaction. The letters themselves are objects in the ledger's store.

The row of a letter says whether its unit is given up, tried again, or dropped. A unit that is given up has a completed
shard without a snapshot, which is never pruned: so it stays given up however often its message is delivered.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, or_, select, update

from lakehead.state.database import insert_new, insert_or_replace
from lakehead.state.keys import by_key, checked_key, chunks, storable, unit_key
from lakehead.state.model import DeadLetter, ShardState
from lakehead.state.schema import dead_letters, shards

NOBODY = "-"
"""The publish token of a shard that was never opened in this state: what became of its unit was found elsewhere."""

_GIVEN_UP = and_(shards.c.state == ShardState.COMPLETED, shards.c.snapshot_id.is_(None))


def bury_unit(
    connection: Connection, table: str, unit: str, reason: str, *, owner: str, generation: int, now: datetime
) -> DeadLetter | None:
    """Give up a unit that this owner holds, or that was never opened. None, and nothing is written, otherwise."""
    key = _key(table, unit, generation)
    held = (*_shard(key), shards.c.owner == owner, shards.c.state != ShardState.COMPLETED)
    buried = connection.execute(update(shards).where(*held).values(_given_up(now))).rowcount == 1
    tries = connection.execute(select(shards.c.tries).where(*_shard(key))).scalar()
    if tries is not None and not buried:
        return None
    letter = DeadLetter(
        table=table, unit=unit, generation=generation, reason=storable(reason), tries=tries or 0, at=now
    )
    insert_or_replace(connection, dead_letters, [_row(letter)], keep_if_null=("dropped_at",))
    return letter


def begin_replay_of(connection: Connection, table: str, unit: str, *, generation: int, now: datetime) -> bool:
    """Mark a letter as replayed. Its unit stays given up. False if there is no such letter, or it was dropped."""
    here = (*_letter(_key(table, unit, generation)), dead_letters.c.dropped_at.is_(None))
    return connection.execute(update(dead_letters).where(*here).values(replayed_at=now)).rowcount == 1


def revive_unit(connection: Connection, table: str, unit: str, *, generation: int, now: datetime) -> bool:
    """Make a letter's unit ready again. False if there is no letter, it was dropped, or its unit is not given up."""
    key = _key(table, unit, generation)
    # The update comes first: it locks the letter.
    if not begin_replay_of(connection, table, unit, generation=generation, now=now):
        return False
    anew = {
        "state": ShardState.READY,
        "tries": 0,
        "acknowledged_at": None,
        "extended_at": None,
        "updated_at": now,
    }
    if connection.execute(update(shards).where(*_shard(key), _GIVEN_UP).values(anew)).rowcount == 1:
        return True
    return connection.execute(select(shards.c.unit_key).where(*_shard(key))).first() is None


def drop_letter(connection: Connection, letter: DeadLetter, now: datetime) -> bool:
    """Give a letter's unit up for good. False, and nothing is written, if it has landed."""
    key = _key(letter.table, letter.unit, letter.generation)
    insert_new(connection, shards, [_new_shard(key, letter.unit, now)])
    open_still = (*_shard(key), shards.c.snapshot_id.is_(None))
    if connection.execute(update(shards).where(*open_still).values(_given_up(now))).rowcount != 1:
        return False
    dropped = {**_row(letter), "replayed_at": None, "dropped_at": letter.dropped_at or now}
    insert_or_replace(connection, dead_letters, [dropped])
    return True


def follow_letter(connection: Connection, letter: DeadLetter, now: datetime) -> None:
    """Store the row of a letter whose unit is not given up. If there is a row, it is not changed."""
    insert_new(connection, dead_letters, [{**_row(letter), "replayed_at": letter.replayed_at or now}])


def letters_of(connection: Connection, table: str, units: Iterable[str], generation: int) -> list[DeadLetter]:
    """The letters of these units, in any state."""
    here = (dead_letters.c.table_uuid == checked_key("table", table), dead_letters.c.generation == generation)
    return [
        letter_of(row)
        for some in chunks(by_key(units))
        for row in connection.execute(select(dead_letters).where(*here, dead_letters.c.unit_key.in_(some)))
    ]


def forget_letters(connection: Connection, table: str, units: Iterable[str], generation: int) -> int:
    """Delete the rows of letters that have landed. Returns how many."""
    here = (dead_letters.c.table_uuid == checked_key("table", table), dead_letters.c.generation == generation)
    return sum(
        connection.execute(delete(dead_letters).where(*here, dead_letters.c.unit_key.in_(some))).rowcount
        for some in chunks(by_key(units))
    )


def give_up_again(connection: Connection, table: str, letters: Sequence[DeadLetter], now: datetime) -> None:
    """Store the letters, and give up every unit of the table whose letter says so and that has no shard."""
    for some in chunks(_row(letter) for letter in letters):
        insert_or_replace(connection, dead_letters, some)
    given_up = or_(dead_letters.c.replayed_at.is_(None), dead_letters.c.dropped_at.is_not(None))
    known = connection.execute(select(dead_letters).where(dead_letters.c.table_uuid == table, given_up)).all()
    for rows in chunks(_new_shard(_key(table, row.unit, row.generation), row.unit, now) for row in known):
        insert_new(connection, shards, rows)


def letter_of(row: Row[Any]) -> DeadLetter:
    """A row as a record."""
    return DeadLetter(
        table=row.table_uuid,
        unit=row.unit,
        generation=row.generation,
        reason=row.reason,
        tries=row.tries,
        at=row.at,
        replayed_at=row.replayed_at,
        dropped_at=row.dropped_at,
    )


def _row(letter: DeadLetter) -> dict[str, Any]:
    return {
        **_key(letter.table, letter.unit, letter.generation),
        "unit": letter.unit,
        "reason": storable(letter.reason),
        "tries": letter.tries,
        "at": letter.at,
        "replayed_at": letter.replayed_at,
        "dropped_at": letter.dropped_at,
    }


def _key(table: str, unit: str, generation: int) -> dict[str, Any]:
    return {"table_uuid": checked_key("table", table), "generation": generation, "unit_key": unit_key(unit)}


def _letter(key: dict[str, Any]) -> list[ColumnElement[bool]]:
    return [dead_letters.c[name] == value for name, value in key.items()]


def _shard(key: dict[str, Any]) -> list[ColumnElement[bool]]:
    return [shards.c[name] == value for name, value in key.items()]


def _given_up(now: datetime) -> dict[str, Any]:
    return {"state": ShardState.COMPLETED, "owner": None, "lease_until": None, "updated_at": now}


def _new_shard(key: dict[str, Any], unit: str, now: datetime) -> dict[str, Any]:
    return {
        **key,
        **_given_up(now),
        "unit": unit,
        "publish_token": NOBODY,
        "extended_at": None,
        "tries": 0,
        "snapshot_id": None,
        "acknowledged_at": now,
    }
