"""What collectors leave in the consumer manifest, and what they do where others always win."""

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lakehead.buffer.consumer import CLAIMS, Mode
from lakehead.buffer.errors import Contended
from lakehead.buffer.metrics import export_metrics
from lakehead.storage.backoff import Backoff
from lakehead.storage.port import Replaced, Stale, Version
from tests.unit.buffer.scene import PAIR, Scene, in_both_modes, play, values


async def raw(scene: Scene, key: str) -> dict[str, Any]:
    there = await scene.store.inner.get(key)
    assert there is not None
    manifest: dict[str, Any] = json.loads(there.body)
    return manifest


@in_both_modes
def test_a_foreign_key_survives_everything_that_a_collector_writes(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        theirs = b'{"claimed":{},"done":[],"theirs":[1.50,{"x":null}]}'
        await scene.store.inner.put(PAIR.consumer, theirs)
        async with scene.collector(mode=mode, done_cleanup_threshold=1) as collector:
            first, second = await scene.two_of(collector)
            await collector.heartbeat()
            await collector.release(second)
            await collector.ack(first)
            assert values(await collector.next_batch()) == ["b"]
        there = await scene.store.inner.get(PAIR.consumer)
        assert there is not None
        assert b'"theirs":[1.50,{"x":null}]' in there.body

    play(story)


def test_every_write_has_the_next_version_and_a_nonce_of_its_own() -> None:
    async def story(scene: Scene) -> None:
        seen: dict[str, list[dict[str, Any]]] = {PAIR.producer: [], PAIR.consumer: []}
        honest = scene.store.inner._store

        def watched(key: str, body: bytes) -> Version:
            if key in seen:
                seen[key].append(json.loads(body))
            return honest(key, body)

        scene.store.inner._store = watched  # type: ignore[method-assign]  # for this story only
        await scene.fill("a", "b", "c")
        async with scene.collector(done_cleanup_threshold=2) as collector:
            assert await scene.all_of(collector) == ["a", "b", "c"]
        for written in seen.values():
            assert len(written) > 3
            assert [manifest["version"] for manifest in written] == list(range(1, len(written) + 1))
            assert len({manifest["nonce"] for manifest in written}) == len(written)

    play(story)


@in_both_modes
def test_a_collector_that_always_meets_another_writer_gives_up_and_can_go_on_later(mode: Mode) -> None:
    async def story(scene: Scene) -> None:
        await scene.fill("a", "b")
        collector = scene.collector(mode=mode, read_ahead=1)
        batch = await collector.next_batch()
        assert batch is not None
        honest = scene.store.replace

        async def overtaken(key: str, body: bytes, version: Version) -> Replaced | Stale:
            if key == PAIR.consumer:
                there = await scene.store.inner.get(key)
                assert there is not None
                await scene.store.inner.put(key, there.body)
            return await honest(key, body, version)

        scene.store.replace = overtaken  # type: ignore[method-assign]  # for this story only
        with pytest.raises(Contended, match="with fewer collectors or more partitions"):
            await collector.ack(batch)
        assert collector.counts.manifest_conflicts["consumer"] == CLAIMS.attempts
        with pytest.raises(Contended, match="with fewer collectors or more partitions"):
            await collector.next_batch()
        registry = CollectorRegistry()
        export_metrics(collector.counts, registry)
        told = registry.get_sample_value("lakehead_buffer_manifest_conflicts_total", {"role": "consumer"})
        assert told == collector.counts.manifest_conflicts["consumer"]
        scene.store.replace = honest  # type: ignore[method-assign]  # the others are gone
        await collector.ack(batch)
        assert values(await collector.next_batch()) == ["b"]
        await collector.close()

    play(story)


def test_pauses_grow_are_drawn_and_have_a_cap() -> None:
    async def story(scene: Scene) -> None:
        backoff = Backoff(attempts=10, first_seconds=0.1, cap_seconds=1.0)
        drawn = [list(backoff.pauses(scene.world.random)) for _ in range(200)]
        for pauses in drawn:
            assert pauses[0] == 0
            assert len(pauses) == 10
            assert all(pause <= min(1.0, 0.1 * 2**retry) for retry, pause in enumerate(pauses[1:]))
        longest = [max(pauses[number] for pauses in drawn) for number in range(10)]
        assert longest[1] < longest[2] < longest[3]
        assert len({tuple(pauses) for pauses in drawn}) == 200

    play(story, seeds=1)
