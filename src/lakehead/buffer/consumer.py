"""One collector's hold on one pair of manifests: claim, keep alive, acknowledge, and notice when it is lost.

Safety comes from owner and epoch, which are checked inside of the compare-and-set of every write; clocks only decide
when it is worth trying to take over.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from itertools import dropwhile
from typing import NoReturn

from lakehead.buffer.claims import (
    NOTHING,
    Claim,
    ClaimState,
    Sent,
    refreshed,
    with_claims,
    with_done,
    with_released,
)
from lakehead.buffer.errors import Contended, Fenced, OutOfTurn
from lakehead.buffer.manifests import PairFiles, Stored
from lakehead.buffer.means import Means
from lakehead.buffer.staleness import Staleness
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.storage.backoff import Backoff
from lakehead.wire.queue_manifests import ConsumerManifest, remember

CLAIMS = Backoff(attempts=20, first_seconds=0.02, cap_seconds=1.0)
MOST_COLLECTORS = 64
"""How many collectors' last acknowledgements a manifest keeps."""


class Mode(Enum):
    """How many collectors may read a queue at once."""

    ORDERED = "ordered"
    """One at a time, in the order of the queue, also across fail-over."""

    COMPETING = "competing"
    """Any number; no order across fail-over."""


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
        most_collectors: int = MOST_COLLECTORS,
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
        self._most_collectors = most_collectors
        self._number = 0
        self._sent: list[Sent] = []
        """What was sent and is not settled yet."""
        self._fenced: Fenced | None = None
        self._turn = asyncio.Lock()
        """For whoever changes what is held; a heartbeat does not wait for it."""
        self._request = asyncio.Lock()
        """For one request at a time, so that no answer is older than what we know."""

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
                chosen = self._claimable_at_once(self._chosen(pending, entered)[:most], entered)
                if not chosen and entered is seen.manifest:
                    return []
                claims = [
                    Claim(location, entered.epoch, self._delivered_before(location, entered) + 1) for location in chosen
                ]
                becomes = with_claims(
                    self._refreshed(entered), claims, self.id, self._staleness.now_ms(), frozenset(pending)
                )
                with suppress(OutcomeUnknown):  # if it has landed, or lands yet, the next read shows it as ours
                    if await self._write(seen, becomes):
                        self._hold(claims, entered)
                        return claims
            raise self._contended("claim from")

    async def ack(self, locations: Iterable[str], set_aside: Mapping[str, bool] = NOTHING) -> int:
        """Mark locations as done, in one write; how many done locations wait for a clean-up then.

        `set_aside` has those that were set aside, and whether because they could not be read. In ordered mode the
        locations must be the first that are held. Those that are done already are no error. Raises `Fenced`, and then
        nothing is marked; `Unavailable` or `OutcomeUnknown`, and then it can be repeated.
        """
        async with self._turn:
            wanted = dict.fromkeys(location for location in locations if location in self.held)
            claims = [self.held[location] for location in wanted]
            now = await self._end(
                "acknowledge in",
                ClaimState.ACKNOWLEDGED,
                lambda: self._to_acknowledge(wanted),
                lambda now, ours: with_done(now, ours, set_aside),
            )
            for claim in claims:
                check_known_end(claim)
            return len(now.done)

    async def release(self, locations: Collection[str]) -> None:
        """Give claims back, in one write; in ordered mode also those behind the first of them, for order's sake.

        Raises `Fenced`; `Unavailable` or `OutcomeUnknown`, and then it can be repeated.
        """
        async with self._turn:
            await self._end("release in", ClaimState.RELEASED, lambda: self._to_release(locations), self._releasing)

    async def leave(self) -> None:
        """Give back everything that is held, and the queue itself, in one write. The end of us."""
        async with self._turn:
            await self._end(
                "leave",
                ClaimState.RELEASED,
                lambda: list(self.held) if self.held or self.epoch is not None else None,
                lambda now, ours: replace(
                    self._releasing(now, ours), owner=None if self._mode is Mode.ORDERED else now.owner
                ),
                leaves=True,
            )

    async def heartbeat(self) -> None:
        """Say that we live, for everything that we hold, in one write. Raises `Fenced`, or `Unavailable`."""
        for pause in self._backoff.pauses(self._means.random):
            await self._wait(pause)
            if not self.held and self.epoch is None:
                return
            async with self._request:
                seen = await self._latest_now()
                self._check(seen.manifest)
                with suppress(OutcomeUnknown):
                    if await self._write_now(seen, self._refreshed(seen.manifest)):
                        return
        raise self._contended("keep alive what is claimed in")

    async def check(self) -> None:
        """Raise `Fenced` unless the store says that what we hold is ours."""
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

    # --- reading and writing

    async def _end(
        self,
        deed: str,
        end: ClaimState,
        which: Callable[[], Sequence[str] | None],
        change: Callable[[ConsumerManifest, Sequence[str]], ConsumerManifest],
        *,
        leaves: bool = False,
    ) -> ConsumerManifest:
        """Let claims come to an end, in one write that can be recognized later; the manifest then.

        `which` says which are still to be ended, or None where there is nothing left to do.
        """
        self._number += 1
        doubt: OutcomeUnknown | None = None
        try:
            for pause in self._backoff.pauses(self._means.random):
                await self._wait(pause)
                seen = await self._latest()
                doubt = doubt if self._sent else None  # what was read tells that it did not land
                if (ours := which()) is None:
                    return seen.manifest
                self._check(seen.manifest)
                acks, _ = remember(seen.manifest.acks, self.id, self._number, most=self._most_collectors)
                becomes = replace(change(self._refreshed(seen.manifest), ours), acks=acks)
                sent = Sent(
                    number=self._number,
                    locations=frozenset(ours),
                    end=end,
                    leaves=leaves,
                    over=seen.manifest,
                    at=seen.at,
                )
                self._sent.append(sent)
                try:
                    if await self._write(seen, becomes):
                        self._settle_sent(sent)
                        return becomes
                except OutcomeUnknown as error:
                    doubt = error
                else:
                    self._sent = [each for each in self._sent if each is not sent]
        except Unavailable as error:
            raise self._unsure(doubt) if doubt else error from error
        raise self._unsure(doubt) if doubt else self._contended(deed)

    async def _read(self) -> Stored[ConsumerManifest]:
        async with self._request:
            return await self._read_now()

    async def _latest(self) -> Stored[ConsumerManifest]:
        async with self._request:
            return await self._latest_now()

    async def _write(self, seen: Stored[ConsumerManifest], manifest: ConsumerManifest) -> bool:
        began = self._means.clock.monotonic()
        async with self._request:
            latest = self.files.consumer.latest
            if latest is not None and latest.at != seen.at:
                return False  # a heartbeat of ours came between: the store would refuse it
            return await self._write_now(seen, manifest, began)

    async def _read_now(self) -> Stored[ConsumerManifest]:
        self.check_known()
        seen = await self.files.consumer.read()
        self.bad_in_a_row = seen.manifest.bad_in_a_row
        self._settle(seen)
        return seen

    async def _latest_now(self) -> Stored[ConsumerManifest]:
        """What we last saw, where we need not know better: if it is old, the write that follows is refused."""
        self.check_known()
        latest = self.files.consumer.latest
        return await self._read_now() if latest is None else latest

    async def _write_now(
        self, seen: Stored[ConsumerManifest], manifest: ConsumerManifest, began: float | None = None
    ) -> bool:
        began = self._means.clock.monotonic() if began is None else began
        written = await self.files.consumer.write(seen, manifest)
        if written:
            self._refreshed_at = began
            self.bad_in_a_row = manifest.bad_in_a_row
        return written

    async def _pending(self) -> tuple[str, ...]:
        return (await self.files.producer.read()).manifest.pending

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

    def _claimable_at_once(self, chosen: Sequence[str], now: ConsumerManifest) -> Sequence[str]:
        """Those of the next that are claimed in one write.

        One that was delivered before is claimed alone. If it crashes its reader, and a crash counts as a delivery of
        everything that was claimed, its neighbours are not counted along.
        """
        for number, location in enumerate(chosen):
            if self._delivered_before(location, now):
                return chosen[: max(1, number)]
        return chosen

    def _delivered_before(self, location: str, now: ConsumerManifest) -> int:
        """How often it was claimed, but for a claim of ours that was left without an answer."""
        ours = now.owners.get(location) == self.id
        return max(0, now.deliveries.get(location, 0) - ours)

    def _to_acknowledge(self, wanted: Collection[str]) -> Sequence[str] | None:
        """Those that are not done yet, in the order in which they were claimed where that matters."""
        ours = [location for location in wanted if location in self.held]
        if not ours:
            return None
        if self._mode is Mode.ORDERED:
            first = [location for location, _ in zip(self.held, ours, strict=False)]
            if early := next((location for location in first if location not in wanted), None):
                raise OutOfTurn(f"{early} was handed out before {ours[-1]} and is not acknowledged yet.")
            return first
        return ours

    def _to_release(self, wanted: Collection[str]) -> Sequence[str] | None:
        ours = [location for location in wanted if location in self.held]
        if ours and self._mode is Mode.ORDERED:
            return list(dropwhile(lambda location: location not in wanted, self.held))
        return ours or None

    def _releasing(self, now: ConsumerManifest, ours: Sequence[str]) -> ConsumerManifest:
        return with_released(now, [self.held[location] for location in ours])

    def _refreshed(self, now: ConsumerManifest) -> ConsumerManifest:
        return refreshed(now, self.held, self._staleness.now_ms(), ordered=self._mode is Mode.ORDERED)

    # --- what we know of our own writes

    def _hold(self, claims: Sequence[Claim], entered: ConsumerManifest) -> None:
        if self._mode is Mode.ORDERED:
            self.epoch = entered.epoch
        self.held.update({claim.location: claim for claim in claims})

    def _settle(self, seen: Stored[ConsumerManifest]) -> None:
        """Find out what became of writes that were left without an answer."""
        acks = seen.manifest.acks
        landed = acks.get(self.id)
        for sent in self._sent:
            if sent.number == landed:
                self._settle_sent(sent)
                return  # the others were to take the place of what it has replaced
        if landed is None:
            for sent in self._sent:
                if sent.at != seen.at and sent.may_be_forgotten(acks, self._most_collectors):
                    self._give_up(sent, seen.manifest)
        self._sent = [sent for sent in self._sent if sent.at == seen.at]

    def _settle_sent(self, sent: Sent) -> None:
        self._sent.clear()
        self._let_go(sent.locations, sent.end)
        if sent.leaves:
            self.epoch = None

    def _give_up(self, sent: Sent, now: ConsumerManifest) -> None:
        """Let go of what a write may have ended of which no trace is left."""
        gone = [location for location in sent.locations if now.owners.get(location) != self.id]
        self._let_go(gone, ClaimState.UNKNOWN if sent.end is ClaimState.ACKNOWLEDGED else sent.end)

    def _let_go(self, locations: Iterable[str], end: ClaimState) -> None:
        for location in locations:
            if (claim := self.held.pop(location, None)) is not None:
                claim.state = end
                self._means.counts.acks += end is ClaimState.ACKNOWLEDGED

    def _unsure(self, doubt: OutcomeUnknown) -> LakeheadError:
        return OutcomeUnknown(
            f"A change of {self.files.consumer.key} was left without an answer ({doubt}). Repeat the call."
        )

    def _contended(self, deed: str) -> Contended:
        return Contended(
            f"{self._backoff.attempts} tries to {deed} {self.files.consumer.key} met another writer each time. "
            "Try again later, with fewer collectors or more partitions."
        )


def check_known_end(claim: Claim) -> None:
    """Raise `OutcomeUnknown` for a claim of which nobody can tell any more whether it was acknowledged."""
    if claim.state is ClaimState.UNKNOWN:
        raise OutcomeUnknown(
            f"The acknowledgement of {claim.location} was left without an answer, and so many collectors have "
            "acknowledged since that it cannot be found out. If it is not acknowledged, it is handed out again."
        )
