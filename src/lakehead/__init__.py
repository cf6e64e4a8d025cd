"""Lands data in an Iceberg lakehouse exactly once: pushed, announced by queues, or pulled from databases."""

from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.storage.connect import StoreSettings
from lakehead.storage.opening import open_store
from lakehead.storage.port import Store
from lakehead.storage.probe import probe

__all__ = [
    "LakeheadError",
    "Misconfigured",
    "OutcomeUnknown",
    "Store",
    "StoreSettings",
    "Unavailable",
    "open_store",
    "probe",
]
