"""Variants of the queue, each without one of its rules: every one must be caught."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from lakehead.buffer.append_group import AppendGroup, StoreAgain, WaitingAppend, fail
from lakehead.buffer.consumer import Consumer
from lakehead.buffer.errors import OutcomeLost
from lakehead.buffer.manifests import ManifestFile, StoredManifest
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.producer import Producer
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.buffer.staleness import Staleness
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.port import ListedObject
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest


class AppendsAgain(Producer):
    """Broken on purpose: treats everything but success as a conflict, and appends again."""

    def _was_applied(self, group: AppendGroup, seen: StoredManifest[ProducerManifest]) -> bool:
        del group, seen
        return False


class GrowsInDoubt(Producer):
    """Broken on purpose: adds locations to a group while an earlier attempt may still be applied."""

    def _can_grow(self, group: AppendGroup, seen: StoredManifest[ProducerManifest]) -> bool:
        del group, seen
        return True


class AppendsOutOfOrder(Producer):
    """Broken on purpose: appends each location as soon as it comes, so that numbers reach the manifest in any order."""

    def enqueue(
        self, location: str, *, gc: int | None = None, store_again: StoreAgain | None = None
    ) -> "asyncio.Future[str]":
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._number += 1
        group = AppendGroup(
            [WaitingAppend(location, gc, store_again, outcome)],
            self._number,
            base=StoredManifest(ProducerManifest(), None),
        )
        asyncio.create_task(self._append_alone(group))  # noqa: RUF006 - the loop of a simulation holds its tasks
        return outcome

    async def _append_alone(self, group: AppendGroup) -> None:
        async for _ in self._retries.appends.each_attempt(self._deps.clock, self._deps.random):
            with suppress(OutcomeUnknown, Unavailable):
                if await self._attempt(group):
                    return
        fail(group.waiting, OutcomeUnknown("gave up"))


class ClaimsFromACachedManifest(Consumer):
    """Broken on purpose: claims from a cached producer manifest."""

    async def _pending(self) -> tuple[str, ...]:
        known = self.pair.producer.latest
        fresh = [each for each in known.manifest.pending if each not in self.held] if known else []
        return tuple(fresh) if fresh else await super()._pending()


class SkipsFreshClaims(Consumer):
    """Broken on purpose: reads in order, but skips what its predecessor has claimed recently."""

    def _with_takeover(self, now: ConsumerManifest) -> ConsumerManifest | None:
        entered = super()._with_takeover(now)
        if entered is None or entered is now:
            return entered
        fresh = {each: at for each, at in now.claimed.items() if not self._staleness.is_stale(each, at)}
        return ConsumerManifest(
            claimed=fresh, done=now.done, version=now.version, epoch=entered.epoch, owner=entered.owner, acks=now.acks,
            owners={each: owner for each, owner in now.owners.items() if each in fresh},
        )  # fmt: skip

    def _heartbeats(self, now: ConsumerManifest) -> dict[str, int]:
        return {"": now.heartbeat} if now.owner is not None else {}

    def _claimable(self, pending: Sequence[str], now: ConsumerManifest) -> list[str]:
        return [each for each in super()._claimable(pending, now) if each not in now.claimed]


class TrustsNoEpoch(Consumer):
    """Broken on purpose: never checks whether it still owns its claims."""

    def _check_ownership(self, now: ConsumerManifest) -> None:
        del now


class DeletesLast(QueueCleanup):
    """Broken on purpose: removes done locations first, and deletes their batches after that."""

    async def run(self) -> int:
        done = await self.stored_done()
        await self.remove_pending(done)
        await self.remove_done(done)
        await self.delete_batches(sorted(done))
        return len(done)


class CleansUpFromMemory(QueueCleanup):
    """Broken on purpose: cleans up what it has acknowledged, not what is stored as done."""

    acknowledged: ClassVar[list[str]]

    async def stored_done(self) -> Collection[str]:
        return self.acknowledged


class CollectsByAge(OrphanGc):
    """Broken on purpose: treats everything that is old and not pending as an orphan."""

    async def raise_gc_number(self, file: ManifestFile[ProducerManifest]) -> Sequence[str]:
        return (await file.read()).manifest.pending


def from_memory(_: type[QueueCleanup], acknowledged: Collection[str]) -> type[QueueCleanup]:
    """Return a cleanup of what its collector has acknowledged."""
    return type("CleansUpFromMemory", (CleansUpFromMemory,), {"acknowledged": list(acknowledged)})


class TakesUnknownRemovalForDone(QueueCleanup):
    """Broken on purpose: assumes that locations are out of the producer manifest after an unknown outcome."""

    async def remove_pending(self, done: Collection[str]) -> str | None:
        seen = await self.pair.producer.read()
        kept = tuple(location for location in seen.manifest.pending if location not in done)
        with suppress(OutcomeUnknown):
            if not await self.pair.producer.write(seen, replace(seen.manifest, pending=kept)):
                return await super().remove_pending(done)
        return seen.manifest.data_path_prefix


class NeverCleansUp(QueueCleanup):
    """Broken on purpose: never removes what is done."""

    async def run(self) -> int:
        return 0


class RaisesNumberBeforeListing(OrphanGc):
    """Broken on purpose: raises the `gc` number before it lists what may be deleted."""

    async def listed(self) -> list[ListedObject]:
        first = ManifestFile(self.manifest_path, "producer", ProducerManifest.decode, self.deps)
        await super().raise_gc_number(first)
        return await super().listed()

    async def raise_gc_number(self, file: ManifestFile[ProducerManifest]) -> Sequence[str]:
        return (await file.read()).manifest.pending


class AcknowledgesInAnyOrder(Consumer):
    """Broken on purpose: reads in order, but acknowledges in any order."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._claims.to_acknowledge = self._whatever_is_requested  # type: ignore[method-assign]  # the rule left out

    def _whatever_is_requested(self, requested: Collection[str]) -> Sequence[str] | None:
        return [location for location in self.held if location in requested] or None


class KeepsStaleClaims(Consumer):
    """Broken on purpose: never considers a claim stale."""

    def _with_takeover(self, now: ConsumerManifest) -> ConsumerManifest | None:
        self._staleness = NeverStale(self._timeout, self._deps.clock)
        return super()._with_takeover(now)


class NeverStale(Staleness):
    def is_stale(self, name: str, at_ms: int) -> bool:
        del name, at_ms
        return False


class DropsProducersByAge(Producer):
    """Broken on purpose: drops producers without a write for a second from the manifest, and does not count them."""

    heard: ClassVar[dict[str, float]] = {}

    def _with_locations(self, now: ProducerManifest, group: AppendGroup) -> ProducerManifest:
        written = super()._with_locations(now, group)
        at = self._deps.clock.monotonic()
        self.heard[self._id] = at
        return replace(written, producers={k: n for k, n in written.producers.items() if at - self.heard[k] < 1})


class DoubtsEveryConflict(Producer):
    """Broken on purpose: treats the outcome of a refused write as lost once a producer was dropped."""

    def _was_applied(self, group: AppendGroup, seen: StoredManifest[ProducerManifest]) -> bool:
        applied = super()._was_applied(group, seen)
        now, base = seen.manifest, group.base
        if not applied and self._id not in now.producers and base and now.forgotten != base.manifest.forgotten:
            raise OutcomeLost("unknown")
        return applied
