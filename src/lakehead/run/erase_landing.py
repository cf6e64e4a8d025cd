"""Erases a key from a table as a landing: what was read before, in raw or in the source, is then read anew."""

import asyncio
from typing import Any

from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.ids import Ids, Random
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import NewWatermark, Unit
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.ports import Overtaken
from lakehead.lake.protocol import Lander, fence
from lakehead.lake.state_progress import StateProgress
from lakehead.lake.table_leases import StateTableLeases
from lakehead.maintain.erase import EraseStager, Held, Key, erase_without_landing
from lakehead.retry import Backoff
from lakehead.state.owners import owner_named
from lakehead.state.state import State

TRIES = 10


def erase_as_landing(
    table: IcebergTable,
    key: Key,
    *,
    ledger: StoreLedger,
    state: State,
    pipeline: str,
    clock: Clock,
    ids: Ids,
    random: Random,
) -> Held:
    """Erase a key's rows from a table. Returns what was erased.

    It is a landing even if the table lacks the key: its watermark then names another snapshot, so a merge in progress,
    which may have read the key from raw, cannot publish. Raises `Unavailable` if loads were faster at every attempt.
    """
    owner = owner_named(ids.uuid())
    progress = StateProgress(state=state, owner=owner)
    for _ in range(TRIES):
        asyncio.run(fence(table, progress, ledger))
        mark = state.progress.watermark(table.uuid)
        if mark is None:
            return erase_without_landing(table, key, ids)
        unit = Unit(f"erase/{ids.uuid()}", mark.generation)
        stager = EraseStager(table, key, ids)
        lander: Lander[Any] = Lander(
            pipeline=pipeline,
            table=table,
            progress=progress,
            ledger=ledger,
            stager=stager,
            clock=clock,
            random=random,
            backoff=Backoff(attempts=10, first_seconds=0.2, cap_seconds=10.0),
            table_leases=StateTableLeases(state=state, owner=owner, clock=clock, random=random),
        )
        same = NewWatermark(watermark=mark.value, slice=mark.slice, load_date=mark.last_loaded, read_by=mark.read_by)
        progress.take(table.uuid, [unit])
        try:
            with progress.holding(table.uuid, [unit]):
                asyncio.run(lander.land([unit], new_watermark=same, expected=mark))
        except Overtaken:
            continue
        return stager.erased
    raise Unavailable(f"Loads of {table.name} were faster than the erasure {TRIES} times. Run it again.")
