"""Reconcilers repeat, run side by side and meet faults, and end in the same bytes. A dry run writes nothing."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from lakehead.errors import LakeheadError
from lakehead.ids import SeededIds
from lakehead.maintain.reconcile_report import ActionKind
from lakehead.wire import acceptance_keys as keys
from tests.faults.store import LATE, Fault, Faults, FaultStore
from tests.support.async_tests import async_test
from tests.unit.maintain.reconcile_support import Authority, identity, landing_queue

DERIVED = ("accepted-by-time", "accepted-by-blob", "raw-blobs-by-time", "quarantine-by-blob")


async def damaged(authority: Authority, random: Random) -> tuple[dict[str, bytes], list[str]]:
    """Accept batches and take some of what is derived away, with some frames. Returns what is to come back."""
    manifests = await authority.accept(*range(30))
    await authority.store.create(keys.identity_conflict(identity(1), "cd" * 32), b"{}")
    await authority.reconciler().cold_scan()
    before = await authority.store.contents(*DERIVED)
    for key in before:
        if random.random() < 0.5:
            await authority.store.delete(key)
    missing = [each for each in manifests if random.random() < 0.2]
    for each in missing:
        await authority.store.delete(each.raw_blob_key)
    return before, sorted(keys.repair(each.identity) for each in missing)


@pytest.mark.parametrize("seed", range(5))
@async_test
async def test_two_at_once_end_in_the_same_bytes_as_one(seed: int) -> None:
    authority = Authority()
    before, repairs = await damaged(authority, Random(seed))

    await asyncio.gather(
        authority.reconciler(name="one").cold_scan(),
        authority.reconciler(name="two", seed=2).pass_once(),
        authority.reconciler(name="three", seed=3).cold_scan(),
    )

    assert await authority.store.contents(*DERIVED) == before
    assert await authority.store.keys("repairs") == repairs
    authority.store.forget()
    await authority.reconciler(name="four").cold_scan()
    assert [key for key in authority.store.written if not key.startswith("reconciler/")] == []


@pytest.mark.parametrize("seed", range(10))
@async_test
async def test_two_at_once_on_a_store_with_faults_end_in_the_same_bytes(seed: int) -> None:
    authority = Authority()
    before, repairs = await damaged(authority, Random(seed))
    faults = Faults({fault: 0.02 for fault in Fault if fault not in LATE})

    async def reconcile(number: int) -> None:
        random = Random(100 * seed + number)
        store = FaultStore(
            authority.store, faults, random=random, clock=authority.clock, ids=SeededIds(random), latency=lambda: 0.01
        )
        reconciler = authority.reconciler(store=store, name=f"reconciler-{number}", seed=number)
        for work in (reconciler.pass_once, reconciler.cold_scan):
            try:
                await work()
            except LakeheadError:  # it is interrupted, and goes on later
                continue

    await asyncio.gather(*map(reconcile, range(2)))
    # Whatever was in doubt, a pass without faults has only the rest to do.
    await authority.reconciler(name="last").cold_scan()
    last = authority.reconciler(name="last")
    if await last.is_cold_scan_due():
        await last.cold_scan()

    assert await authority.store.contents(*DERIVED) == before
    assert await authority.store.keys("repairs") == repairs


@pytest.mark.slow
@async_test
async def test_a_dry_run_writes_nothing_and_lists_what_a_run_then_writes(tmp_path: Path) -> None:
    authority = Authority()
    _, repairs = await damaged(authority, Random(7))
    authority.clock.seconds += 120
    async with landing_queue(authority, tmp_path) as queue:
        authority.store.forget()
        dry = authority.reconciler(is_dry_run=True, landings=queue.landings(is_dry_run=True))
        async with dry.signs_of_life():
            planned = await dry.pass_once()
            planned.add(await dry.cold_scan())
        assert (authority.store.written, queue.put) == ([], [])

        real = authority.reconciler(landings=queue.landings())
        async with real.signs_of_life():
            done = await real.pass_once()
            done.add(await real.cold_scan())

        written = [key for key in authority.store.written if not key.startswith(("reconciler/", "landing-queue/"))]
        assert sorted(planned.actions, key=str) == sorted(done.actions, key=str)
        told = [each.key for each in planned.actions if each.kind is not ActionKind.ENQUEUED]
        assert sorted(told) == sorted(written)
        assert planned.done == done.done
        assert sorted(queue.put) == sorted(each.key for each in planned.actions if each.kind is ActionKind.ENQUEUED)
        assert {each.key for each in planned.actions} >= set(repairs)
