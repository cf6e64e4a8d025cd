"""Lands data in an Iceberg lakehouse exactly once: pushed, announced by queues, or pulled from databases."""

from lakehead.buffer.blocking import BlockingCollector, BlockingIngestor, BlockingWatcher
from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import BatchFormat, CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.consumer import Mode
from lakehead.buffer.counts import Counts
from lakehead.buffer.errors import Contended, Fenced, Forgotten, OutOfTurn, QueueFull, Refused
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.metrics import export_metrics
from lakehead.buffer.partitions import Repartition
from lakehead.buffer.purge import Purge
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.connect import StoreSettings
from lakehead.storage.keys import InvalidKey
from lakehead.storage.opening import open_store
from lakehead.storage.port import Store
from lakehead.storage.probe import probe
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.errors import NewerFormat, Unreadable

__all__ = [
    "BatchFormat",
    "BlockingCollector",
    "BlockingIngestor",
    "BlockingWatcher",
    "CollectedBatch",
    "Collector",
    "CollectorConfig",
    "Contended",
    "Counts",
    "Durable",
    "Fenced",
    "Forgotten",
    "Ingestor",
    "IngestorConfig",
    "InvalidKey",
    "KeyValueEntry",
    "LakeheadError",
    "Misconfigured",
    "Mode",
    "NewerFormat",
    "ObjectStoreConfig",
    "OutOfTurn",
    "OutcomeUnknown",
    "Purge",
    "QueueFull",
    "Refused",
    "Repartition",
    "Store",
    "StoreSettings",
    "SystemClock",
    "Unavailable",
    "Unreadable",
    "WriteWatcher",
    "export_metrics",
    "open_store",
    "probe",
]
