"""The faulty store over a real one, in real time: what it injects, the port's answers survive."""

import asyncio
import json
from itertools import count
from pathlib import Path
from random import Random

from lakehead.clock import SystemClock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import SeededIds
from lakehead.retry import Backoff
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Replaced, Store
from tests.faults.store import Fault, Faults, FaultStore
from tests.support.async_tests import async_test

WRITERS, INCREMENTS = 6, 8
KEY = "counter"


async def increment(store: Store, who: str, n: int) -> None:
    while True:
        try:
            there = await store.get(KEY)
            assert there is not None
            state = json.loads(there.body)
            if state.get(who, 0) >= n:
                return  # an earlier try of ours was stored after all
            state = {**state, who: n, "version": state["version"] + 1}
            if isinstance(await store.replace(KEY, json.dumps(state).encode(), there.meta.version), Replaced):
                return
        except (Unavailable, OutcomeUnknown):
            continue


@async_test
async def test_every_increment_over_a_faulty_local_store_counts_once(tmp_path: Path) -> None:
    random = Random(7)
    faults = Faults(dict.fromkeys(Fault, 0.04), median_seconds=0.0005, timeout_seconds=0.01)
    met: set[str] = set()
    every_fault = {fault.value for fault in Fault}
    counted: dict[str, int] = {}

    async def writer(who: str) -> None:
        store = FaultStore(
            open_store(f"file://{tmp_path}/store"),
            faults,
            random=random,
            clock=SystemClock(),
            ids=SeededIds(random),
            note=lambda what: met.add(what.split(": ")[-1]),
            backoff=Backoff(attempts=4, first_seconds=0.001),
        )
        # Which fault comes when depends on who is quicker: they go on until each has come.
        for n in count(1):
            await increment(store, who, n)
            counted[who] = n
            if n >= INCREMENTS and met >= every_fault:
                return

    plain = open_store(f"file://{tmp_path}/store")
    await plain.create(KEY, json.dumps({"version": 0}).encode())
    await asyncio.gather(*(writer(f"writer {number}") for number in range(WRITERS)))
    there = await plain.get(KEY)
    assert there is not None
    counts = json.loads(there.body)
    assert counts.pop("version") == sum(counted.values())
    assert counts == counted
    assert len(counted) == WRITERS
    # Writes that faults have delayed may still be on their way.
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)
