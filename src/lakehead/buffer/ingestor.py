"""The writer's side: takes entries, and says when they are durable."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from zlib import crc32

from lakehead.buffer.batches import Batches
from lakehead.buffer.byte_budget import ByteBudget
from lakehead.buffer.config import BatchFormat, IngestorConfig
from lakehead.buffer.counts import Counts
from lakehead.buffer.errors import Refused
from lakehead.buffer.flush_failures import FlushFailures
from lakehead.buffer.layout import Pair
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.means import Means
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.partition_writer import MOST_ENTRIES, Encode, PartitionWriter
from lakehead.buffer.producer import Producer
from lakehead.buffer.watcher import WriteWatcher
from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.ids import Ids, Random
from lakehead.storage.port import Store
from lakehead.wire.batch import MIB, KeyValueEntry, encode_json
from lakehead.wire.compact import encode_compact

MOST_BYTES = 128 * MIB
"""How many bytes of keys and values one call may bring: a batch is read into memory as a whole."""

YIELD_EVERY = 256
"""After how many calls and entries, taken together, `ingest` lets other tasks run: some 0.2 ms of work. To yield in
each call would make small calls four times as dear."""

_ENCODERS: dict[BatchFormat, Encode] = {BatchFormat.JSON: encode_json, BatchFormat.COMPACT: encode_compact}


class Ingestor:
    """Buffers entries, stores them as batches, and queues their locations. Any ingestor takes any entry.

    Use it in an `async with` block, which raises at its beginning if the store cannot be used; without one the watchers
    tell. Leaving the block flushes what is left. All of its calls belong in one event loop.

    Entries of one call are in one batch for each partition, in their order; batches of one ingestor are queued in the
    order in which they were filled. An ingestor that dies takes along what was not durable, and nothing else.
    """

    def __init__(
        self,
        config: IngestorConfig,
        clock: Clock | None = None,
        *,
        store: Store | None = None,
        ids: Ids | None = None,
        random: Random | None = None,
        counts: Counts | None = None,
    ) -> None:
        """`clock` is the machine's unless another is passed."""
        means = config.object_store_config.means(clock, store=store, ids=ids, random=random, counts=counts)
        self.counts = means.counts
        self._means = means
        self._since_yield = 0
        self._budget = ByteBudget(config.max_unflushed_bytes, means.counts)
        self._failures = FlushFailures()
        owner = PrefixOwner(config.data_path_prefix, config.manifest_path, means)
        batches = Batches(config.data_path_prefix, means, owner)
        self._writers = [self._writer(config, means, batches, number) for number in range(config.partitions)]
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the last call."""

    async def ingest(self, entries: Sequence[KeyValueEntry]) -> WriteWatcher:
        """Take entries, and return before they are durable. The watcher tells when they are.

        It waits while more bytes than `max_unflushed_bytes` are not durable, and now and then lets other tasks run, so
        that a loop of calls does not keep flushes from beginning; it never waits for the store. Raises `Refused` for
        what can never be taken, and once the ingestor is closed. If the call is cancelled or raises, no entry of it was
        taken.
        """
        entries = list(entries)
        size = _size(entries)
        self._check_open()
        self._since_yield += 1 + len(entries)
        if self._since_yield >= YIELD_EVERY:
            self._since_yield = 0
            await self._means.clock.sleep(0)
            self._check_open()
        if self._budget.is_exceeded:
            await self._wait_for_budget()
        if not entries:
            return WriteWatcher(())
        if len(self._writers) == 1:
            return WriteWatcher([self._writers[0].add(entries, size)])
        parts: dict[int, list[KeyValueEntry]] = {}
        for entry in entries:
            parts.setdefault(crc32(entry.key) % len(self._writers), []).append(entry)
        return WriteWatcher([self._writers[number].add(part, _size(part)) for number, part in sorted(parts.items())])

    async def flush(self) -> None:
        """Flush everything that was taken so far, and wait until all of it is durable or has failed.

        Raises the first error of what could not be flushed; what had failed before the call, its watchers tell. The
        ingestor goes on. Cancelling the call changes nothing.
        """
        self._check_loop()
        if error := await self._flush_all():
            raise error.with_traceback(None)

    async def close(self) -> None:
        """Flush what is left, resolve every watcher, and stop. Raises the first error of what could not be flushed.

        It can be called again, also after it was cancelled.
        """
        self._check_loop()
        self._closed = True
        self._budget.wake()
        error = await self._flush_all()
        for writer in self._writers:
            await writer.stopped()
        self._failures.closed()
        if error:
            raise error.with_traceback(None)

    async def __aenter__(self) -> Self:
        await self._means.prove()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _flush_all(self) -> LakeheadError | None:
        """Wait until everything that was taken so far is durable or has failed; the first error."""
        self._begin_to_flush()
        outcomes = [outcome for writer in self._writers for outcome in writer.unresolved]
        if outcomes:
            await asyncio.wait(outcomes)
        errors = (WriteWatcher([each]).result() for each in outcomes)
        return next((error for error in errors if isinstance(error, LakeheadError)), None)

    def _begin_to_flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    async def _wait_for_budget(self) -> None:
        while not self._budget.is_left:
            self._begin_to_flush()
            await self._budget.changed()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("The ingestor is closed and takes nothing more. Make a new one.")
        self._check_loop()

    def _check_loop(self) -> None:
        """Raise `Refused` if another event loop has entries under way: whoever waited for them here would for ever."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if any(writer.unresolved for writer in self._writers):
                raise Refused(
                    "Entries of this ingestor are under way in another event loop, or it ended before they were "
                    "durable. Use an ingestor in one event loop, and close it there."
                )
            self._loop = loop

    def _writer(self, config: IngestorConfig, means: Means, batches: Batches, number: int) -> PartitionWriter:
        files = PairFiles.of(Pair.of(config.manifest_path, number), means)
        producer = Producer(
            files.producer,
            means,
            data_path_prefix=config.data_path_prefix,
            partitions=config.partitions,
            root=PairFiles.of(Pair.of(config.manifest_path), means).producer if number else None,
        )
        return PartitionWriter(
            producer,
            batches,
            means,
            self._budget,
            self._failures,
            encode=_ENCODERS[config.batch_format],
            flush_seconds=config.flush_interval.total_seconds(),
            flush_bytes=config.flush_size_bytes,
        )


def _size(entries: Sequence[object]) -> int:
    size = 0
    for entry in entries:
        if type(entry) is not KeyValueEntry or type(entry.key) is not bytes or type(entry.value) is not bytes:
            raise Refused(f"{type(entry).__name__} is no KeyValueEntry of two byte strings. Nothing was taken.")
        size += len(entry.key) + len(entry.value)
    if size > MOST_BYTES or len(entries) > MOST_ENTRIES:
        raise Refused(
            f"{len(entries):,} entries of {size:,} bytes are too much for one call, which takes {MOST_ENTRIES:,} of "
            f"{MOST_BYTES:,} bytes. Nothing was taken; ingest them in smaller parts."
        )
    return size
