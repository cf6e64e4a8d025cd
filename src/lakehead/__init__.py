"""Lands data in an Iceberg lakehouse exactly once: pushed, announced by queues, or pulled from databases."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakehead.buffer.blocking import BlockingCollector, BlockingIngestor, BlockingWatcher
from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import BatchFormat, CollectorConfig, CollectorMode, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.errors import AckOutOfOrder, Fenced, InvalidCall, OutcomeLost, QueueContended, QueueFull
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.metrics import export_metrics
from lakehead.buffer.purge import Purge
from lakehead.buffer.repartition import Repartition
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.connect import StoreSettings
from lakehead.storage.object_keys import InvalidKey
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Store
from lakehead.storage.probe import probe
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.errors import NewerFormat, Unreadable

if TYPE_CHECKING:
    from lakehead.agent.agent import Agent
    from lakehead.agent.blocking_agent import BlockingAgent
    from lakehead.agent.blocking_gateway import BlockingGateway
    from lakehead.agent.deps import AgentDeps
    from lakehead.agent.gateway_client import Gateway
from lakehead.agent.settings import AgentSettings

__all__ = [
    "AckOutOfOrder",
    "Agent",
    "AgentDeps",
    "AgentSettings",
    "BatchFormat",
    "BlockingAgent",
    "BlockingCollector",
    "BlockingGateway",
    "BlockingIngestor",
    "BlockingWatcher",
    "BufferCounts",
    "CollectedBatch",
    "Collector",
    "CollectorConfig",
    "CollectorMode",
    "Durable",
    "Fenced",
    "Gateway",
    "Ingestor",
    "IngestorConfig",
    "InvalidCall",
    "InvalidKey",
    "KeyValueEntry",
    "LakeheadError",
    "Misconfigured",
    "NewerFormat",
    "ObjectStoreConfig",
    "OutcomeLost",
    "OutcomeUnknown",
    "Purge",
    "QueueContended",
    "QueueFull",
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


_LOADED_LATER = {
    "Agent": "lakehead.agent.agent",
    "AgentDeps": "lakehead.agent.deps",
    "AgentSettings": "lakehead.agent.settings",
    "BlockingAgent": "lakehead.agent.blocking_agent",
    "BlockingGateway": "lakehead.agent.blocking_gateway",
    "Gateway": "lakehead.agent.gateway_client",
}
"""What agents and clients of a gateway are made of, by module: HTTP and Arrow would double the time to import."""


def __getattr__(name: str) -> Any:
    """Load an agent or a client of a gateway when it is first asked for."""
    if (module := _LOADED_LATER.get(name)) is not None:
        return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
