"""One collector's hold on one pair of manifests: claim, keep alive, acknowledge, and notice when it is lost.

Safety comes from owner and epoch, which are checked inside of the compare-and-set of every write; clocks only decide
when it is worth trying to take over.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import NoReturn

from lakehead.buffer.claims import (
    NOTHING,
    Claim,
    ClaimState,
    SkippedBatch,
    check_not_forgotten,
    refreshed,
    with_claims,
    with_done,
    with_released,
)
from lakehead.buffer.consumer_file import ConsumerFile
from lakehead.buffer.errors import Contended, Fenced
from lakehead.buffer.holdings import Holdings, Sent
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
        self.id = means.ids.uuid()
        self._mode = mode
        self._means = means
        self._backoff = backoff
        self._timeout = timeout
        self._staleness = Staleness(timeout, means.clock)
        self._most_collectors = most_collectors
        self._holdings = Holdings(self.id, means.counts, ordered=mode is Mode.ORDERED, most_collectors=most_collectors)
        self._file = ConsumerFile(files.consumer, self._holdings, means.clock)
        self._number = 0
        self._fenced: Fenced | None = None
        self._turn = asyncio.Lock()
        """For whoever changes what is held; a heartbeat does not wait for it."""

    @property
    def held(self) -> Mapping[str, Claim]:
        """What we hold, in the order in which we claimed it."""
        return self._holdings.held

    @property
    def forgotten(self) -> Collection[str]:
        """What we may have acknowledged, and the manifest has no trace of that any more: `ack` finds out."""
        return self._holdings.forgotten.keys()

    @property
    def epoch(self) -> int | None:
        """In ordered mode, the epoch in which the queue is ours."""
        return self._holdings.epoch

    @property
    def bad_in_a_row(self) -> int:
        """How many bad batches were acknowledged last, as far as we have seen."""
        return self._file.bad_in_a_row

    @property
    def is_fenced(self) -> bool:
        """Whether we know that another collector has taken over."""
        return self._fenced is not None

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
                    if await self._file.write(seen, becomes):
                        self._holdings.hold(claims, entered.epoch)
                        return claims
            raise self._contended("claim from")

    async def ack(self, locations: Iterable[str], skipped: Mapping[str, SkippedBatch] = NOTHING) -> int:
        """Mark locations as done, in one write; how many done locations wait for a clean-up then.

        `skipped` has those that were set aside instead of being handed out. In ordered mode the locations must be the
        first that are held. Those that are done already are no error. Raises `Fenced`, and then nothing is marked;
        `Unavailable` or `OutcomeUnknown`, and then it can be repeated, unless that is `Forgotten`.
        """
        async with self._turn:
            wanted = dict.fromkeys(locations)
            known = {**self._holdings.forgotten, **self.held}
            claims = [known[location] for location in wanted if location in known]
            now = await self._end(
                "acknowledge in",
                ClaimState.ACKNOWLEDGED,
                lambda: self._holdings.to_acknowledge(wanted),
                lambda now, ours: with_done(now, ours, skipped),
            )
            for claim in claims:
                check_not_forgotten(claim)
            return len(now.done)

    async def release(self, locations: Collection[str]) -> None:
        """Give claims back, in one write; in ordered mode also those behind the first of them, for order's sake.

        Raises `Fenced`; `Unavailable` or `OutcomeUnknown`, and then it can be repeated.
        """
        async with self._turn:
            await self._end(
                "release in",
                ClaimState.RELEASED,
                lambda: self._holdings.to_release(locations),
                self._releasing,
            )

    async def leave(self) -> None:
        """Give back everything that is held, and the queue itself, in one write. The end of us."""
        async with self._turn:
            await self._end(
                "leave",
                ClaimState.RELEASED,
                lambda: None if self._holdings.is_empty else list(self.held),
                lambda now, ours: replace(
                    self._releasing(now, ours), owner=None if self._mode is Mode.ORDERED else now.owner
                ),
                leaves=True,
            )

    async def heartbeat(self) -> None:
        """Say that we live, for everything that we hold, in one write. Raises `Fenced`, or `Unavailable`."""
        for pause in self._backoff.pauses(self._means.random):
            await self._wait(pause)
            if self._holdings.is_empty:
                return
            self.check_known()
            with suppress(OutcomeUnknown):
                if await self._file.change(self._alive_in):
                    return
        raise self._contended("keep alive what is claimed in")

    async def check(self) -> None:
        """Raise `Fenced` unless the store says that what we hold is ours."""
        self._check((await self._read()).manifest)

    async def check_if_old(self) -> None:
        """Raise `Fenced` if we are, and ask the store where others may have taken us for gone meanwhile."""
        self.check_known()
        if self._means.clock.monotonic() - self._file.refreshed_at > self._timeout:
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
                self.check_known()
                seen = await self._file.latest()
                doubt = doubt if self._holdings.is_in_doubt else None  # what was read tells that it did not land
                await self._find_out(seen.manifest)
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
                self._holdings.sent.append(sent)
                try:
                    if await self._file.write(seen, becomes):
                        self._holdings.settle_sent(sent)
                        return becomes
                except OutcomeUnknown as error:
                    doubt = error
                else:
                    self._holdings.refuse_sent(sent)
        except Unavailable as error:
            raise self._unsure(doubt) if doubt else error from error
        raise self._unsure(doubt) if doubt else self._contended(deed)

    async def _find_out(self, now: ConsumerManifest) -> None:
        """Find out what became of acknowledgements of which the consumer manifest has no trace any more.

        Raises `Fenced` if one was not acknowledged, and is another's now.
        """
        if self._holdings.forgotten and self._holdings.clear_up(frozenset(await self._pending())):
            self._check(now)

    async def _read(self) -> Stored[ConsumerManifest]:
        self.check_known()
        return await self._file.read()

    async def _pending(self) -> tuple[str, ...]:
        return (await self.files.producer.read()).manifest.pending

    async def _wait(self, pause: float) -> None:
        if pause:
            await self._means.clock.sleep(pause)

    # --- who may

    def _entered(self, now: ConsumerManifest) -> ConsumerManifest | None:
        """The manifest as one that we may claim in, perhaps by taking over; None while others have it."""
        if self._mode is Mode.ORDERED and now.owner == self.id and self.epoch is None:
            self._holdings.epoch = now.epoch  # a take-over that was left without an answer
        if not self._holdings.is_empty:
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

    def _releasing(self, now: ConsumerManifest, ours: Sequence[str]) -> ConsumerManifest:
        return with_released(now, [self.held[location] for location in ours])

    def _alive_in(self, now: ConsumerManifest) -> ConsumerManifest:
        """With a heartbeat. Raises `Fenced`."""
        self._check(now)
        return self._refreshed(now)

    def _refreshed(self, now: ConsumerManifest) -> ConsumerManifest:
        return refreshed(now, self.held, self._staleness.now_ms(), ordered=self._mode is Mode.ORDERED)

    def _unsure(self, doubt: OutcomeUnknown) -> LakeheadError:
        return OutcomeUnknown(
            f"A change of {self.files.consumer.key} was left without an answer ({doubt}). Repeat the call."
        )

    def _contended(self, deed: str) -> Contended:
        return Contended(
            f"{self._backoff.attempts} tries to {deed} {self.files.consumer.key} met another writer each time. "
            "Try again later, with fewer collectors or more partitions."
        )
