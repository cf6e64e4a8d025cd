"""Settings of ingestors and collectors, named and defaulted as the specification has them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum

from lakehead.buffer.consumer import Mode
from lakehead.buffer.counts import Counts
from lakehead.buffer.means import Means
from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random, RandomIds, system_random
from lakehead.storage.connect import StoreSettings
from lakehead.storage.keys import InvalidKey, check_key
from lakehead.storage.port import Store
from lakehead.storage.proven import open_proven
from lakehead.wire.batch import MIB

MOST_FLUSH_BYTES = 128 * MIB
MOST_PARTITIONS = 4096


class BatchFormat(Enum):
    """How batches are stored. Both are always read."""

    JSON = "json"
    """The specification's: keys and values in base64."""

    COMPACT = "compact"
    """Lengths and bytes as they are, zstd, CRC32C."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreConfig:
    """Where the objects of a queue lie."""

    url: str
    """Such as `s3://bucket/prefix` or `file:///folder`; see `open_store`."""

    settings: StoreSettings = field(default_factory=StoreSettings)

    def means(
        self,
        clock: Clock | None = None,
        *,
        store: Store | None = None,
        ids: Ids | None = None,
        random: Random | None = None,
        counts: Counts | None = None,
    ) -> Means:
        """What the buffer works with: what it was given, and what is usual for the rest.

        A store that we open ourselves is probed by `Means.prove`, and with the first write at the latest.
        """
        clock, ids, random = clock or SystemClock(), ids or RandomIds(), random or system_random()
        store = store or open_proven(self.url, self.settings, clock=clock, ids=ids, random=random)
        return Means(store=store, clock=clock, ids=ids, random=random, counts=counts or Counts())

    def impatient(self, means: Means, seconds: float) -> Means:
        """The same, with a store whose requests take no longer than that: another one if this one's may."""
        if not self.is_remote or self.settings.request_timeout <= seconds:
            return means
        settings = replace(self.settings, request_timeout=seconds)
        store = open_proven(self.url, settings, clock=means.clock, ids=means.ids, random=means.random)
        return replace(means, store=store)

    @property
    def is_remote(self) -> bool:
        """Whether requests go over a network, and may hang there."""
        return self.url.startswith(("s3://", "gs://", "az://"))


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestorConfig:
    """How an ingestor buffers and where it stores. Raises `Misconfigured` with everything that is wrong."""

    object_store_config: ObjectStoreConfig

    data_path_prefix: str = "ingest"
    """Below which batches are stored. It belongs to one queue."""

    manifest_path: str = "ingest/manifest.json"
    """The key of the producer manifest."""

    flush_interval: timedelta = timedelta(milliseconds=100)
    """After how long a batch is flushed that is not empty."""

    flush_size_bytes: int = 64 * MIB
    """A batch that exceeds this many bytes of keys and values is flushed at once."""

    max_unflushed_bytes: int = sys.maxsize
    """`ingest` waits while more bytes of keys and values than this are not durable yet. An empty entry counts as 1."""

    batch_format: BatchFormat = BatchFormat.JSON

    partitions: int = 1
    """How many pairs of manifests the queue has; entries of one key go to one of them, and keep their order there."""

    def __post_init__(self) -> None:
        """Check everything, and say all that is wrong."""
        _raise_if_any(self._faults())

    def _faults(self) -> Iterator[str]:
        yield from _bad_key("data_path_prefix", self.data_path_prefix)
        yield from _bad_key("manifest_path", self.manifest_path)
        if self.flush_interval <= timedelta(0):
            yield f"flush_interval is {self.flush_interval}, and must be longer than nothing"
        if not 0 <= self.flush_size_bytes <= MOST_FLUSH_BYTES:
            yield f"flush_size_bytes is {self.flush_size_bytes:,}, and must be from 0 to {MOST_FLUSH_BYTES:,}"
        if self.max_unflushed_bytes < 0:
            yield f"max_unflushed_bytes is {self.max_unflushed_bytes:,}, and must not be negative"
        if not 1 <= self.partitions <= MOST_PARTITIONS:
            yield f"partitions is {self.partitions}, and must be from 1 to {MOST_PARTITIONS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorConfig:
    """How a collector reads a queue. Raises `Misconfigured` with everything that is wrong."""

    object_store_config: ObjectStoreConfig

    manifest_path: str = "ingest/manifest.json"
    """The key of the producer manifest."""

    heartbeat_timeout_ms: timedelta = timedelta(seconds=30)
    """After how long without a heartbeat a collector is taken for gone. It sends three in that time."""

    done_cleanup_threshold: int = 100
    """How many acknowledged locations wait before they and their batches are removed."""

    mode: Mode = Mode.ORDERED

    read_ahead: int = 16
    """How many locations are claimed at once."""

    read_ahead_bytes: int = 128 * MIB
    """How many bytes of batches are fetched before they are asked for, of all partitions together: a loose limit, for
    the next one always is."""

    max_bad_batches_in_a_row: int = 5
    """How many batches in a row may be set aside because they cannot be read; at the next one `next_batch` raises."""

    max_deliveries: int | None = None
    """How often a batch is handed out; None means without a limit. One that was never acknowledged after that many
    times is set aside. After a crash, what was claimed ahead counts as handed out once."""

    @property
    def heartbeat_seconds(self) -> float:
        """From one heartbeat to the next; no request for a manifest may take longer."""
        return self.heartbeat_timeout_ms.total_seconds() / 3

    def __post_init__(self) -> None:
        """Check everything, and say all that is wrong."""
        _raise_if_any(self._faults())

    def _faults(self) -> Iterator[str]:
        yield from _bad_key("manifest_path", self.manifest_path)
        if self.heartbeat_timeout_ms <= timedelta(0):
            yield f"heartbeat_timeout_ms is {self.heartbeat_timeout_ms}, and must be longer than nothing"
        connecting = self.object_store_config.settings.connect_timeout
        if self.object_store_config.is_remote and connecting > self.heartbeat_seconds:
            yield (
                f"connect_timeout of the store is {connecting:g} s, and must be at most a third of "
                f"heartbeat_timeout_ms, {self.heartbeat_timeout_ms}: else one connection that hangs loses all claims"
            )
        for name in ("done_cleanup_threshold", "read_ahead", "read_ahead_bytes"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}, and must be at least 1"
        if self.max_bad_batches_in_a_row < 0:
            yield f"max_bad_batches_in_a_row is {self.max_bad_batches_in_a_row}, and must not be negative"
        if self.max_deliveries is not None and self.max_deliveries < 1:
            yield f"max_deliveries is {self.max_deliveries}, and must be at least 1, or None for no limit"


def _bad_key(name: str, key: str) -> Iterator[str]:
    try:
        check_key(key)
    except InvalidKey as error:
        yield f"{name} is no key that every store takes ({error})"


def _raise_if_any(faults: Iterator[str]) -> None:
    if found := list(faults):
        raise Misconfigured(f"The settings cannot be used: {'; '.join(found)}.")
