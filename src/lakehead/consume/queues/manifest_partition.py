"""One partition of a manifest queue, read for its locations alone: claims with visibility timeouts."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from math import inf

from lakehead.buffer.ack_writer import AckWriter
from lakehead.buffer.claims import Claim, ClaimState
from lakehead.buffer.config import CollectorConfig, CollectorMode
from lakehead.buffer.consumer import Consumer
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import Fenced
from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.buffer.warn_once import WarnOnce
from lakehead.errors import LakeheadError, OutcomeUnknown

SETTLED = (ClaimState.ACKNOWLEDGED, ClaimState.OUTCOME_LOST)
"""States of a claim whose location is never delivered again."""


class ManifestPartition:
    """The claims of one consumer in one partition.

    The buffer knows no visibility timeout: a claim lasts as long as its collector sends heartbeats. So heartbeats are
    sent for everything that is held, and what is held longer than its visibility timeout is released.
    """

    def __init__(self, config: CollectorConfig, deps: BufferDeps, manifest_deps: BufferDeps, number: int) -> None:
        """`manifest_deps` has the store for manifests, with a shorter timeout; `deps` the one for batches."""
        self._config = config
        self._deps = deps
        self._manifest_deps = manifest_deps
        self._keys = ManifestKeys.of(config.manifest_path, number)
        self._owner: PrefixOwner | None = None
        self._warnings = WarnOnce()
        self._start_over()

    def _start_over(self) -> None:
        """Forget every claim, and go on as another collector."""
        config, deps = self._config, self._manifest_deps
        self._consumer = Consumer(
            ManifestPair.of(self._keys, deps),
            deps,
            mode=CollectorMode.COMPETING,
            timeout=config.heartbeat_timeout_ms.total_seconds(),
        )
        self._acks = AckWriter(
            self._consumer,
            QueueCleanup(pair=ManifestPair.of(self._keys, deps), deps=self._deps, backoff=deps.retries.consumer),
            ordered=False,
            threshold=config.done_cleanup_threshold,
        )
        self._visible_at: dict[Claim, float] = {}
        self._heartbeat_at = inf
        self._checked_at = deps.clock.monotonic()

    @property
    def partitions(self) -> int:
        """How many partitions the queue has, as of the last claim."""
        latest = self._consumer.pair.producer.latest
        return max(1, latest.manifest.partitions) if latest is not None else 1

    @property
    def due_at(self) -> float:
        """When `keep` has something to do, by the monotonic clock."""
        return min(self._heartbeat_at, min(self._visible_at.values(), default=inf))

    def holds(self, claim: Claim) -> bool:
        """Whether a claim is ours, as far as we know."""
        return claim in self._visible_at and self._consumer.held.get(claim.location) is claim

    async def claim(self, most: int, seconds: float) -> list[Claim]:
        """Claim locations for so many seconds; none if there are none. Raises `Unavailable`, `Misconfigured`.

        What a call has claimed that failed afterwards is returned by the next one, if it is still ours.
        """
        consumer = self._consumer
        try:
            await consumer.claim(0 if self._not_handed_out() else most)
        except Fenced:
            self._lost(consumer)
            return []
        self._heartbeat_at = min(self._heartbeat_at, self._deps.clock.monotonic() + self._config.heartbeat_seconds)
        if self._not_handed_out():
            await self._check_prefix()
        if consumer is not self._consumer:
            return []  # a heartbeat has found that they are lost
        now = self._deps.clock.monotonic()
        claims = self._not_handed_out()[:most]
        for claim in claims:
            claim.handed_out = True
            self._visible_at[claim] = now + seconds
        return claims

    def _not_handed_out(self) -> list[Claim]:
        """The claims that no call has returned yet."""
        return [claim for claim in self._consumer.held.values() if not claim.handed_out]

    async def extend(self, claims: Sequence[Claim], seconds: float) -> None:
        """Keep claims for so many seconds from now on. Those that are lost are not held any more."""
        consumer = self._consumer
        ours = [claim for claim in claims if self.holds(claim)]
        now = self._deps.clock.monotonic()
        for claim in ours:
            self._visible_at[claim] = max(self._visible_at[claim], now + 1)  # not released meanwhile
        # Another collector can only have taken them if our heartbeats failed: so not each call looks.
        if ours and now - self._checked_at > self._config.heartbeat_seconds / 3:
            try:
                await consumer.verify_not_fenced()
            except Fenced:
                self._lost(consumer)
            else:
                self._checked_at = now
        for claim in filter(self.holds, ours):
            self._visible_at[claim] = now + seconds

    async def acknowledge(self, claims: Sequence[Claim]) -> None:
        """Mark locations as done. Those for which that failed are not in a state of `SETTLED`. Raises `Unavailable`."""
        consumer = self._consumer
        if ours := {claim.location: None for claim in claims if self.holds(claim)}:
            try:
                await asyncio.shield(self._acks.ack(ours))
            except Fenced:
                self._lost(consumer)
            except OutcomeUnknown:
                pass  # its claims are held, and released when their time is over, or found to be acknowledged
        self._forget(claims)

    async def release(self, claims: Collection[Claim]) -> None:
        """Give claims back. Those for which that failed are not released. Raises `Unavailable`."""
        await self._acks.wait()
        consumer = self._consumer
        try:
            await consumer.release({claim.location for claim in claims if self.holds(claim)})
        except Fenced:
            self._lost(consumer)
        except OutcomeUnknown:
            pass  # it is tried again when their time is over
        self._forget(claims)

    async def keep(self) -> None:
        """Release what is held longer than its visibility timeout, and send a heartbeat for the rest, if it is time."""
        now = self._deps.clock.monotonic()
        key, consumer = self._keys.consumer, self._consumer
        try:
            if over := [claim for claim, at in self._visible_at.items() if at <= now]:
                for claim in over:
                    self._visible_at[claim] = now + self._config.heartbeat_seconds  # when it is tried again
                await self.release(over)
            if now >= self._heartbeat_at:
                self._heartbeat_at = now + self._config.heartbeat_seconds if consumer.held else inf
                await consumer.heartbeat()
                self._checked_at = now
        except Fenced:
            self._lost(consumer)
        except Exception as error:  # noqa: BLE001 - a failed heartbeat must not prevent the next ones
            self._deps.counts.heartbeats_failed += 1
            self._warnings.warn(
                key,
                f"The claims in {key} could not be refreshed ({error!r}). If this lasts for "
                f"{self._config.heartbeat_timeout_ms}, other consumers take them over. Check that the store can be "
                "reached and written to.",
                None if isinstance(error, LakeheadError) else error,
            )
        else:
            self._warnings.resolved(key)

    async def close(self) -> None:
        """Wait for acknowledgements, and give back everything that is held."""
        await self._acks.wait()
        try:
            await self._consumer.release_all()
        except Fenced:
            pass  # another consumer has them
        except LakeheadError as error:
            self._warnings.warn(
                "close",
                f"Could not release the claims in {self._keys.consumer} ({error}). Nothing is lost: other consumers "
                f"take them over after {self._config.heartbeat_timeout_ms}.",
            )
        self._visible_at.clear()

    async def _check_prefix(self) -> None:
        """Raise `Misconfigured` if the queue's `data_path_prefix` belongs to another queue."""
        latest = self._consumer.pair.producer.latest
        prefix = latest.manifest.data_path_prefix if latest is not None else None
        if self._owner is None and prefix is not None:
            self._owner = PrefixOwner(prefix, self._config.manifest_path, self._deps)
        if self._owner is not None:
            await self._owner.check()

    def _lost(self, consumer: Consumer) -> None:
        """Start over, because another collector has taken a claim over from this one."""
        if consumer is self._consumer:
            self._start_over()

    def _forget(self, claims: Iterable[Claim]) -> None:
        """Drop the times of claims that have ended."""
        for claim in claims:
            if not self.holds(claim):
                self._visible_at.pop(claim, None)
