"""Settings of ingestors and collectors, with the names and defaults of the specification."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum

from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.deps import BufferDeps
from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random, RandomIds, system_random
from lakehead.storage.connect import StoreSettings
from lakehead.storage.object_keys import InvalidKey, check_key
from lakehead.storage.port import Store
from lakehead.storage.probed_store import open_probed_store
from lakehead.wire.batch import MIB

MAX_FLUSH_BYTES = 128 * MIB
MAX_PARTITIONS = 4096


class BatchFormat(Enum):
    """The format in which an ingestor stores batches. Collectors read both."""

    JSON = "json"
    """The specification's format: keys and values in base64."""

    COMPACT = "compact"
    """Length-prefixed binary keys and values, with zstd and CRC32C."""


class CollectorMode(Enum):
    """How many collectors may read a queue at once."""

    ORDERED = "ordered"
    """One at a time, in the order of the queue, also across fail-over."""

    COMPETING = "competing"
    """Any number; no order across fail-over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreConfig:
    """The store that holds a queue."""

    url: str
    """For example `s3://bucket/prefix` or `file:///folder`; see `open_store`."""

    settings: StoreSettings = field(default_factory=StoreSettings)

    def deps(
        self,
        clock: Clock | None = None,
        *,
        store: Store | None = None,
        ids: Ids | None = None,
        random: Random | None = None,
        counts: BufferCounts | None = None,
    ) -> BufferDeps:
        """Return what the buffer depends on: the arguments given, and the usual ones for the rest.

        A store that is opened here is probed by `BufferDeps.ensure_store_probed`, at the latest before the first write.
        """
        clock, ids, random = clock or SystemClock(), ids or RandomIds(), random or system_random()
        store = store or open_probed_store(self.url, self.settings, clock=clock, ids=ids, random=random)
        return BufferDeps(store=store, clock=clock, ids=ids, random=random, counts=counts or BufferCounts())

    def with_request_timeout(self, deps: BufferDeps, seconds: float) -> BufferDeps:
        """Return `deps` with a store whose requests take at most that long: another one if necessary."""
        if not self.is_remote or self.settings.request_timeout <= seconds:
            return deps
        settings = replace(self.settings, request_timeout=seconds)
        store = open_probed_store(self.url, settings, clock=deps.clock, ids=deps.ids, random=deps.random)
        return replace(deps, store=store)

    @property
    def is_remote(self) -> bool:
        """Whether requests go over a network, where they may hang."""
        return self.url.startswith(("s3://", "gs://", "az://"))


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestorConfig:
    """Settings of an ingestor. Raises `Misconfigured` with all errors at once."""

    object_store_config: ObjectStoreConfig

    data_path_prefix: str = "ingest"
    """The prefix of the batches' keys. It belongs to one queue."""

    manifest_path: str = "ingest/manifest.json"
    """The key of the producer manifest."""

    flush_interval: timedelta = timedelta(milliseconds=100)
    """A batch is flushed this long after its first entry."""

    flush_size_bytes: int = 64 * MIB
    """A batch is flushed at once when its keys and values exceed this size in bytes."""

    max_unflushed_bytes: int = sys.maxsize
    """`ingest` waits while more bytes of keys and values than this are not durable. An empty entry counts as 1."""

    batch_format: BatchFormat = BatchFormat.JSON

    partitions: int = 1
    """How many partitions the queue has. Entries of one key go to one partition, and keep their order there."""

    def __post_init__(self) -> None:
        """Check all settings."""
        _raise_if_any(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from _invalid_key("data_path_prefix", self.data_path_prefix)
        yield from _invalid_key("manifest_path", self.manifest_path)
        if self.flush_interval <= timedelta(0):
            yield f"flush_interval is {self.flush_interval}, and must be positive"
        if not 0 <= self.flush_size_bytes <= MAX_FLUSH_BYTES:
            yield f"flush_size_bytes is {self.flush_size_bytes:,}, and must be from 0 to {MAX_FLUSH_BYTES:,}"
        if self.max_unflushed_bytes < 0:
            yield f"max_unflushed_bytes is {self.max_unflushed_bytes:,}, and must not be negative"
        if not 1 <= self.partitions <= MAX_PARTITIONS:
            yield f"partitions is {self.partitions}, and must be from 1 to {MAX_PARTITIONS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorConfig:
    """Settings of a collector. Raises `Misconfigured` with all errors at once."""

    object_store_config: ObjectStoreConfig

    manifest_path: str = "ingest/manifest.json"
    """The key of the producer manifest."""

    heartbeat_timeout_ms: timedelta = timedelta(seconds=30)
    """A collector without a heartbeat for this long is considered dead. It sends three in that time."""

    done_cleanup_threshold: int = 100
    """How many acknowledged locations trigger a cleanup, which removes them and their batches."""

    mode: CollectorMode = CollectorMode.ORDERED

    read_ahead: int = 16
    """How many locations are claimed in one write."""

    read_ahead_bytes: int = 128 * MIB
    """How many bytes of batches are prefetched, for all partitions together. A loose limit: the next batch is fetched
    whatever its size."""

    max_bad_batches_in_a_row: int = 5
    """How many unreadable batches in a row are moved to quarantine; at the next one `next_batch` raises."""

    max_deliveries: int | None = None
    """How often a batch is handed out before it is moved to quarantine instead; None means no limit. After a crash,
    every claimed batch counts as handed out."""

    @property
    def heartbeat_seconds(self) -> float:
        """The heartbeat interval; also the timeout of requests for a manifest."""
        return self.heartbeat_timeout_ms.total_seconds() / 3

    def __post_init__(self) -> None:
        """Check all settings."""
        _raise_if_any(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from _invalid_key("manifest_path", self.manifest_path)
        if self.heartbeat_timeout_ms <= timedelta(0):
            yield f"heartbeat_timeout_ms is {self.heartbeat_timeout_ms}, and must be positive"
        connecting = self.object_store_config.settings.connect_timeout
        if self.object_store_config.is_remote and connecting > self.heartbeat_seconds:
            yield (
                f"connect_timeout of the store is {connecting:g} s, and must be at most a third of "
                f"heartbeat_timeout_ms, {self.heartbeat_timeout_ms}: otherwise one hanging connection loses all claims"
            )
        for name in ("done_cleanup_threshold", "read_ahead", "read_ahead_bytes"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}, and must be at least 1"
        if self.max_bad_batches_in_a_row < 0:
            yield f"max_bad_batches_in_a_row is {self.max_bad_batches_in_a_row}, and must not be negative"
        if self.max_deliveries is not None and self.max_deliveries < 1:
            yield f"max_deliveries is {self.max_deliveries}, and must be at least 1, or None for no limit"


def _invalid_key(name: str, key: str) -> Iterator[str]:
    try:
        check_key(key)
    except InvalidKey as error:
        yield f"{name} is not a valid key ({error})"


def _raise_if_any(problems: Iterator[str]) -> None:
    if found := list(problems):
        raise Misconfigured(f"Invalid settings: {'; '.join(found)}.")
