"""Lands data in an Iceberg lakehouse exactly once: pushed, announced by queues, or pulled from databases."""

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import BatchFormat, CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.consumer import Mode
from lakehead.buffer.errors import Contended, Fenced, OutOfTurn, QueueFull, Refused
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.connect import StoreSettings
from lakehead.storage.opening import open_store
from lakehead.storage.port import Store
from lakehead.storage.probe import probe
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.errors import Unreadable

__all__ = [
    "BatchFormat",
    "CollectedBatch",
    "Collector",
    "CollectorConfig",
    "Contended",
    "Durable",
    "Fenced",
    "Ingestor",
    "IngestorConfig",
    "KeyValueEntry",
    "LakeheadError",
    "Misconfigured",
    "Mode",
    "ObjectStoreConfig",
    "OutOfTurn",
    "OutcomeUnknown",
    "QueueFull",
    "Refused",
    "Store",
    "StoreSettings",
    "SystemClock",
    "Unavailable",
    "Unreadable",
    "WriteWatcher",
    "open_store",
    "probe",
]
