"""Completes the shards of units that have landed, as a step of a transaction."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, and_, or_, select, update

from lakehead.state.database import insert_new
from lakehead.state.dead_letters import NOBODY
from lakehead.state.keys import by_key, chunks
from lakehead.state.model import ShardState, StoredLanding
from lakehead.state.schema import shards


def complete_units(
    connection: Connection,
    table: str,
    landings: Sequence[StoredLanding],
    now: datetime,
    *,
    acknowledged: Sequence[datetime] = (),
    are_old: bool = False,
) -> None:
    """Complete the units, each with the first snapshot that holds it, in few statements for any number of landings.

    `acknowledged` has for each landing when its new shards were acknowledged; empty: they are not acknowledged.
    `are_old`: a unit that is begun has landed since in part once more, and is not complete by an old landing.
    """
    units: dict[tuple[int, str], tuple[str, int]] = {}
    times = {each.snapshot: time for each, time in zip(landings, acknowledged, strict=True)} if acknowledged else {}
    for landing in landings:
        for key, unit in by_key(landing.units).items():
            units.setdefault((landing.generation, key), (unit, landing.snapshot))
    done = {"state": ShardState.COMPLETED, "owner": None, "lease_until": None, "updated_at": now}
    fresh = {"publish_token": NOBODY, "extended_at": None, "tries": 0, "table_uuid": table}
    ordered = sorted(units.items())
    # All rows are inserted before any is read. So a shard that is opened at the same time either waits for us and then
    # finds our row, or is seen below, even if the transaction reads from a fixed snapshot.
    for some in chunks(ordered):
        rows = [
            {
                **fresh,
                **done,
                "generation": generation,
                "unit_key": key,
                "unit": unit,
                "snapshot_id": snapshot,
                "acknowledged_at": times.get(snapshot),
            }
            for (generation, key), (unit, snapshot) in some
        ]
        insert_new(connection, shards, rows)
    # The first landing of a unit is the one that is kept; a dead letter that landed after all has none yet.
    open_still = or_(shards.c.state != ShardState.COMPLETED, shards.c.snapshot_id.is_(None))
    if are_old:
        open_still = and_(open_still, shards.c.landed_part.is_(None))
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
