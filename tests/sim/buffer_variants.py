"""Each rule of the queue left out once: what comes of it must be caught."""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.consumer import Consumer
from lakehead.buffer.errors import Forgotten
from lakehead.buffer.manifests import ManifestFile, Stored
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.producer import Group, Producer, StoreAgain, Waiting, fail
from lakehead.buffer.staleness import Staleness
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.port import Entry
from lakehead.wire.queue_manifests import ConsumerManifest, ProducerManifest


class AppendsAgain(Producer):
    """Broken on purpose: takes whatever is not a success for a conflict, and appends again."""

    def _has_landed(self, group: Group, seen: Stored[ProducerManifest]) -> bool:
        del group, seen
        return False


class GrowsInDoubt(Producer):
    """Broken on purpose: lets more go along with a try whose first version may land yet."""

    def _can_grow(self, group: Group, seen: Stored[ProducerManifest]) -> bool:
        del group, seen
        return True


class AppendsOutOfOrder(Producer):
    """Broken on purpose: appends each location as soon as it comes, so that numbers reach the manifest in any order."""

    def enqueue(
        self, location: str, *, gc: int | None = None, again: StoreAgain | None = None
    ) -> "asyncio.Future[str]":
        outcome: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._number += 1
        group = Group([Waiting(location, gc, again, outcome)], self._number, tried=Stored(ProducerManifest(), None))
        asyncio.create_task(self._append_alone(group))  # noqa: RUF006 - the loop of a simulation holds its tasks
        return outcome

    async def _append_alone(self, group: Group) -> None:
        for pause in self._backoff.pauses(self._means.random):
            await self._wait(pause)
            with suppress(OutcomeUnknown, Unavailable):
                if await self._try(group):
                    return
        fail(group.waiting, OutcomeUnknown("gave up"))


class ClaimsFromACachedManifest(Consumer):
    """Broken on purpose: claims from what the producer manifest held a while ago."""

    async def _pending(self) -> tuple[str, ...]:
        known = self.files.producer.latest
        fresh = [each for each in known.manifest.pending if each not in self.held] if known else []
        return tuple(fresh) if fresh else await super()._pending()


class SkipsFreshClaims(Consumer):
    """Broken on purpose: reads in order, and passes over what its predecessor has claimed and may still be at."""

    def _entered(self, now: ConsumerManifest) -> ConsumerManifest | None:
        entered = super()._entered(now)
        if entered is None or entered is now:
            return entered
        fresh = {each: at for each, at in now.claimed.items() if not self._staleness.is_stale(each, at)}
        return ConsumerManifest(
            claimed=fresh, done=now.done, version=now.version, epoch=entered.epoch, owner=entered.owner, acks=now.acks,
            owners={each: owner for each, owner in now.owners.items() if each in fresh},
        )  # fmt: skip

    def _alive(self, now: ConsumerManifest) -> dict[str, int]:
        return {"": now.heartbeat} if now.owner is not None else {}

    def _chosen(self, pending: Sequence[str], now: ConsumerManifest) -> list[str]:
        return [each for each in super()._chosen(pending, now) if each not in now.claimed]


class TrustsNoEpoch(Consumer):
    """Broken on purpose: never asks whether what it holds is still its own."""

    def _check(self, now: ConsumerManifest) -> None:
        del now


class DeletesLast(CleanUp):
    """Broken on purpose: forgets what is done, and deletes its data after that."""

    async def run(self) -> int:
        done = await self.stored_done()
        await self.forget_pending(done)
        await self.forget_done(done)
        await self.delete_data(sorted(done))
        return len(done)


class CleansUpFromMemory(CleanUp):
    """Broken on purpose: takes what it was told to acknowledge for done, not what is stored as done."""

    told: ClassVar[list[str]]

    async def stored_done(self) -> Collection[str]:
        return self.told


class CollectsByAge(OrphanCollector):
    """Broken on purpose: what is old and not pending is an orphan."""

    async def raise_number(self, file: ManifestFile[ProducerManifest]) -> Sequence[str]:
        return (await file.read()).manifest.pending


def from_memory(_: type[CleanUp], told: Collection[str]) -> type[CleanUp]:
    """A clean-up that takes what its collector was told to acknowledge for done."""
    return type("CleansUpFromMemory", (CleansUpFromMemory,), {"told": list(told)})


class TakesUnknownRemovalForDone(CleanUp):
    """Broken on purpose: takes it that locations are out of the producer manifest, though nobody has said so."""

    async def forget_pending(self, done: Collection[str]) -> str | None:
        seen = await self.files.producer.read()
        kept = tuple(location for location in seen.manifest.pending if location not in done)
        with suppress(OutcomeUnknown):
            if not await self.files.producer.write(seen, replace(seen.manifest, pending=kept)):
                return await super().forget_pending(done)
        return seen.manifest.data_path_prefix


class NeverCleansUp(CleanUp):
    """Broken on purpose: leaves everything that is done where it is."""

    async def run(self) -> int:
        return 0


class RaisesNumberBeforeListing(OrphanCollector):
    """Broken on purpose: raises the `gc` number, and lists after that what may be deleted."""

    async def listed(self) -> list[Entry]:
        first = ManifestFile(self.manifest_path, "producer", ProducerManifest.decode, self.means)
        await super().raise_number(first)
        return await super().listed()

    async def raise_number(self, file: ManifestFile[ProducerManifest]) -> Sequence[str]:
        return (await file.read()).manifest.pending


class AcknowledgesInAnyOrder(Consumer):
    """Broken on purpose: reads in order, and marks as done whatever it is told to."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._holdings.to_acknowledge = self._whatever_is_wanted  # type: ignore[method-assign]  # the rule left out

    def _whatever_is_wanted(self, wanted: Collection[str]) -> Sequence[str] | None:
        return [location for location in self.held if location in wanted] or None


class KeepsStaleClaims(Consumer):
    """Broken on purpose: never takes anybody for gone."""

    def _entered(self, now: ConsumerManifest) -> ConsumerManifest | None:
        self._staleness = NeverStale(self._timeout, self._means.clock)
        return super()._entered(now)


class NeverStale(Staleness):
    def is_stale(self, name: str, at_ms: int) -> bool:
        del name, at_ms
        return False


class DropsProducersByAge(Producer):
    """Broken on purpose: drops producers from the manifest that were silent for a second, and counts nobody."""

    heard: ClassVar[dict[str, float]] = {}

    def _with(self, now: ProducerManifest, group: Group) -> ProducerManifest:
        written = super()._with(now, group)
        at = self._means.clock.monotonic()
        self.heard[self._id] = at
        return replace(written, producers={k: n for k, n in written.producers.items() if at - self.heard[k] < 1})


class DoubtsEveryConflict(Producer):
    """Broken on purpose: does not know what became of a write that was refused, once somebody was forgotten."""

    def _has_landed(self, group: Group, seen: Stored[ProducerManifest]) -> bool:
        landed = super()._has_landed(group, seen)
        now, tried = seen.manifest, group.tried
        if not landed and self._id not in now.producers and tried and now.forgotten != tried.manifest.forgotten:
            raise Forgotten("nobody can tell")
        return landed
