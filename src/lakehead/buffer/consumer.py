"""One collector's claims in one partition: claim, heartbeat, acknowledge, release, and notice a takeover.

Safety comes from owner and epoch, which are checked inside the compare-and-set of every write. Clocks only decide when
a takeover is attempted.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, TypeVar

from lakehead.buffer.claims import (
    NONE_SKIPPED,
    Claim,
    ClaimState,
    SkippedBatch,
    check_outcome_known,
    with_claims,
    with_done,
    with_heartbeat,
    with_released,
)
from lakehead.buffer.compare_and_set import contended, until_written
from lakehead.buffer.config import CollectorMode
from lakehead.buffer.consumer_file import ConsumerFile
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import Fenced
from lakehead.buffer.held_claims import HeldClaims, UnconfirmedWrite
from lakehead.buffer.manifests import ManifestPair, StoredManifest
from lakehead.buffer.staleness import Staleness
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire.queue_manifests import ConsumerManifest, record_last_number

MAX_COLLECTORS = 64
"""How many collectors' last acknowledgements a manifest keeps."""

ADVICE = "Try again later, with fewer collectors or more partitions."

T = TypeVar("T")


class Consumer:
    """The claims of one collector in one partition. Calls that change them wait for each other."""

    def __init__(
        self,
        pair: ManifestPair,
        deps: BufferDeps,
        *,
        mode: CollectorMode,
        timeout: float,
        max_collectors: int = MAX_COLLECTORS,
    ) -> None:
        self.pair = pair
        self.id = deps.ids.uuid()
        self._mode = mode
        self._deps = deps
        self._backoff = deps.retries.consumer
        self._timeout = timeout
        self._staleness = Staleness(timeout, deps.clock)
        self._max_collectors = max_collectors
        self._claims = HeldClaims(
            self.id, deps.counts, ordered=mode is CollectorMode.ORDERED, max_collectors=max_collectors
        )
        self._file = ConsumerFile(pair.consumer, self._claims, deps.clock)
        self._number = 0
        self._fenced: Fenced | None = None
        self._lock = asyncio.Lock()
        """Held while claims are changed; a heartbeat does not wait for it."""

    @property
    def held(self) -> Mapping[str, Claim]:
        """The claims that we hold, by location, in the order in which they were claimed."""
        return self._claims.held

    @property
    def lost_acks(self) -> Collection[str]:
        """Locations whose ack got no response and left no trace in the manifest: call `ack` again to resolve them."""
        return self._claims.lost_acks.keys()

    @property
    def epoch(self) -> int | None:
        """In ordered mode, the epoch in which we own the queue."""
        return self._claims.epoch

    @property
    def bad_in_a_row(self) -> int:
        """How many bad batches were acknowledged last, as of the manifest that we last read or wrote."""
        return self._file.bad_in_a_row

    @property
    def is_fenced(self) -> bool:
        """Whether we know that another collector has taken over."""
        return self._fenced is not None

    async def claim(self, limit: int) -> list[Claim]:
        """Claim up to `limit` of the next locations; an empty list if there are none or another collector has them.

        Raises `Fenced`; `Unavailable`, and then the call can be repeated.
        """
        async with self._lock:
            return await self._until_written(lambda: self._claim_once(limit), "claim from")

    async def _claim_once(self, limit: int) -> list[Claim] | None:
        # In this order: what is still pending in the second read is done in the first, or not done at all.
        current = await self._read()
        pending = await self._pending()
        base = self._with_takeover(current.manifest)
        if base is None:
            return []
        locations = self._claimable_in_one_write(self._claimable(pending, base)[:limit], base)
        if not locations and base is current.manifest:
            return []
        claims = [Claim(location, base.epoch, self._earlier_deliveries(location, base) + 1) for location in locations]
        changed = with_claims(self._with_heartbeat(base), claims, self.id, self._staleness.now_ms(), frozenset(pending))
        # If the outcome is unknown and it was or will be applied, the next read shows it as ours.
        if not await self._file.write(current, changed):
            return None
        self._claims.hold(claims, base.epoch)
        return claims

    async def ack(self, locations: Iterable[str], skipped: Mapping[str, SkippedBatch] = NONE_SKIPPED) -> int:
        """Mark locations as done, in one write; return how many done locations wait for a cleanup then.

        `skipped` has those that went to quarantine instead of being handed out. In ordered mode the locations must be
        the first that are held. Locations that are already done are no error. Raises `Fenced`, and then nothing is
        marked; `Unavailable` or `OutcomeUnknown`, and then the call can be repeated, except after `OutcomeLost`.
        """
        async with self._lock:
            requested = dict.fromkeys(locations)
            known = {**self._claims.lost_acks, **self.held}
            claims = [known[location] for location in requested if location in known]
            now = await self._end_claims(
                "acknowledge in",
                ClaimState.ACKNOWLEDGED,
                lambda: self._claims.to_acknowledge(requested),
                lambda now, ours: with_done(now, ours, skipped),
            )
            for claim in claims:
                check_outcome_known(claim)
            return len(now.done)

    async def release(self, locations: Collection[str]) -> None:
        """Give claims back, in one write; in ordered mode also those behind the first of them, to keep the order.

        Raises `Fenced`; `Unavailable` or `OutcomeUnknown`, and then the call can be repeated.
        """
        async with self._lock:
            await self._end_claims(
                "release in",
                ClaimState.RELEASED,
                lambda: self._claims.to_release(locations),
                self._without_claims,
            )

    async def release_all(self) -> None:
        """Give back all claims and the ownership of the queue, in one write. Raises what `release` does."""
        async with self._lock:
            await self._end_claims(
                "release all of",
                ClaimState.RELEASED,
                lambda: None if self._claims.is_empty else list(self.held),
                lambda now, ours: replace(
                    self._without_claims(now, ours), owner=None if self._mode is CollectorMode.ORDERED else now.owner
                ),
                gives_up_queue=True,
            )

    async def heartbeat(self) -> None:
        """Refresh all claims, in one write. Raises `Fenced`, or `Unavailable`."""
        await self._until_written(self._heartbeat_once, "send a heartbeat to")

    async def _heartbeat_once(self) -> bool | None:
        if self._claims.is_empty:
            return True
        self.raise_if_fenced()
        return await self._file.change(self._with_checked_heartbeat) or None

    async def verify_not_fenced(self) -> None:
        """Read the manifest, and raise `Fenced` unless everything that we hold is still ours."""
        self._check_ownership((await self._read()).manifest)

    async def verify_not_fenced_if_overdue(self) -> None:
        """Raise `Fenced` if we are; read the manifest first if the last heartbeat is older than the timeout."""
        self.raise_if_fenced()
        if self._deps.clock.monotonic() - self._file.refreshed_at > self._timeout:
            await self.verify_not_fenced()

    def raise_if_fenced(self) -> None:
        """Raise `Fenced` if we know that another collector has taken over."""
        if self._fenced is not None:
            raise self._fenced.with_traceback(None)

    # --- reading and writing

    async def _end_claims(
        self,
        action: str,
        end_state: ClaimState,
        select: Callable[[], Sequence[str] | None],
        change: Callable[[ConsumerManifest, Sequence[str]], ConsumerManifest],
        *,
        gives_up_queue: bool = False,
    ) -> ConsumerManifest:
        """End claims in one write that can be recognized later; return the manifest after it.

        `select` returns the locations that are still to be ended, or None if nothing is left to do.
        """
        self._number += 1
        doubt: OutcomeUnknown | None = None
        try:
            async for _ in self._backoff.each_attempt(self._deps.clock, self._deps.random):
                self.raise_if_fenced()
                current = await self._file.latest()
                doubt = doubt if self._claims.is_in_doubt else None  # the read has shown that it was not applied
                await self._resolve_lost_acks(current.manifest)
                if (ours := select()) is None:
                    return current.manifest
                self._check_ownership(current.manifest)
                acks, _ = record_last_number(current.manifest.acks, self.id, self._number, limit=self._max_collectors)
                changed = replace(change(self._with_heartbeat(current.manifest), ours), acks=acks)
                write = UnconfirmedWrite(
                    number=self._number,
                    locations=frozenset(ours),
                    end_state=end_state,
                    gives_up_queue=gives_up_queue,
                    base=current.manifest,
                    base_version=current.object_version,
                )
                self._claims.unconfirmed.append(write)
                try:
                    if await self._file.write(current, changed):
                        self._claims.confirm(write)
                        return changed
                except OutcomeUnknown as error:
                    doubt = error
                else:
                    self._claims.mark_refused(write)
        except Unavailable as error:
            raise self._unknown(doubt) if doubt else error from error
        raise self._unknown(doubt) if doubt else contended(self._described(action), self._backoff, ADVICE)

    async def _resolve_lost_acks(self, now: ConsumerManifest) -> None:
        """Resolve acks of which the consumer manifest has no trace any more.

        Raises `Fenced` if one was not acknowledged, and belongs to another collector now.
        """
        if self._claims.lost_acks and self._claims.resolve_lost_acks(frozenset(await self._pending())):
            self._check_ownership(now)

    async def _read(self) -> StoredManifest[ConsumerManifest]:
        self.raise_if_fenced()
        return await self._file.read()

    async def _pending(self) -> tuple[str, ...]:
        return (await self.pair.producer.read()).manifest.pending

    async def _until_written(self, attempt: Callable[[], Awaitable[T | None]], action: str) -> T:
        described = self._described(action)
        try:
            return await until_written(attempt, self._deps, self._backoff, action=described, advice=ADVICE)
        except OutcomeUnknown as error:  # the call can be repeated, as after `Unavailable`: claims are found again
            raise Unavailable(str(error)) from error

    # --- ownership

    def _with_takeover(self, now: ConsumerManifest) -> ConsumerManifest | None:
        """Return the manifest if we may claim in it, taking over if necessary; None while others are active."""
        if self._mode is CollectorMode.ORDERED and now.owner == self.id and self.epoch is None:
            self._claims.epoch = now.epoch  # a takeover of ours that got no response
        if not self._claims.is_empty:
            self._check_ownership(now)
            return now
        if self._mode is CollectorMode.COMPETING and now.owner is None:
            return now
        if not self._staleness.are_all_stale(self._heartbeats(now)):
            return None
        owner = self.id if self._mode is CollectorMode.ORDERED else None
        return replace(now, epoch=now.epoch + 1, owner=owner, claimed={}, owners={})

    def _heartbeats(self, now: ConsumerManifest) -> Mapping[str, int]:
        """Return the last heartbeats of all collectors that may be active."""
        return {**now.claimed, "": now.heartbeat} if now.owner is not None else now.claimed

    def _check_ownership(self, now: ConsumerManifest) -> None:
        """Raise `Fenced` unless everything that we hold is still ours."""
        if self._mode is CollectorMode.ORDERED:
            lost = self.epoch is not None and (now.owner != self.id or now.epoch != self.epoch)
        else:
            lost = any(now.owners.get(location) != self.id for location in self.held)
        if lost:
            self._fence()

    def _fence(self) -> NoReturn:
        self._deps.counts.claims_lost += len(self.held)
        self._fenced = Fenced(
            f"Another collector has taken over from this one in {self.pair.consumer.key}. "
            "Discard the batches that are not acknowledged: they are handed out again. Make a new collector."
        )
        raise self._fenced

    # --- changes of the manifest

    def _claimable(self, pending: Sequence[str], now: ConsumerManifest) -> list[str]:
        """Return the locations that we could claim, in the order of the queue."""
        done = set(now.done)
        free = [location for location in dict.fromkeys(pending) if location not in done and location not in self.held]
        self._deps.counts.queue_length[self.pair.producer.key] = len(free) + len(self.held)
        if self._mode is CollectorMode.ORDERED:
            return free
        self._staleness.forget_all_but(now.claimed)
        return [location for location in free if self._is_free(location, now)]

    def _is_free(self, location: str, now: ConsumerManifest) -> bool:
        refreshed = now.claimed.get(location)
        return refreshed is None or now.owners.get(location) == self.id or self._staleness.is_stale(location, refreshed)

    def _claimable_in_one_write(self, locations: Sequence[str], now: ConsumerManifest) -> Sequence[str]:
        """Return the first of the locations that are claimed together.

        One that was delivered before is claimed alone: if it crashes its reader, the crash counts as a delivery of
        everything that was claimed, and its neighbours must not be counted.
        """
        for number, location in enumerate(locations):
            if self._earlier_deliveries(location, now):
                return locations[: max(1, number)]
        return locations

    def _earlier_deliveries(self, location: str, now: ConsumerManifest) -> int:
        """Return how often it was claimed, not counting a claim of ours that got no response."""
        ours = now.owners.get(location) == self.id
        return max(0, now.deliveries.get(location, 0) - ours)

    def _without_claims(self, now: ConsumerManifest, locations: Sequence[str]) -> ConsumerManifest:
        return with_released(now, [self.held[location] for location in locations])

    def _with_checked_heartbeat(self, now: ConsumerManifest) -> ConsumerManifest:
        """Return the manifest with new timestamps for our claims. Raises `Fenced`."""
        self._check_ownership(now)
        return self._with_heartbeat(now)

    def _with_heartbeat(self, now: ConsumerManifest) -> ConsumerManifest:
        ordered = self._mode is CollectorMode.ORDERED
        return with_heartbeat(now, self.held, self._staleness.now_ms(), ordered=ordered)

    def _unknown(self, doubt: OutcomeUnknown) -> LakeheadError:
        return OutcomeUnknown(f"A change of {self.pair.consumer.key} was not confirmed ({doubt}). Repeat the call.")

    def _described(self, action: str) -> str:
        return f"{action} {self.pair.consumer.key}"
