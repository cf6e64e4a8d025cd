"""The read side of the buffer: hands out batches, and records which were processed."""

import asyncio
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from lakehead.buffer.claims import Claim
from lakehead.buffer.config import CollectorConfig
from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import Fenced, InvalidCall
from lakehead.buffer.partition_reader import PartitionReader, unacknowledged
from lakehead.buffer.partition_readers import POLLS_AT_ONCE, PartitionReaders
from lakehead.buffer.read_ahead import ReadAhead
from lakehead.buffer.warn_once import WarnOnce
from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.ids import Ids, Random
from lakehead.storage.port import Store
from lakehead.wire.batch import BatchLimits, KeyValueEntry


@dataclass(frozen=True, slots=True)
class CollectedBatch:
    """A batch: the entries of one flush of an ingestor."""

    entries: Sequence[KeyValueEntry] = field(repr=False)
    location: str
    epoch: int
    """In ordered mode, grows with every takeover of the partition: a collector with a lower epoch is fenced."""

    partition: int
    collector: str
    """The id of the collector that handed it out."""

    deliveries: int
    """How often it was handed out, including this time. After a crash, batches that were only claimed count too."""

    _claim: Claim = field(repr=False, compare=False)


class Collector:
    """Hands out the batches of a queue and acknowledges them. Close it and make a new one when it raises `Fenced`.

    A batch that is not acknowledged is handed out again: at once if it is released or the collector is closed, after
    `heartbeat_timeout_ms` if the process dies. A background task sends a heartbeat every third of that time.
    """

    def __init__(
        self,
        config: CollectorConfig,
        clock: Clock | None = None,
        *,
        store: Store | None = None,
        ids: Ids | None = None,
        random: Random | None = None,
        counts: BufferCounts | None = None,
        limits: BatchLimits | None = None,
    ) -> None:
        """Nothing is sent yet. The defaults are the system clock, random ids, and the store at the config's URL."""
        limits = limits or BatchLimits()
        self._deps = config.object_store_config.deps(clock, store=store, ids=ids, random=random, counts=counts)
        # A hanging request must not outlive the claims. A store that was passed in keeps its own settings.
        manifest_deps = (
            self._deps
            if store is not None
            else config.object_store_config.with_request_timeout(self._deps, config.heartbeat_seconds)
        )
        self._config = config
        read_ahead = ReadAhead(self._deps, limits, config.read_ahead_bytes)
        self._readers = PartitionReaders(
            partial(PartitionReader, config, self._deps, manifest_deps, limits, read_ahead), self._deps.clock
        )
        self._heartbeats: asyncio.Task[None] | None = None
        self._heartbeat_lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self._warnings = WarnOnce()
        self.counts = self._deps.counts

    @property
    def held(self) -> tuple[str, ...]:
        """The locations that were handed out and are not acknowledged: `release` and `quarantine` accept them."""
        return tuple(location for reader in self._readers.all for location in reader.handed_out)

    async def next_batch(self, timeout: float | None = 0) -> CollectedBatch | None:  # noqa: ASYNC109 - in our clock's seconds
        """Return the next batch, or None if there is none within `timeout` seconds; a timeout of None waits for ever.

        A batch that cannot be read is moved to quarantine, and the next one is returned. Raises `Fenced` if another
        collector has taken over, `Unavailable` if the call can be repeated, `NewerFormat` for a batch that a newer
        Lakehead wrote, `Unreadable` after `max_bad_batches_in_a_row`, and `InvalidCall` if the collector is closed.
        """
        await self._deps.ensure_store_probed()
        clock = self._deps.clock
        ends = None if timeout is None else clock.monotonic() + timeout
        for pause in self._deps.retries.polls.pauses(self._deps.random):
            self._check_usable()
            self._start_heartbeats()
            found = await self._readers.next(self._closing)
            if found is not None:
                reader, batch = found
                claim = batch.claim
                return CollectedBatch(
                    batch.entries,
                    claim.location,
                    claim.epoch,
                    reader.number,
                    reader.consumer.id,
                    claim.deliveries,
                    claim,
                )
            left = pause if ends is None else ends - clock.monotonic()
            if left <= 0 and not self._closing.is_set():
                return None
            await self._pause(min(pause, left))
        raise AssertionError("pauses never end")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CollectedBatch:
        """Return the next batch, waiting for ever. The loop ends when the collector is closed."""
        if not self._closing.is_set():
            with suppress(InvalidCall):
                batch = await self.next_batch(timeout=None)
                assert batch is not None  # noqa: S101 - for the type checker: it waits for ever
                return batch
        raise StopAsyncIteration

    async def ack(self, *batches: CollectedBatch) -> None:
        """Acknowledge batches, so that they are not handed out again; several in one call take one write.

        In ordered mode, acknowledge in the order of handing out, or it raises `AckOutOfOrder`. Raises `Fenced` if
        another collector has taken over, and `InvalidCall` if a batch was released; then nothing is acknowledged. After
        `Unavailable` or `OutcomeUnknown` the call can be repeated, except after `OutcomeLost`: the response was lost,
        and more collectors have acknowledged since than the manifest records. Acknowledging twice is no error.
        Cancelling the call does not take it back.
        """
        by_reader = self._by_reader(batches)
        for reader, claims in by_reader.items():
            reader.check_ack(claims)
        # All are started before the first is awaited: a cancelled call must not have started only some.
        if started := [reader.start_ack(claims) for reader, claims in by_reader.items() if unacknowledged(claims)]:
            await asyncio.wait(started)
        for each in started:
            each.result()
        for claims in by_reader.values():
            unacknowledged(claims)  # raises if they were released meanwhile

    async def release(self, *batches: CollectedBatch | str) -> None:
        """Give batches, or the batches at these locations, back to the queue, for this collector or another.

        In ordered mode, batches that were handed out after them go back too, and this collector hands all of them out
        again. Raises `Fenced` if another collector has taken over, and `InvalidCall` for a batch that is acknowledged
        or not ours. After `Unavailable` or `OutcomeUnknown` the call can be repeated. Releasing twice is no error.
        """
        for reader, claims in self._by_reader(batches).items():
            await reader.release(claims)

    async def quarantine(self, batch: CollectedBatch | str, reason: str) -> None:
        """Copy a batch that cannot be processed to quarantine with the reason, and acknowledge it.

        It may be given by its location. Raises what `ack` raises; the call can be repeated.
        """
        for reader, claims in self._by_reader([batch]).items():
            for claim in claims:
                await reader.quarantine(claim, reason)

    async def close(self) -> None:
        """Stop, and release everything that is not acknowledged: another collector can hand it out at once."""
        self._closing.set()
        if self._heartbeats is not None:
            async with self._heartbeat_lock:  # a cancelled request would go on, and may outlive the loop
                self._heartbeats.cancel()
            with suppress(asyncio.CancelledError):
                await self._heartbeats
        await self._readers.close()
        closes_at_once = asyncio.Semaphore(POLLS_AT_ONCE)

        async def close(reader: PartitionReader) -> None:
            async with closes_at_once:
                await reader.close()

        await asyncio.gather(*map(close, self._readers.all))

    async def heartbeat(self) -> None:
        """Send a heartbeat for all partitions. A background task does this; call it if your code blocks that task.

        A collector that is fenced in one partition sends no heartbeats at all: it hands out nothing more, and would
        only keep the other partitions from its successor.
        """
        async with self._heartbeat_lock:
            if not any(reader.consumer.is_fenced for reader in self._readers.all):
                await asyncio.gather(*map(self._heartbeat_of, self._readers.all))

    async def __aenter__(self) -> Self:
        await self._deps.ensure_store_probed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _by_reader(self, batches: Sequence[CollectedBatch | str]) -> dict[PartitionReader, list[Claim]]:
        """Return the claims of batches, by partition. Raises `InvalidCall` if this collector did not hand them out."""
        self._check_usable()
        found: dict[PartitionReader, list[Claim]] = {}
        for batch in batches:
            reader, claim = self._claim_at(batch) if isinstance(batch, str) else self._claim_of(batch)
            found.setdefault(reader, []).append(claim)
        return found

    def _claim_of(self, batch: CollectedBatch) -> tuple[PartitionReader, Claim]:
        readers = self._readers.all
        if batch.partition >= len(readers) or readers[batch.partition].consumer.id != batch.collector:
            raise InvalidCall(f"{batch.location} was handed out by another collector. Use that one.")
        return readers[batch.partition], batch._claim  # noqa: SLF001 - ours

    def _claim_at(self, location: str) -> tuple[PartitionReader, Claim]:
        for reader in self._readers.all:
            claim = reader.consumer.held.get(location)
            if claim is not None and claim.handed_out:
                return reader, claim
        raise InvalidCall(f"{location} is not held by this collector. See its `held` property.")

    def _start_heartbeats(self) -> None:
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = asyncio.create_task(
                _send_heartbeats(weakref.ref(self), self._deps, self._config.heartbeat_seconds)
            )

    async def _heartbeat_of(self, reader: PartitionReader) -> None:
        key = reader.consumer.pair.consumer.key
        try:
            await reader.consumer.heartbeat()
        except Fenced:
            return  # the next call raises it
        except Exception as error:  # noqa: BLE001 - a failed heartbeat must not prevent the next ones
            self.counts.heartbeats_failed += 1
            is_expected = isinstance(error, LakeheadError)
            self._warnings.warn(
                key,
                f"A heartbeat for {key} failed ({error!r}). If this lasts for {self._config.heartbeat_timeout_ms}, "
                "other collectors take over this one's claims. Check that the store can be reached and written to.",
                None if is_expected else error,
            )
        else:
            self._warnings.resolved(key)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but not longer than until the collector is closed."""
        sleeping = asyncio.ensure_future(self._deps.clock.sleep(seconds))
        closed = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([sleeping, closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            closed.cancel()

    def _check_usable(self) -> None:
        if self._closing.is_set():
            raise InvalidCall("The collector is closed. Make a new one.")
        for reader in self._readers.all:
            reader.consumer.raise_if_fenced()


async def _send_heartbeats(collector: "weakref.ref[Collector]", deps: BufferDeps, interval: float) -> None:
    """Send heartbeats until the collector is garbage-collected."""
    while True:
        await deps.clock.sleep(interval)
        if (alive := collector()) is None:
            return
        await alive.heartbeat()
        del alive
