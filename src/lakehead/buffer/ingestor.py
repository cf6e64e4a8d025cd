"""The write side of the buffer: buffers entries, flushes them, and reports when they are durable."""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from zlib import crc32

from lakehead.buffer.batch_store import BatchStore
from lakehead.buffer.byte_budget import ByteBudget
from lakehead.buffer.config import BatchFormat, IngestorConfig
from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import InvalidCall
from lakehead.buffer.flush_failures import FlushFailures
from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.partition_writer import MAX_ENTRIES, Encode, PartitionWriter
from lakehead.buffer.producer import Producer
from lakehead.buffer.watcher import WriteWatcher
from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.ids import Ids, Random
from lakehead.storage.port import Store
from lakehead.wire.batch import MIB, KeyValueEntry, encode_json
from lakehead.wire.compact import encode_compact

MAX_CALL_BYTES = 128 * MIB
"""How many bytes of keys and values one call of `ingest` may have: readers load a whole batch into memory."""

YIELD_EVERY = 256
"""After how many calls and entries together `ingest` lets other tasks run: about 0.2 ms of work. Yielding in every call
would make small calls four times as expensive."""

_ENCODERS: dict[BatchFormat, Encode] = {BatchFormat.JSON: encode_json, BatchFormat.COMPACT: encode_compact}


class Ingestor:
    """Buffers entries, stores them as batches, and queues their locations. Any ingestor accepts any entry.

    Use it in an `async with` block, which raises at once if the store cannot be used (without it, the watchers raise)
    and flushes the rest at its end. Use it in one event loop only.

    The entries of one call are in one batch per partition, in their order. The batches of one ingestor are queued in
    the order in which they were filled. If the process dies, entries that were not durable are lost, nothing else.
    """

    def __init__(
        self,
        config: IngestorConfig,
        clock: Clock | None = None,
        *,
        store: Store | None = None,
        ids: Ids | None = None,
        random: Random | None = None,
        counts: BufferCounts | None = None,
    ) -> None:
        """Nothing is sent yet. The defaults are the system clock, random ids, and the store at the config's URL."""
        deps = config.object_store_config.deps(clock, store=store, ids=ids, random=random, counts=counts)
        self.counts = deps.counts
        self._deps = deps
        self._since_yield = 0
        self._budget = ByteBudget(config.max_unflushed_bytes, deps.counts)
        self._failures = FlushFailures()
        owner = PrefixOwner(config.data_path_prefix, config.manifest_path, deps)
        batches = BatchStore(config.data_path_prefix, deps, owner)
        self._writers = [self._writer(config, deps, batches, number) for number in range(config.partitions)]
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the last call."""

    async def ingest(self, entries: Sequence[KeyValueEntry]) -> WriteWatcher:
        """Buffer entries, and return before they are durable; the watcher reports when they are.

        It waits only while more than `max_unflushed_bytes` are not durable, and now and then yields to other tasks, so
        that a loop of calls does not delay flushes. Raises `InvalidCall` for invalid or too large input, and if the
        ingestor is closed. If the call is cancelled or raises, none of its entries was accepted.
        """
        entries = list(entries)
        size = _size(entries)
        self._check_open()
        self._since_yield += 1 + len(entries)
        if self._since_yield >= YIELD_EVERY:
            self._since_yield = 0
            await self._deps.clock.sleep(0)
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
        """Flush all buffered entries, and wait until they are durable or have failed.

        Raises the first error of these entries; failures from before the call are reported by their watchers only. The
        ingestor stays usable. Cancelling the call does not cancel the flush.
        """
        self._check_loop()
        if error := await self._flush_all():
            raise error.with_traceback(None)

    async def close(self) -> None:
        """Flush all buffered entries, resolve every watcher, and stop. Raises the first error of these entries.

        It can be called again, also after it was cancelled.
        """
        self._check_loop()
        self._closed = True
        self._budget.wake()
        error = await self._flush_all()
        for writer in self._writers:
            await writer.wait_stopped()
        self._failures.closed()
        if error:
            raise error.with_traceback(None)

    async def __aenter__(self) -> Self:
        await self._deps.ensure_store_probed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _flush_all(self) -> LakeheadError | None:
        """Wait until all buffered entries are durable or have failed; return the first error."""
        self._start_flush()
        outcomes = [outcome for writer in self._writers for outcome in writer.unresolved]
        if outcomes:
            await asyncio.wait(outcomes)
        errors = (WriteWatcher([each]).result() for each in outcomes)
        return next((error for error in errors if isinstance(error, LakeheadError)), None)

    def _start_flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    async def _wait_for_budget(self) -> None:
        while not self._budget.has_space:
            self._start_flush()
            await self._budget.changed()
            self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidCall("The ingestor is closed. Make a new one.")
        self._check_loop()

    def _check_loop(self) -> None:
        """Raise `InvalidCall` if another event loop has unfinished flushes: waiting for them here would never end."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if any(writer.unresolved for writer in self._writers):
                raise InvalidCall(
                    "This ingestor has unfinished flushes in another event loop, which may have ended. "
                    "Use an ingestor in one event loop only, and close it there."
                )
            self._loop = loop

    def _writer(self, config: IngestorConfig, deps: BufferDeps, batches: BatchStore, number: int) -> PartitionWriter:
        files = ManifestPair.of(ManifestKeys.of(config.manifest_path, number), deps)
        producer = Producer(
            files.producer,
            deps,
            data_path_prefix=config.data_path_prefix,
            partitions=config.partitions,
            root=ManifestPair.of(ManifestKeys.of(config.manifest_path), deps).producer if number else None,
        )
        return PartitionWriter(
            producer,
            batches,
            deps,
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
            raise InvalidCall(
                f"{type(entry).__name__} is not a KeyValueEntry with a key and a value of type bytes. "
                "Nothing was ingested."
            )
        size += len(entry.key) + len(entry.value)
    if size > MAX_CALL_BYTES or len(entries) > MAX_ENTRIES:
        raise InvalidCall(
            f"{len(entries):,} entries of {size:,} bytes are too much for one call; the limits are {MAX_ENTRIES:,} "
            f"entries and {MAX_CALL_BYTES:,} bytes. Nothing was ingested; ingest them in smaller parts."
        )
    return size
