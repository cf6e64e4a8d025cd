"""How far units have landed that land in several parts, as a step of a transaction.

Each part begins where the one before it ended: it was planned in a transaction that read how far the unit had landed,
and it is settled with the pointer that this transaction locked. So one number for each unit is enough.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, update

from lakehead.state.database import insert_new
from lakehead.state.dead_letters import NOBODY
from lakehead.state.keys import unit_key
from lakehead.state.model import ObjectProgress, ShardState, StoredLanding
from lakehead.state.schema import shards


def object_progress(stored: Mapping[str, Any] | None) -> ObjectProgress | None:
    """Decode the column of a shard."""
    return None if stored is None else ObjectProgress(**stored)


def newest_of_begun(landings: Sequence[StoredLanding]) -> list[StoredLanding]:
    """The landings, oldest first, such that each unit that landed in parts is either complete or begun.

    Its newest landing decides. If that one completed it, its parts do not matter any more. If that one is a part, it
    is not complete, though it may once have been: it was forgotten after its deduplication window, and lands again.
    """
    is_complete: dict[tuple[int, str], bool] = {}
    for landing in landings:
        is_complete |= dict.fromkeys(((landing.generation, unit) for unit in landing.begun), False)
        done = ((landing.generation, unit) for unit in landing.units)
        is_complete |= dict.fromkeys((key for key in done if key in is_complete), True)
    if not is_complete:
        return list(landings)

    def newest(landing: StoredLanding) -> StoredLanding:
        of = landing.generation
        return replace(
            landing,
            units=tuple(unit for unit in landing.units if is_complete.get((of, unit), True)),
            begun={unit: reached for unit, reached in landing.begun.items() if not is_complete[of, unit]},
        )

    return [newest(landing) for landing in landings]


def begin_units(connection: Connection, table: str, landings: Sequence[StoredLanding], now: datetime) -> None:
    """Record how far units have landed. Whoever holds them goes on holding them; their tries succeeded."""
    for landing in landings:
        for unit, reached in landing.begun.items():
            key = {"table_uuid": table, "generation": landing.generation, "unit_key": unit_key(unit)}
            fresh = {
                **key,
                "unit": unit,
                "state": ShardState.READY,
                "publish_token": NOBODY,
                "tries": 0,
                "updated_at": now,
            }
            insert_new(connection, shards, [fresh])
            which = [shards.c[name] == value for name, value in key.items()]
            # Not one that has landed; one that was given up may be tried again, and then goes on from here.
            begun = update(shards).where(*which, shards.c.snapshot_id.is_(None))
            connection.execute(begun.values(landed_part=asdict(reached), tries=0, updated_at=now))
