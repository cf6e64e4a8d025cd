"""What follows an acceptance happens in the background, bounded, and costs nobody an answer when it fails."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from lakehead.accept.acceptance import Conflict
from lakehead.accept.after_acceptance import AfterAcceptance
from lakehead.accept.conflicts import Conflicts
from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds
from lakehead.storage.port import Created, Exists
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import QuarantineManifest
from tests.support.async_tests import async_test
from tests.unit.accept.support import APPLIED, DOWN, ScriptedStore, manifest_of, submitted


@dataclass
class Queue:
    puts: list[list[int]] = field(default_factory=list)
    error: Exception | None = None
    is_open: asyncio.Event = field(default_factory=asyncio.Event)

    async def put(self, manifests: Sequence[IdentityManifest]) -> None:
        self.puts.append([each.seq_start for each in manifests])
        await self.is_open.wait()
        if self.error:
            raise self.error


def manifests(count: int) -> list[IdentityManifest]:
    return [
        manifest_of(submitted(f"{n}".encode(), BatchIdentity("agent", "boot", n * 10, n * 10 + 9)))
        for n in range(count)
    ]


@async_test
async def test_indexes_and_queue_get_each_accepted_batch_once() -> None:
    store, queue = ScriptedStore(), Queue()
    queue.is_open.set()
    effects = AfterAcceptance(store=store, queue=queue)

    for manifest in manifests(40):
        effects.start(manifest)
    await effects.close(within=60)

    assert len(await store.keys("accepted-by-time")) == 40
    assert len(await store.keys("accepted-by-blob")) == 40
    assert store.writes("accepted-by-time") == 40
    assert sorted(number for some in queue.puts for number in some) == [n * 10 for n in range(40)]
    assert (effects.counts.indexed, effects.counts.queued, effects.counts.left_to_reconciler) == (40, 40, 0)


@async_test
async def test_what_waits_is_bounded_and_the_rest_is_left_to_the_reconciler() -> None:
    queue = Queue()
    effects = AfterAcceptance(store=ScriptedStore(), queue=queue, most_waiting=5, most_queued_at_once=3)
    first, *others = manifests(20)
    effects.start(first)
    await asyncio.sleep(0)  # the first is taken off to be queued, and waits there

    for manifest in others:
        effects.start(manifest)

    assert effects.counts.left_to_reconciler >= 14
    queue.is_open.set()
    await effects.close(within=60)
    assert effects.counts.queued == 6
    assert [len(some) for some in queue.puts] == [1, 3, 2]


class WatchedStore(ScriptedStore):
    """Knows how many creates were under way at once."""

    under_way = 0
    most_under_way = 0

    async def create(self, key: str, body: bytes) -> Created | Exists:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        try:
            return await super().create(key, body)
        finally:
            self.under_way -= 1


@async_test
async def test_few_indexes_are_written_at_once_and_what_has_ended_is_forgotten() -> None:
    store, queue = WatchedStore(), Queue()
    queue.is_open.set()
    effects = AfterAcceptance(store=store, queue=queue, most_indexed_at_once=4)

    for _ in range(2):  # what ended makes way for what comes later
        for manifest in manifests(40):
            effects.start(manifest)
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=60)
        await asyncio.sleep(0)  # their callbacks
        assert not effects._tasks, "a gateway that runs for months must not keep every task that it had"

    assert (effects.counts.indexed, effects.counts.queued) == (80, 80)
    assert store.most_under_way == 4


@async_test
async def test_failures_are_counted_and_told_and_do_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    store, queue = ScriptedStore(), Queue(error=Unavailable("the queue is down"))
    queue.is_open.set()
    store.next("accepted-by-time", DOWN, APPLIED)
    effects = AfterAcceptance(store=store, queue=queue, most_indexed_at_once=1)

    with caplog.at_level(logging.WARNING):
        for manifest in manifests(3):
            effects.start(manifest)
        await effects.close(within=60)

    assert (effects.counts.indexed, effects.counts.not_indexed) == (1, 2)
    assert (effects.counts.queued, effects.counts.not_queued) == (0, 3)
    assert "3 accepted batches may not be queued for landing" in caplog.text


@async_test
async def test_closing_waits_no_longer_than_it_is_given_and_leaves_no_task() -> None:
    queue = Queue()
    effects = AfterAcceptance(store=ScriptedStore(), queue=queue, most_queued_at_once=1)
    for manifest in manifests(3):
        effects.start(manifest)

    await effects.close(within=0.01)

    assert effects.counts.queued == 0
    assert effects.counts.left_to_reconciler == 2, "the one that was being queued is in doubt"


@async_test
async def test_the_first_sighting_of_a_conflict_stays_and_each_frame_has_its_own() -> None:
    store = ScriptedStore()
    conflicts = Conflicts(store=store, clock=SystemClock(), ids=RandomIds(), collector_id="gateway-1")
    accepted = manifest_of(submitted(b"accepted"))

    await conflicts.record(Conflict(accepted, submitted(b"b")))
    [key] = await store.keys("quarantine/v1/identity-conflict")
    first = await store.get(key)
    for content in (b"b", b"c"):
        await conflicts.record(Conflict(accepted, submitted(content)))

    assert first is not None
    assert await store.get(key) == first
    manifest = QuarantineManifest.decode(first.body, key)
    assert (manifest.accepted_frame_sha256, manifest.submitted_frame_sha256) == (
        accepted.frame_sha256,
        submitted(b"b").sha256,
    )
    assert len(await store.keys("quarantine/v1/identity-conflict")) == 2
    assert len(await store.keys("quarantine-by-blob")) == 2
