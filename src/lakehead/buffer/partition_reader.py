"""Reading one partition: claim and prefetch batches, hand them out in order, acknowledge them."""

import asyncio
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from lakehead.buffer.ack_writer import AckWriter
from lakehead.buffer.claims import Claim, ClaimState, check_outcome_known
from lakehead.buffer.config import CollectorConfig, CollectorMode
from lakehead.buffer.consumer import Consumer
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import Fenced, InvalidCall
from lakehead.buffer.layout import ManifestKeys, object_key
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.quarantine import Quarantine
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.buffer.read_ahead import PrefetchedBatch, ReadAhead
from lakehead.buffer.warn_once import logger
from lakehead.errors import LakeheadError, Unavailable
from lakehead.storage.object_keys import InvalidKey
from lakehead.storage.port import Object
from lakehead.wire.batch import BatchLimits, KeyValueEntry
from lakehead.wire.compact import decode_batch
from lakehead.wire.errors import NewerFormat, Unreadable


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A batch that is ready to be handed out."""

    claim: Claim
    entries: list[KeyValueEntry]
    size: int


@dataclass(frozen=True, slots=True)
class QuarantinedBatch:
    """A batch that went to quarantine instead of being handed out."""

    bad: bool
    """Whether it went there because it could not be read."""


class PartitionReader:
    """Reads one partition of a queue."""

    def __init__(
        self,
        config: CollectorConfig,
        deps: BufferDeps,
        manifest_deps: BufferDeps,
        limits: BatchLimits,
        read_ahead: ReadAhead,
        number: int,
    ) -> None:
        """`manifest_deps` has the store for manifests, with a shorter timeout; `deps` the one for batches."""
        keys = ManifestKeys.of(config.manifest_path, number)
        self.number = number
        self.consumer = Consumer(
            ManifestPair.of(keys, manifest_deps),
            manifest_deps,
            mode=config.mode,
            timeout=config.heartbeat_timeout_ms.total_seconds(),
        )
        self._config = config
        self._deps = deps
        self._limits = limits
        self._read_ahead = read_ahead
        self._quarantine = Quarantine(config.manifest_path, deps)
        self._acks = AckWriter(
            self.consumer,
            QueueCleanup(pair=ManifestPair.of(keys, manifest_deps), deps=deps, backoff=deps.retries.consumer),
            ordered=config.mode is CollectorMode.ORDERED,
            threshold=config.done_cleanup_threshold,
        )
        self._owner: PrefixOwner | None = None
        """The owner of the manifest's `data_path_prefix`, once that was read."""
        self._prefetched: deque[PrefetchedBatch] = deque()
        """Batches that are claimed and not handed out yet."""
        self._is_stuck = False
        """Whether `next` has raised for the first of these, and no poll was started since."""
        self._gave_back = False
        """Whether their bytes were given to other partitions, so that those behind the first must be fetched again."""
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def is_ready(self) -> bool:
        """Whether `next` has a result without waiting for the store, other than the error it raised last."""
        return bool(self._prefetched) and self._prefetched[0].is_fetched and not self._is_stuck

    @property
    def waits_for_prefetch(self) -> bool:
        """Whether something is claimed and not being fetched, because of the limit on prefetched bytes."""
        return bool(self._prefetched) and self._prefetched[0].fetching is None and not self._is_stuck

    @property
    def handed_out(self) -> dict[str, Claim]:
        """Claims that were handed out and are not acknowledged, by location."""
        return {location: claim for location, claim in self.consumer.held.items() if claim.handed_out}

    async def poll(self) -> bool:
        """Claim batches if none are left, and wait for the fetch of the first; return whether there is one.

        It does not wait if the first does not fit into the limit on prefetched bytes. A batch for which `next` has
        raised is fetched whatever the limit. Raises what `Consumer.claim` raises.
        """
        async with self._lock:
            self._acks.start_again()
            if (first := await self._first()) is None:
                return False
            if self._is_stuck:
                self._read_ahead.fetch_now(first)
            if first.fetching is not None:
                await asyncio.wait([first.fetching])
            self._is_stuck = False
            return True

    async def next(self) -> DecodedBatch | None:
        """Return the next batch, or None if there is none. Cancelling it loses nothing.

        If it raises, the reader is not ready until the next poll, and other partitions may prefetch instead.
        """
        async with self._lock:
            self._acks.start_again()
            try:
                return await self._next()
            except Exception:
                self._is_stuck = self._gave_back = bool(self._prefetched)
                self._read_ahead.give_back(self._prefetched)
                raise

    async def ack(self, claims: Collection[Claim]) -> None:
        """Mark batches as done. Raises what `Consumer.ack` raises."""
        self.check_ack(claims)
        if unacknowledged(claims):
            await self.start_ack(claims)
            unacknowledged(claims)  # raises if they were released meanwhile

    def check_ack(self, claims: Collection[Claim]) -> None:
        """Raise `Fenced`, `InvalidCall`, `OutcomeLost` or `AckOutOfOrder` if these cannot be acknowledged now."""
        self.consumer.raise_if_fenced()
        self._acks.check_order(unacknowledged(claims))

    def start_ack(self, claims: Collection[Claim]) -> "asyncio.Future[None]":
        """Mark batches as done in the background; calls share writes. The future raises what `Consumer.ack` does."""
        return self._acks.ack(unacknowledged(claims))

    async def release(self, claims: Collection[Claim]) -> None:
        """Give batches back to the queue. See `Consumer.release` for what else goes back, and what it raises.

        Raises `InvalidCall` for one that is acknowledged. One that is already released is no error.
        """
        async with self._lock:
            await self._acks.wait()
            self.consumer.raise_if_fenced()
            await self.consumer.release({claim.location for claim in claims if claim.state is ClaimState.HELD})
            self._forget_released()
            if done := [claim.location for claim in claims if claim.state is ClaimState.ACKNOWLEDGED]:
                raise InvalidCall(f"{done[0]} is already acknowledged and cannot be released.")

    async def quarantine(self, claim: Claim, reason: str) -> None:
        """Copy a batch that was handed out to quarantine, and acknowledge it. Raises what `ack` raises."""
        self.check_ack([claim])
        if claim.state is ClaimState.HELD:
            await self._copy_to_quarantine(claim, reason)
            await self.ack([claim])

    async def close(self) -> None:
        """Wait for acknowledgements, and give back everything that is held. Nothing is claimed after it."""
        self._closed = True
        async with self._lock:
            # Not cancelled: a cancelled request goes on in the client, and may outlive the event loop.
            if fetching := [each.fetching for each in self._prefetched if each.fetching is not None]:
                await asyncio.wait(fetching)
            await self._acks.wait()
            try:
                await self.consumer.release_all()
            except Fenced:
                pass  # another collector has taken over already
            except LakeheadError as error:
                logger.warning(
                    "Could not release the claims in %s (%s). Nothing is lost: other collectors take them over after "
                    "heartbeat_timeout_ms.",
                    self.consumer.pair.consumer.key,
                    error,
                )
            self._forget_released()

    # --- reading ahead

    async def _next(self) -> DecodedBatch | None:
        while (first := await self._first()) is not None:
            batch = await self._decoded(first)
            await self.consumer.verify_not_fenced_if_overdue()
            if first.claim.state is not ClaimState.HELD:
                continue  # a release of unknown outcome was applied after all
            self._prefetched.popleft()
            self._read_ahead.remove(first)
            if self._gave_back:
                self._read_ahead.add(self._prefetched)
                self._gave_back = False
            if isinstance(batch, DecodedBatch):
                first.claim.handed_out = True
                self._acks.handed_out()
                self._count(batch)
                return batch
            self._acks.skip(first.claim.location, bad=batch.bad)
        return None

    async def _first(self) -> PrefetchedBatch | None:
        """Return the first batch that is claimed and not handed out; claim if there is none."""
        self._drop_unheld()
        if not self._prefetched and not self._closed:
            claims = await self.consumer.claim(self._config.read_ahead)
            self._prefetched.extend(PrefetchedBatch(claim) for claim in claims)
            self._read_ahead.add(self._prefetched)
        if not self._prefetched:
            return None
        await self._check_prefix()
        return self._prefetched[0]

    async def _check_prefix(self) -> None:
        """Raise `Misconfigured` if the queue's `data_path_prefix` belongs to another queue."""
        latest = self.consumer.pair.producer.latest
        prefix = latest.manifest.data_path_prefix if latest is not None else None
        if self._owner is None and prefix is not None:
            self._owner = PrefixOwner(prefix, self._config.manifest_path, self._deps)
        if self._owner is not None:
            await self._owner.check()

    def _drop_unheld(self) -> None:
        """Drop batches whose claims were released, also by a release whose outcome was unknown."""
        while self._prefetched and self._prefetched[0].claim.state is not ClaimState.HELD:
            self._read_ahead.remove(self._prefetched.popleft())

    def _forget_released(self) -> None:
        self._drop_unheld()
        self._acks.forget_released()

    async def _decoded(self, batch: PrefetchedBatch) -> DecodedBatch | QuarantinedBatch:
        """Fetch and decode a batch, or move it to quarantine."""
        fetching = self._read_ahead.fetch_now(batch)
        await asyncio.wait([fetching])
        if fetching.cancelled():
            batch.fetching = None  # the next call tries again
            raise Unavailable(f"Reading {batch.claim.location} was cancelled. Try again.")
        if (unexpected := fetching.exception()) is not None:
            batch.fetching = None
            raise unexpected
        match fetching.result():
            case Object(_, body):
                try:
                    entries = decode_batch(body, self._limits)
                except NewerFormat:
                    raise
                except Unreadable as error:
                    return await self._skip(batch.claim, str(error))
            case None:
                await self.consumer.verify_not_fenced()  # a successor may have acknowledged and deleted it
                return await self._skip(batch.claim, "The batch is not in the store.", is_missing=True)
            case InvalidKey() as error:
                return await self._skip(batch.claim, str(error), is_missing=True)
            case error:
                batch.fetching = None  # the next call tries again
                raise error
        # Only now: a batch of a newer format does not go to quarantine, however often it was claimed.
        if (limit := self._config.max_deliveries) is not None and batch.claim.deliveries > limit:
            times = batch.claim.deliveries - 1
            return await self._skip(batch.claim, f"It was handed out {times} times and never acknowledged.", bad=False)
        return DecodedBatch(batch.claim, entries, len(body))

    async def _skip(self, claim: Claim, reason: str, *, bad: bool = True, is_missing: bool = False) -> QuarantinedBatch:
        """Move a batch to quarantine instead of handing it out."""
        if bad and (before := self._acks.bad_in_a_row()) >= self._config.max_bad_batches_in_a_row:
            raise Unreadable(
                f"{before} batches in a row could not be read and are in quarantine, and {claim.location} cannot be "
                f"read either: {reason} It stays in the queue. If a newer Lakehead wrote them, update this reader; if "
                "they are really damaged, raise max_bad_batches_in_a_row."
            )
        await self._copy_to_quarantine(claim, reason, is_missing=is_missing)
        return QuarantinedBatch(bad)

    async def _copy_to_quarantine(self, claim: Claim, reason: str, *, is_missing: bool = False) -> None:
        key = None if is_missing else object_key(claim.location)
        await self._quarantine.add(claim.location, key, reason)
        store, manifest = self._config.object_store_config.url, self._config.manifest_path
        message = (
            f"The batch {claim.location} was moved to quarantine: {reason} The queue goes on without it. To see it: "
            f"`lakehead queue quarantine list --store {store} --manifest {manifest}`; to queue it again: "
            f"`lakehead queue quarantine replay {claim.location} --store {store} --manifest {manifest}`."
        )
        logger.warning("%s", message)

    def _count(self, batch: DecodedBatch) -> None:
        self._deps.counts.batches_collected += 1
        self._deps.counts.entries_collected += len(batch.entries)
        self._deps.counts.bytes_collected += batch.size


def unacknowledged(claims: Collection[Claim]) -> dict[str, None]:
    """Return the locations that are not acknowledged yet. Raises `InvalidCall` for a claim that was released."""
    for claim in claims:
        check_outcome_known(claim)
        if claim.state is ClaimState.RELEASED:
            raise InvalidCall(
                f"{claim.location} was released and cannot be acknowledged: it is handed out again. "
                "Acknowledge it then."
            )
    return dict.fromkeys(claim.location for claim in claims if claim.state is ClaimState.HELD)
