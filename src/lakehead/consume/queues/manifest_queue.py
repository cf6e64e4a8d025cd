"""The manifest queue of `buffer/` in competing mode: each message is the location of a batch, which is not fetched."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import TypeVar

from lakehead.buffer.claims import Claim, ClaimState
from lakehead.buffer.config import CollectorConfig, CollectorMode, ObjectStoreConfig
from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.errors import InvalidCall
from lakehead.buffer.layout import ManifestKeys, entry_location, object_key
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.producer import Producer
from lakehead.clock import Clock
from lakehead.consume.queue import Message
from lakehead.consume.queues.manifest_partition import SETTLED, ManifestPartition
from lakehead.consume.queues.pausing import pause
from lakehead.errors import LakeheadError
from lakehead.ids import Ids, Random
from lakehead.storage.object_keys import is_valid_key
from lakehead.storage.port import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestQueueSettings:
    """Settings of a consumer of a manifest queue. Raises `Misconfigured` with all errors at once."""

    object_store_config: ObjectStoreConfig
    """The store that holds the queue."""

    manifest_path: str = "ingest/manifest.json"
    """The key of the producer manifest."""

    data_path_prefix: str = "ingest"
    """The prefix of the batches' keys, for `send` to a queue that nobody has written yet."""

    heartbeat_timeout: timedelta = timedelta(seconds=30)
    """A consumer without a heartbeat for this long is considered dead, and others take over what it received."""

    done_cleanup_threshold: int = 100
    """How many acknowledged locations trigger a cleanup, which removes them and their batches."""

    def __post_init__(self) -> None:
        """Check all settings."""
        self.collector_config()

    def collector_config(self) -> CollectorConfig:
        """Return the same settings as the buffer has them."""
        return CollectorConfig(
            object_store_config=self.object_store_config,
            manifest_path=self.manifest_path,
            heartbeat_timeout_ms=self.heartbeat_timeout,
            done_cleanup_threshold=self.done_cleanup_threshold,
            mode=CollectorMode.COMPETING,
        )


@dataclass(frozen=True, slots=True)
class _Receipt:
    partition: ManifestPartition
    claim: Claim


class ManifestQueue:
    """One consumer of a manifest queue. The body of a message is a location: a batch's key, or `<key>#<uuid>`.

    A message that is neither acknowledged nor extended is given back when its visibility timeout is over; if the
    process dies, after `heartbeat_timeout`. If another consumer has taken one message over, all that were received
    from the same partition count as failed. Calls also raise `Unreadable` if a manifest cannot be read.
    """

    retention: timedelta | None = None
    longest_visibility: timedelta | None = None
    forgets = True

    def __init__(
        self,
        settings: ManifestQueueSettings,
        clock: Clock,
        *,
        store: Store | None = None,
        ids: Ids | None = None,
        random: Random | None = None,
        counts: BufferCounts | None = None,
    ) -> None:
        """Nothing is sent yet. The defaults are random ids, and the store at the settings' URL."""
        where = settings.object_store_config
        self._settings = settings
        self._config = settings.collector_config()
        self._clock = clock
        self._deps = where.deps(clock, store=store, ids=ids, random=random, counts=counts)
        # A hanging request must not outlive the claims. A store that was passed in keeps its own settings.
        self._manifest_deps = (
            self._deps if store is not None else where.with_request_timeout(self._deps, self._config.heartbeat_seconds)
        )
        self._partitions = [self._partition(0)]
        self._round_robin = 0
        self._producer: Producer | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._keeping = asyncio.Lock()
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()
        self.counts = self._deps.counts

    @property
    def name(self) -> str:
        """The manifest's URL."""
        return f"{self._settings.object_store_config.url.rstrip('/')}/{self._settings.manifest_path}"

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        """Return locations that are ready; wait up to `wait` for the first."""
        self._check_open()
        await self._deps.ensure_store_probed()
        ends = self._clock.monotonic() + wait.total_seconds()
        for seconds in self._deps.retries.polls.pauses(self._deps.random):
            found = await self._claim(most, visibility.total_seconds())
            left = ends - self._clock.monotonic()
            if found or left <= 0 or self._closing.is_set():
                return found
            await pause(self._clock, min(seconds, left), self._closing)
            if self._closing.is_set():
                return []
        raise AssertionError("pauses never end")

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        """Keep messages for `visibility` from now on; with zero they are given back. Returns those that are lost."""
        self._check_open()
        if not visibility:
            ours = [each for each in messages if each.receipt.partition.holds(each.receipt.claim)]
            await self._for_each_partition(ours, lambda partition, claims: partition.release(claims))
            kept = {id(each) for each in ours if each.receipt.claim.state is ClaimState.RELEASED}
        else:
            seconds = visibility.total_seconds()
            await self._for_each_partition(messages, lambda partition, claims: partition.extend(claims, seconds))
            kept = {id(each) for each in messages if each.receipt.partition.holds(each.receipt.claim)}
            self._changed.set()
        return [each for each in messages if id(each) not in kept]

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Mark locations as done, in one write of each partition. Returns those for which that failed."""
        self._check_open()
        await self._for_each_partition(messages, lambda partition, claims: partition.acknowledge(claims))
        return [each for each in messages if each.receipt.claim.state not in SETTLED]

    async def keep(self, body: bytes) -> None:
        """Keep a copy of a batch, because clean-up deletes it once its location is acknowledged.

        Keeping it again is harmless; a batch that does not exist is not kept.
        """
        key = _key(body)
        found = await self._deps.store.get(key)
        if found is not None:
            await self._deps.store.create(_kept(key), found.body)

    async def _restore(self, key: str) -> None:
        """Bring a kept batch back to where it was, if it was deleted there."""
        store = self._deps.store
        if await store.head(key) is None and (kept := await store.get(_kept(key))) is not None:
            await store.create(key, kept.body)

    async def send(self, bodies: Sequence[bytes]) -> None:
        """Enqueue locations, each as an entry of its own, `<key>#<uuid>`, at the end of the first partition.

        A batch that was kept, and deleted since, is brought back first.

        Raises `OutcomeUnknown` if some may be queued, now or later, and `InvalidCall` for a body that is no location.
        """
        self._check_open()
        keys = [_key(body) for body in bodies]
        await self._deps.ensure_store_probed()
        await asyncio.gather(*map(self._restore, keys))
        producer = self._producer = self._producer or await self._new_producer()
        appends = [producer.enqueue(entry_location(key, self._deps.ids)) for key in keys]
        if appends:
            await asyncio.wait(appends)
        for each in appends:
            each.result()

    async def close(self) -> None:
        """Stop, and give back everything that is not acknowledged: another consumer gets it at once."""
        self._closing.set()
        if self._keeper is not None:
            async with self._keeping:  # a cancelled request would go on, and may outlive the loop
                self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._producer is not None:
            await self._producer.drained()
        await asyncio.gather(*(partition.close() for partition in self._partitions))

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise InvalidCall(f"The queue {self.name} is closed. Open it again.")

    # --- partitions

    def _partition(self, number: int) -> ManifestPartition:
        return ManifestPartition(self._config, self._deps, self._manifest_deps, number)

    async def _claim(self, most: int, seconds: float) -> list[Message]:
        """Claim from all partitions at once, equal shares, while they have more.

        Raises an error of a partition only if the others have nothing.
        """
        self._start_keeping()
        self._round_robin += 1
        first = self._round_robin % len(self._partitions)
        left = self._partitions[first:] + self._partitions[:first]
        found: list[Message] = []
        failed: list[LakeheadError] = []
        while left and len(found) < most and not self._closing.is_set():
            shares = _shares(most - len(found), len(left))
            asked = left[: len(shares)]
            claims = [
                _outcome(partial(partition.claim, share, seconds))
                for partition, share in zip(asked, shares, strict=True)
            ]
            more = left[len(shares) :]
            for partition, claimed in zip(asked, await asyncio.gather(*claims), strict=True):
                if isinstance(claimed, LakeheadError):
                    failed.append(claimed)
                elif claimed:
                    found += [_message(partition, claim) for claim in claimed]
                    more.append(partition)
            left = more + self._new_partitions()
        self._changed.set()
        if failed and not found:
            raise failed[0]
        return found

    def _new_partitions(self) -> list[ManifestPartition]:
        """Add partitions that the first one's manifest tells of; return them."""
        known = len(self._partitions)
        new = [self._partition(number) for number in range(known, self._partitions[0].partitions)]
        self._partitions += new
        return new

    async def _for_each_partition(
        self, messages: Sequence[Message], act: Callable[[ManifestPartition, list[Claim]], Awaitable[None]]
    ) -> None:
        """Call a function for each partition with its claims, all at once. Raises the first error, when all ended."""
        claims: dict[ManifestPartition, list[Claim]] = {}
        for message in messages:
            claims.setdefault(message.receipt.partition, []).append(message.receipt.claim)
        for answer in await asyncio.gather(*(_outcome(partial(act, *each)) for each in claims.items())):
            if isinstance(answer, LakeheadError):
                raise answer

    def _start_keeping(self) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """Send heartbeats, and release what nobody extends, until the queue is closed."""
        while True:
            self._changed.clear()
            due_at = min(partition.due_at for partition in self._partitions)
            seconds = min(due_at - self._clock.monotonic(), self._config.heartbeat_seconds)
            await pause(self._clock, seconds, self._changed)
            async with self._keeping:
                now = self._clock.monotonic()
                await asyncio.gather(*(each.keep() for each in self._partitions if each.due_at <= now))

    # --- sending

    async def _new_producer(self) -> Producer:
        path = self._settings.manifest_path
        file = ManifestPair.of(ManifestKeys.of(path), self._deps).producer
        now = (await file.read()).manifest
        prefix = now.data_path_prefix or self._settings.data_path_prefix
        await PrefixOwner(prefix, path, self._deps).check()
        return Producer(file, self._deps, data_path_prefix=prefix, partitions=now.partitions or 1)


async def _outcome(work: Callable[[], Awaitable[T]]) -> T | LakeheadError:
    """Return what `work` returns, or the error that it raises, so that it does not end what runs beside it.

    It is called here, and not before: a task that is cancelled before its first step would never await it.
    """
    try:
        return await work()
    except LakeheadError as error:
        return error


def _message(partition: ManifestPartition, claim: Claim) -> Message:
    return Message(
        id=claim.location,
        body=claim.location.encode(errors="surrogatepass"),
        deliveries=claim.deliveries,
        receipt=_Receipt(partition, claim),
    )


def _shares(most: int, partitions: int) -> list[int]:
    """Divide a number among partitions, as equally as possible; only those that get something."""
    each, left = divmod(most, partitions)
    return [share for number in range(partitions) if (share := each + (number < left))]


def _key(body: bytes) -> str:
    """Return the key of a location."""
    try:
        key = object_key(body.decode())
    except UnicodeDecodeError:
        key = ""
    if not is_valid_key(key):
        raise InvalidCall(f"{body[:80]!r} is not the location of an object.")
    return key


def _kept(key: str) -> str:
    """Where the copy of a batch is kept: outside of the queue's prefix, so that no clean-up takes it."""
    return f"dead-letters/v1/batches/{sha256(key.encode()).hexdigest()}"
