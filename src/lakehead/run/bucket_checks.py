"""Checks the settings of the bucket of an acceptance authority, for `lakehead doctor` and for gateways."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias
from urllib.parse import urlsplit

from lakehead.accept.bucket_findings import bucket_findings, unread_findings
from lakehead.accept.bucket_policy import QUEUE, Encryption
from lakehead.accept.bucket_settings import AuthorityPlace, Finding
from lakehead.accept.bucket_watch import BucketWatch
from lakehead.accept.s3_bucket_settings import read_bucket_settings
from lakehead.clock import Clock
from lakehead.consume.queues.daemon_pool import DaemonPool
from lakehead.storage.connect import StoreSettings
from lakehead.storage.open_store import locate

BucketCheck: TypeAlias = Callable[[], tuple[Finding, ...]]
"""Asks S3 and judges. It blocks, and never raises for what the server answers."""

AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn")


def bucket_check(
    url: str, settings: StoreSettings, *, queue: str = QUEUE, encryption: Encryption | None = None
) -> BucketCheck | None:
    """Return the check for the store at a URL; None if it has no bucket, as a folder. Raises `Misconfigured`."""
    scheme = url.partition("://")[0]
    if scheme not in ("s3", "gs", "az"):
        return None
    bucket, located = locate(url, settings)
    if scheme != "s3":
        return lambda: unread_findings(
            f"only buckets of S3 are checked, not {scheme}://.",
            "Make sure that nothing deletes or replaces objects below accepted/v1/ and raw-blobs/v1/.",
        )
    place = AuthorityPlace(
        bucket=bucket.name,
        prefix=bucket.prefix,
        queue=queue.strip("/"),
        encryption=encryption,
        is_aws=not located.endpoint or (urlsplit(located.endpoint).hostname or "").endswith(AWS_HOSTS),
    )
    return lambda: bucket_findings(read_bucket_settings(bucket.name, located), place)


def watch_bucket(check: BucketCheck, clock: Clock) -> BucketWatch:
    """Return what checks the bucket now and then beside a gateway. No thread of it keeps the process from ending."""
    threads = DaemonPool(1, "lakehead-bucket-check")
    return BucketWatch(lambda: asyncio.wrap_future(threads.submit(check)), clock)
