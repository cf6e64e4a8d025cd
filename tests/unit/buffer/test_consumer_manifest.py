"""What collectors leave in the consumer manifest, and what they do where others always win."""

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lakehead.buffer.config import CollectorMode
from lakehead.buffer.errors import QueueContended
from lakehead.buffer.metrics import export_metrics
from lakehead.buffer.retry_policies import BufferRetries
from lakehead.errors import Unavailable
from lakehead.retry import Backoff
from lakehead.storage.port import Replaced, Stale, Version
from tests.unit.buffer.support import LOST, PAIR, QueueFixture, in_both_modes, values, virtual_time, writes


async def raw(queue: QueueFixture, key: str) -> dict[str, Any]:
    there = await queue.store.inner.get(key)
    assert there is not None
    manifest: dict[str, Any] = json.loads(there.body)
    return manifest


@in_both_modes
@virtual_time
async def test_a_foreign_key_survives_everything_that_a_collector_writes(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("a", "b")
    theirs = b'{"claimed":{},"done":[],"theirs":[1.50,{"x":null}]}'
    await queue.store.inner.put(PAIR.consumer, theirs)
    async with queue.collector(mode=mode, done_cleanup_threshold=1) as collector:
        first, second = await queue.next_two(collector)
        await collector.heartbeat()
        await collector.release(second)
        await collector.ack(first)
        assert values(await collector.next_batch()) == ["b"]
    there = await queue.store.inner.get(PAIR.consumer)
    assert there is not None
    assert b'"theirs":[1.50,{"x":null}]' in there.body


@virtual_time
async def test_every_write_has_the_next_version_and_a_nonce_of_its_own(queue: QueueFixture) -> None:
    seen: dict[str, list[dict[str, Any]]] = {PAIR.producer: [], PAIR.consumer: []}
    honest = queue.store.inner._store

    def watched(key: str, body: bytes) -> Version:
        if key in seen:
            seen[key].append(json.loads(body))
        return honest(key, body)

    queue.store.inner._store = watched  # type: ignore[method-assign]  # for this test only
    await queue.fill("a", "b", "c")
    async with queue.collector(done_cleanup_threshold=2) as collector:
        assert await queue.collect_all(collector) == ["a", "b", "c"]
    for written in seen.values():
        assert len(written) > 3
        assert [manifest["version"] for manifest in written] == list(range(1, len(written) + 1))
        assert len({manifest["nonce"] for manifest in written}) == len(written)


@in_both_modes
@virtual_time
async def test_a_collector_that_always_meets_another_writer_gives_up_and_can_go_on_later(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("a", "b")
    collector = queue.collector(mode=mode, read_ahead=1)
    batch = await collector.next_batch()
    assert batch is not None
    honest = queue.store.replace

    async def overtaken(key: str, body: bytes, version: Version) -> Replaced | Stale:
        if key == PAIR.consumer:
            there = await queue.store.inner.get(key)
            assert there is not None
            await queue.store.inner.put(key, there.body)
        return await honest(key, body, version)

    queue.store.replace = overtaken  # type: ignore[method-assign]  # for this test only
    with pytest.raises(QueueContended, match="with fewer collectors or more partitions"):
        await collector.ack(batch)
    assert collector.counts.manifest_conflicts["consumer"] == BufferRetries().consumer.attempts
    with pytest.raises(QueueContended, match="with fewer collectors or more partitions"):
        await collector.next_batch()
    registry = CollectorRegistry()
    export_metrics(collector.counts, registry)
    exported = registry.get_sample_value("lakehead_buffer_manifest_conflicts_total", {"role": "consumer"})
    assert exported == collector.counts.manifest_conflicts["consumer"]
    queue.store.replace = honest  # type: ignore[method-assign]  # the others are gone
    await collector.ack(batch)
    assert values(await collector.next_batch()) == ["b"]
    await collector.close()


@in_both_modes
@virtual_time
async def test_a_claim_that_is_never_confirmed_is_not_blamed_on_other_writers(
    queue: QueueFixture, mode: CollectorMode
) -> None:
    await queue.fill("a")
    collector = queue.collector(mode=mode)
    queue.store.fail_calls(writes(PAIR.consumer), LOST, applied=True)
    with pytest.raises(Unavailable, match="was not confirmed") as raised:
        await collector.next_batch()
    assert not isinstance(raised.value, QueueContended)
    queue.store.stop_failing()
    assert values(await collector.next_batch()) == ["a"]
    await collector.close()


@virtual_time(seeds=1)
async def test_pauses_grow_are_drawn_and_have_a_cap(queue: QueueFixture) -> None:
    backoff = Backoff(attempts=10, first_seconds=0.1, cap_seconds=1.0)
    drawn = [list(backoff.pauses(queue.world.random)) for _ in range(200)]
    for pauses in drawn:
        assert pauses[0] == 0
        assert len(pauses) == 10
        assert all(pause <= min(1.0, 0.1 * 2**retry) for retry, pause in enumerate(pauses[1:]))
    longest = [max(pauses[number] for pauses in drawn) for number in range(10)]
    assert longest[1] < longest[2] < longest[3]
    assert len({tuple(pauses) for pauses in drawn}) == 200
