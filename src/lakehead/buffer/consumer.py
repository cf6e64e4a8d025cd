"""One collector's hold on one pair of manifests: claim, keep alive, acknowledge, and notice when it is lost.

Safety comes from owner and epoch, which are checked inside of the compare-and-set of every write; clocks only decide
when it is worth trying to take over.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from types import MappingProxyType
from typing import NoReturn

from lakehead.buffer.errors import Contended, Fenced, OutOfTurn
from lakehead.buffer.manifests import PairFiles, Stored
from lakehead.buffer.means import Means
from lakehead.buffer.staleness import Staleness
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.storage.backoff import Backoff
from lakehead.storage.port import Version
from lakehead.wire.queue_manifests import ConsumerManifest, remember

CLAIMS = Backoff(attempts=20, first_seconds=0.02, cap_seconds=1.0)
MOST_COLLECTORS = 64
"""How many collectors' last acknowledgements a manifest keeps."""
NOTHING: Mapping[str, bool] = MappingProxyType({})


class Mode(Enum):
    """How many collectors may read a queue at once."""

    ORDERED = "ordered"
    """One at a time, in the order of the queue, also across fail-over."""

    COMPETING = "competing"
    """Any number; no order across fail-over."""


@dataclass(eq=False, slots=True)
class Claim:
    """A location that is ours until we acknowledge it or lose it."""

    location: str
    epoch: int
    """The epoch in which it was claimed, for a sink to compare: a later one has overtaken it."""

    handed_out: bool = False
    """Whether the application has it, or had it."""


@dataclass(frozen=True, slots=True)
class _Ack:
    """An acknowledgement whose write was sent and may have landed, or may yet."""

    number: int
    locations: frozenset[str]
    at: Version | None


class Consumer:
    """What one collector holds in one pair. Calls wait for each other."""

    def __init__(
        self,
        files: PairFiles,
        means: Means,
        *,
        mode: Mode,
        timeout: float,
        backoff: Backoff = CLAIMS,
    ) -> None:
        self.files = files
        self.held: dict[str, Claim] = {}
        """What we hold, in the order in which we claimed it."""
        self.id = means.ids.uuid()
        self.epoch: int | None = None
        """In ordered mode, the epoch in which the queue is ours."""
        self.bad_in_a_row = 0
        """How many bad batches were acknowledged last, as far as we have seen."""
        self._mode = mode
        self._means = means
        self._backoff = backoff
        self._timeout = timeout
        self._staleness = Staleness(timeout, means.clock)
        self._refreshed_at = means.clock.monotonic()
        self._number = 0
        self._doubts: list[_Ack] = []
        self._fenced: Fenced | None = None
        self._turn = asyncio.Lock()

    async def claim(self, most: int) -> list[Claim]:
        """Claim up to that many of the next locations; none if there are none, or if another collector has them.

        Raises `Fenced`, or `Unavailable`, and then it can be tried again.
        """
        async with self._turn:
            for pause in self._backoff.pauses(self._means.random):
                await self._wait(pause)
                # In this order: what is still pending in the second read is done in the first, or nobody has done it.
                seen = await self._read()
                pending = await self._pending()
                entered = self._entered(seen.manifest)
                if entered is None:
                    return []
                chosen = self._chosen(pending, entered)[:most]
                if not chosen and entered is seen.manifest:
                    return []
                with suppress(OutcomeUnknown):  # if it has landed, or lands yet, the next read shows it as ours
                    if await self._write(seen, self._claiming(entered, chosen)):
                        return self._hold(chosen, entered)
            raise self._contended("claim from")

    async def ack(self, locations: Sequence[str], set_aside: Mapping[str, bool] = NOTHING) -> int:
        """Mark locations as done, in one write; how many done locations wait for a clean-up then.

        `set_aside` has those that were set aside, and whether because they could not be read. In ordered mode they
        must be the first that are held. Those that are done already are no error. Raises
        `Fenced`, and then nothing is marked; `Unavailable` or `OutcomeUnknown`, and then it can be repeated.
        """
        async with self._turn:
            self._number += 1
            doubt: OutcomeUnknown | None = None
            try:
                for pause in self._backoff.pauses(self._means.random):
                    await self._wait(pause)
                    seen = await self._latest()
                    if self.held.keys().isdisjoint(locations):
                        return len(seen.manifest.done)
                    self._check(seen.manifest)
                    ours = self._to_acknowledge(locations)
                    self._doubts.append(_Ack(self._number, frozenset(ours), seen.at))
                    try:
                        if await self._write(seen, self._acknowledging(seen.manifest, ours, set_aside)):
                            self._settle_ours(ours)
                            return len(seen.manifest.done) + len(ours)
                        doubt = None
                    except OutcomeUnknown as error:
                        doubt = error
            except Unavailable as error:
                raise self._unsure(doubt) if doubt else error from error
            raise self._unsure(doubt) if doubt else self._contended("acknowledge in")

    async def heartbeat(self) -> None:
        """Say that we live, for everything that we hold, in one write. Raises `Fenced`, or `Unavailable`."""
        async with self._turn:
            for pause in self._backoff.pauses(self._means.random):
                await self._wait(pause)
                if not self.held and self.epoch is None:
                    return
                seen = await self._latest()
                self._check(seen.manifest)
                with suppress(OutcomeUnknown):
                    if await self._write(seen, self._refreshed(seen.manifest)):
                        return
            raise self._contended("keep alive what is claimed in")

    async def check(self) -> None:
        """Raise `Fenced` unless the store says that what we hold is ours."""
        async with self._turn:
            self._check((await self._read()).manifest)

    async def check_if_old(self) -> None:
        """Raise `Fenced` if we are, and ask the store where others may have taken us for gone meanwhile."""
        self.check_known()
        if self._means.clock.monotonic() - self._refreshed_at > self._timeout:
            await self.check()

    def check_known(self) -> None:
        """Raise `Fenced` if we know that we are."""
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)

    async def leave(self, never_used: Collection[str]) -> None:
        """Give back claims that nobody has made use of, and the queue itself if nothing else is held. The end of us."""
        async with self._turn:
            for pause in self._backoff.pauses(self._means.random):
                await self._wait(pause)
                if not self.held and self.epoch is None:
                    return
                seen = await self._latest()
                self._check(seen.manifest)
                with suppress(OutcomeUnknown):
                    if await self._write(seen, self._leaving(seen.manifest, never_used)):
                        return

    # --- reading and writing

    async def _read(self) -> Stored[ConsumerManifest]:
        self.check_known()
        seen = await self.files.consumer.read()
        self.bad_in_a_row = seen.manifest.bad_in_a_row
        self._settle(seen)
        return seen

    async def _latest(self) -> Stored[ConsumerManifest]:
        """What we last saw, where we need not know better: if it is old, the write that follows is refused."""
        self.check_known()
        latest = self.files.consumer.latest
        return await self._read() if latest is None else latest

    async def _pending(self) -> tuple[str, ...]:
        return (await self.files.producer.read()).manifest.pending

    async def _write(self, seen: Stored[ConsumerManifest], manifest: ConsumerManifest) -> bool:
        began = self._means.clock.monotonic()
        written = await self.files.consumer.write(seen, manifest)
        if written:
            self._refreshed_at = began
            self.bad_in_a_row = manifest.bad_in_a_row
        return written

    async def _wait(self, pause: float) -> None:
        if pause:
            await self._means.clock.sleep(pause)

    # --- who may

    def _entered(self, now: ConsumerManifest) -> ConsumerManifest | None:
        """The manifest as one that we may claim in, perhaps by taking over; None while others have it."""
        if self._mode is Mode.ORDERED and now.owner == self.id and self.epoch is None:
            self.epoch = now.epoch  # a take-over that was left without an answer
        if self.held or self.epoch is not None:
            self._check(now)
            return now
        if self._mode is Mode.COMPETING and now.owner is None:
            return now
        if not self._staleness.all_are(self._alive(now)):
            return None
        owner = self.id if self._mode is Mode.ORDERED else None
        return replace(now, epoch=now.epoch + 1, owner=owner, claimed={}, owners={})

    def _alive(self, now: ConsumerManifest) -> Mapping[str, int]:
        """All who may be at work, by when they were last heard of."""
        return {**now.claimed, "": now.heartbeat} if now.owner is not None else now.claimed

    def _check(self, now: ConsumerManifest) -> None:
        """Raise `Fenced` unless everything that we hold is still ours."""
        if self._mode is Mode.ORDERED:
            lost = self.epoch is not None and (now.owner != self.id or now.epoch != self.epoch)
        else:
            lost = any(now.owners.get(location) != self.id for location in self.held)
        if lost:
            self._fence()

    def _fence(self) -> NoReturn:
        self._means.counts.claims_lost += len(self.held)
        self._fenced = Fenced(
            f"Another collector has taken over from this one in {self.files.consumer.key}. "
            "Drop the batches that are not acknowledged: they are handed out again."
        )
        raise self._fenced

    # --- what the manifest becomes

    def _chosen(self, pending: Sequence[str], now: ConsumerManifest) -> list[str]:
        """What we could claim, in the order of the queue."""
        done = set(now.done)
        free = [location for location in dict.fromkeys(pending) if location not in done and location not in self.held]
        self._means.counts.queue_length[self.files.producer.key] = len(free) + len(self.held)
        if self._mode is Mode.ORDERED:
            return free
        self._staleness.forget_all_but(now.claimed)
        return [location for location in free if self._is_free(location, now)]

    def _is_free(self, location: str, now: ConsumerManifest) -> bool:
        refreshed = now.claimed.get(location)
        return refreshed is None or now.owners.get(location) == self.id or self._staleness.is_stale(location, refreshed)

    def _to_acknowledge(self, locations: Sequence[str]) -> list[str]:
        """Those that are not done yet, in the order in which they were claimed."""
        ours = [location for location in self.held if location in locations]
        if self._mode is Mode.ORDERED and ours != list(islice(self.held, len(ours))):
            raise OutOfTurn(f"{next(iter(self.held))} was handed out before {ours[0]} and is not acknowledged yet.")
        return ours

    def _claiming(self, now: ConsumerManifest, chosen: Sequence[str]) -> ConsumerManifest:
        refreshed = self._refreshed(now)
        return replace(
            refreshed,
            claimed={**refreshed.claimed, **dict.fromkeys(chosen, self._staleness.now_ms())},
            owners={**refreshed.owners, **dict.fromkeys(chosen, self.id)},
        )

    def _acknowledging(
        self, now: ConsumerManifest, ours: Sequence[str], set_aside: Mapping[str, bool]
    ) -> ConsumerManifest:
        refreshed = self._refreshed(now)
        acks, _ = remember(now.acks, self.id, self._number, most=MOST_COLLECTORS)
        bad = now.bad_in_a_row
        for location in ours:
            bad = bad + set_aside[location] if location in set_aside else 0
        return replace(
            refreshed,
            claimed={location: at for location, at in refreshed.claimed.items() if location not in ours},
            owners={location: owner for location, owner in refreshed.owners.items() if location not in ours},
            done=(*now.done, *ours),
            acks=acks,
            bad_in_a_row=bad,
        )

    def _leaving(self, now: ConsumerManifest, never_used: Collection[str]) -> ConsumerManifest:
        """Without our claims on what was never used; without us, if that was all."""
        owner = self.id if any(location not in never_used for location in self.held) else None
        return replace(
            now,
            claimed={location: at for location, at in now.claimed.items() if location not in never_used},
            owners={location: name for location, name in now.owners.items() if location not in never_used},
            owner=owner if self._mode is Mode.ORDERED else now.owner,
        )

    def _refreshed(self, now: ConsumerManifest) -> ConsumerManifest:
        at = self._staleness.now_ms()
        claimed = {**now.claimed, **{location: at for location in self.held if location in now.claimed}}
        return replace(now, claimed=claimed, heartbeat=at if self._mode is Mode.ORDERED else now.heartbeat)

    # --- what we know of our own writes

    def _hold(self, chosen: Sequence[str], entered: ConsumerManifest) -> list[Claim]:
        if self._mode is Mode.ORDERED:
            self.epoch = entered.epoch
        claims = [Claim(location, entered.epoch) for location in chosen]
        self.held.update({claim.location: claim for claim in claims})
        return claims

    def _settle(self, seen: Stored[ConsumerManifest]) -> None:
        """Find out what became of acknowledgements that were left without an answer."""
        landed = seen.manifest.acks.get(self.id)
        for doubt in self._doubts:
            if doubt.number == landed:
                self._settle_ours(doubt.locations)
                return  # the others were to take the place of what it has replaced
        self._doubts = [doubt for doubt in self._doubts if doubt.at == seen.at]

    def _settle_ours(self, locations: Iterable[str]) -> None:
        self._doubts.clear()
        for location in locations:
            if self.held.pop(location, None) is not None:
                self._means.counts.acks += 1

    def _unsure(self, doubt: OutcomeUnknown) -> LakeheadError:
        return OutcomeUnknown(
            f"An acknowledgement in {self.files.consumer.key} was left without an answer ({doubt}). Repeat it."
        )

    def _contended(self, deed: str) -> Contended:
        return Contended(
            f"{self._backoff.attempts} tries to {deed} {self.files.consumer.key} met another writer each time. "
            "Try again later, with fewer collectors or more partitions."
        )
