"""The reader's side: hands out batches, and remembers which were processed."""

import asyncio
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from lakehead.buffer.claims import Claim
from lakehead.buffer.config import CollectorConfig
from lakehead.buffer.counts import Counts
from lakehead.buffer.errors import Fenced, Refused
from lakehead.buffer.looking import AT_ONCE, Readers
from lakehead.buffer.means import Means
from lakehead.buffer.read_ahead import ReadAhead
from lakehead.buffer.reader import Reader, still_held
from lakehead.buffer.warn import WarnOnce
from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.ids import Ids, Random
from lakehead.storage.port import Store
from lakehead.wire.batch import KeyValueEntry, Limits

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between looks while `next_batch` waits: each pause is longer than the one before."""


@dataclass(frozen=True, slots=True)
class CollectedBatch:
    """What one flush of one ingestor stored."""

    entries: Sequence[KeyValueEntry] = field(repr=False)
    location: str
    epoch: int
    """Of two collectors that hand out the same partition in order, the one with the lower epoch was fenced."""

    partition: int
    collector: str
    """The id of the collector that handed it out."""

    deliveries: int
    """How often it was handed out, this time included. After a crash, what was only claimed ahead counts too."""

    _claim: Claim = field(repr=False, compare=False)


class Collector:
    """Hands out the batches of a queue and acknowledges them. Close it and make a new one when it raises `Fenced`.

    A batch that is not acknowledged is handed out again: at once when it is released or the collector is closed, after
    `heartbeat_timeout_ms` when the process dies. While a batch is held, a task of its own says every third of the
    timeout that we are alive.
    """

    def __init__(
        self,
        config: CollectorConfig,
        clock: Clock | None = None,
        *,
        store: Store | None = None,
        ids: Ids | None = None,
        random: Random | None = None,
        counts: Counts | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Nothing is sent yet. What is not given is the usual: the machine's clock, the store that the config names."""
        limits = limits or Limits()
        self._means = config.object_store_config.means(clock, store=store, ids=ids, random=random, counts=counts)
        # One request that hangs must not outlive the claims. A store that was passed in has its own settings.
        manifests = (
            self._means
            if store is not None
            else config.object_store_config.impatient(self._means, config.heartbeat_seconds)
        )
        self._config = config
        read_ahead = ReadAhead(self._means, limits, config.read_ahead_bytes)
        self._readers = Readers(partial(Reader, config, self._means, manifests, limits, read_ahead), self._means.clock)
        self._beating: asyncio.Task[None] | None = None
        self._heart = asyncio.Lock()
        self._closing = asyncio.Event()
        self._warnings = WarnOnce()
        self.counts = self._means.counts

    @property
    def held(self) -> tuple[str, ...]:
        """The locations that were handed out and are not acknowledged: `release` and `set_aside` take them."""
        return tuple(location for reader in self._readers.all for location in reader.handed_out)

    async def next_batch(self, timeout: float | None = 0) -> CollectedBatch | None:  # noqa: ASYNC109 - in our clock's seconds
        """The next batch, or None if none came within so many seconds. 0 does not wait; None waits for ever.

        A batch that cannot be read is set aside with the reason, and the one behind it is handed out. Raises `Fenced`
        when another collector has taken over, `Unavailable` when it is worth trying again, `NewerFormat` for a batch
        that a newer Lakehead wrote, `Unreadable` after `max_bad_batches_in_a_row`, and `Refused` once it is closed.
        """
        await self._means.prove()
        clock = self._means.clock
        ends = None if timeout is None else clock.monotonic() + timeout
        for pause in _pauses(self._means.random):
            self._check_alive()
            self._start_beating()
            found = await self._readers.next(self._closing)
            if found is not None:
                reader, opened = found
                claim = opened.claim
                return CollectedBatch(
                    opened.entries,
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
        """The next batch, however long that takes. The loop ends when the collector is closed."""
        if not self._closing.is_set():
            with suppress(Refused):
                batch = await self.next_batch(timeout=None)
                assert batch is not None  # noqa: S101 - for the type checker: it waits for ever
                return batch
        raise StopAsyncIteration

    async def ack(self, *batches: CollectedBatch) -> None:
        """Say that batches are processed and must not be handed out again. Many at once are one write.

        In ordered mode in the order in which they were handed out, else `OutOfTurn`. Raises `Fenced` if another
        collector has taken over, and `Refused` if a batch was released: then nothing is acknowledged. After
        `Unavailable` or `OutcomeUnknown` the call can be repeated, unless that is `Forgotten`: since the answer was
        lost, more collectors have acknowledged than the queue remembers. Acknowledging twice is no error; cancelling
        the call does not take it back.
        """
        by_reader = self._by_reader(batches)
        for reader, claims in by_reader.items():
            reader.check_ack(claims)
        # All are begun before the first is waited for, or else a call that is cancelled would have begun only some.
        if asked := [reader.start_ack(claims) for reader, claims in by_reader.items() if still_held(claims)]:
            await asyncio.wait(asked)
        for each in asked:
            each.result()
        for claims in by_reader.values():
            still_held(claims)  # for they may have been released meanwhile

    async def release(self, *batches: CollectedBatch | str) -> None:
        """Give batches back to the queue at once, for another collector or for this one; a location will do.

        In ordered mode what was handed out behind them goes back too, and this collector hands all of it out again.
        Raises `Fenced` if another collector has taken over, and `Refused` for what is acknowledged or not ours. After
        `Unavailable` or `OutcomeUnknown` the call can be repeated. Releasing twice is no error.
        """
        for reader, claims in self._by_reader(batches).items():
            await reader.release(claims)

    async def set_aside(self, batch: CollectedBatch | str, reason: str) -> None:
        """Copy a batch that cannot be processed to quarantine with the reason, and acknowledge it.

        A location will do. Raises what `ack` raises; the call can be repeated.
        """
        for reader, claims in self._by_reader([batch]).items():
            for claim in claims:
                await reader.set_aside(claim, reason)

    async def close(self) -> None:
        """Stop, and give everything back that is not acknowledged: another collector hands it out again at once."""
        self._closing.set()
        if self._beating is not None:
            async with self._heart:  # a request that is cut off goes on, and may outlive the event loop
                self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
        await self._readers.close()
        at_once = asyncio.Semaphore(AT_ONCE)

        async def close(reader: Reader) -> None:
            async with at_once:
                await reader.close()

        await asyncio.gather(*map(close, self._readers.all))

    async def heartbeat(self) -> None:
        """Say that we live. A task of the collector does this; it is here for whoever stops that task from running.

        Once it is fenced in one partition it says so in none: it hands out and acknowledges nothing any more, and would
        keep the others from its successor.
        """
        async with self._heart:
            if not any(reader.consumer.is_fenced for reader in self._readers.all):
                await asyncio.gather(*map(self._heartbeat_of, self._readers.all))

    async def __aenter__(self) -> Self:
        await self._means.prove()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _by_reader(self, batches: Sequence[CollectedBatch | str]) -> dict[Reader, list[Claim]]:
        """The claims of batches, by partition. Raises `Refused` for what this collector did not hand out."""
        self._check_alive()
        found: dict[Reader, list[Claim]] = {}
        for batch in batches:
            reader, claim = self._located(batch) if isinstance(batch, str) else self._handed_out(batch)
            found.setdefault(reader, []).append(claim)
        return found

    def _handed_out(self, batch: CollectedBatch) -> tuple[Reader, Claim]:
        readers = self._readers.all
        if batch.partition >= len(readers) or readers[batch.partition].consumer.id != batch.collector:
            raise Refused(f"{batch.location} was handed out by another collector. Call that one.")
        return readers[batch.partition], batch._claim  # noqa: SLF001 - ours

    def _located(self, location: str) -> tuple[Reader, Claim]:
        for reader in self._readers.all:
            claim = reader.consumer.held.get(location)
            if claim is not None and claim.handed_out:
                return reader, claim
        raise Refused(f"{location} is not held by this collector. `held` has what is.")

    def _start_beating(self) -> None:
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(_beat(weakref.ref(self), self._means, self._config.heartbeat_seconds))

    async def _heartbeat_of(self, reader: Reader) -> None:
        key = reader.consumer.files.consumer.key
        try:
            await reader.consumer.heartbeat()
        except Fenced:
            return  # the next call says so
        except Exception as error:  # noqa: BLE001 - a heartbeat that fails must not end those that follow
            self.counts.heartbeats_failed += 1
            known = isinstance(error, LakeheadError)
            self._warnings.warn(
                key,
                f"A heartbeat for {key} failed ({error!r}). If this lasts for {self._config.heartbeat_timeout_ms}, "
                "other collectors take over what this one holds. Check that the store can be reached and written.",
                None if known else error,
            )
        else:
            self._warnings.over(key)

    async def _pause(self, seconds: float) -> None:
        """Let time pass, unless the collector is closed."""
        sleeping = asyncio.ensure_future(self._means.clock.sleep(seconds))
        closed = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait([sleeping, closed], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            closed.cancel()

    def _check_alive(self) -> None:
        if self._closing.is_set():
            raise Refused("The collector is closed and hands out nothing more. Make a new one.")
        for reader in self._readers.all:
            reader.consumer.check_known()


def _pauses(random: Random) -> Iterator[float]:
    """Seconds to wait before looking again, for ever."""
    longest = FIRST_PAUSE
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(LONGEST_PAUSE, 1.5 * longest)


async def _beat(collector: "weakref.ref[Collector]", means: Means, interval: float) -> None:
    """Keep claims alive for as long as somebody holds the collector."""
    while True:
        await means.clock.sleep(interval)
        if (alive := collector()) is None:
            return
        await alive.heartbeat()
        del alive
