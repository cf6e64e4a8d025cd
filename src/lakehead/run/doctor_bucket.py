"""`lakehead doctor` on buckets: whether their settings endanger batches that gateways accept there."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from lakehead.accept.bucket_findings import lines_for
from lakehead.accept.bucket_settings import Severity
from lakehead.errors import LakeheadError
from lakehead.run.bucket_checks import BucketCheck, bucket_check
from lakehead.run.environment import store_settings
from lakehead.storage.connect import StoreSettings
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys


class BatchesInDanger(LakeheadError):
    """A setting of a bucket lets accepted batches be lost, or accepted a second time."""


def check_bucket_of(url: str, store: Store, settings: StoreSettings, say: Callable[[str], None]) -> list[LakeheadError]:
    """Check the bucket of a store, if batches are accepted there. Returns what endangers them."""
    if asyncio.run(store.head(keys.AUTHORITY)) is None:
        return []
    return _check(url, bucket_check(url, settings), say)


def check_bucket_of_gateway(file: Path, say: Callable[[str], None]) -> list[LakeheadError]:
    """Check the bucket of the gateway of a configuration, if it has one. Returns what endangers batches."""
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - slow to load, and not always needed

    gateway = read_config(file).gateway
    if gateway is None:
        return []
    url = gateway.store
    check = bucket_check(url, store_settings(url), queue=gateway.queue_path, encryption=gateway.bucket_encryption)
    return _check(url, check, say)


def _check(url: str, check: BucketCheck | None, say: Callable[[str], None]) -> list[LakeheadError]:
    if check is None:
        say(f"bucket: {url} is none, and has no settings to check. Let nobody else write there.")
        return []
    lines = lines_for(check())
    if not {Severity.DANGER, Severity.WARNING, Severity.UNKNOWN} & set(lines.values()):
        say(f"bucket ok: no setting of {url} weakens acceptance")
    for line, severity in lines.items():
        if severity is not Severity.DANGER:
            say(f"bucket {line}")
    return [
        BatchesInDanger(f"The bucket of {url} endangers accepted batches. {line.partition(': ')[2]}")
        for line, severity in lines.items()
        if severity is Severity.DANGER
    ]
