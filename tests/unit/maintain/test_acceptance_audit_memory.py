"""Memory does not grow with the number of accepted batches: they are made up as they are asked for."""

import gc
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import pytest

from lakehead.errors import Misconfigured
from lakehead.maintain.acceptance_audit import AcceptanceAudit, AuditSettings
from lakehead.maintain.acceptance_audit_report import AuditReport
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Version
from lakehead.storage.read_only_store import ReadOnlyStore
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import async_test
from tests.unit.accept.support import FixedClock
from tests.unit.maintain.audit_support import EARLIER, accepted_manifest

BOOTS = 7
PAGE = 100


@dataclass
class EndlessStore:
    """Has so many accepted batches and their index entries, and keeps none of them."""

    batches: int

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        assert not start_after
        return self._pages(folder)

    async def _pages(self, folder: str) -> AsyncIterator[Sequence[ListedObject]]:
        if folder != keys.ACCEPTED:
            return
        each = self.batches // BOOTS
        for boot in range(BOOTS):
            for first in range(0, each, PAGE):
                numbers = range(first, min(first + PAGE, each))
                identities = [BatchIdentity("agent", f"boot-{boot}", 10 * n, 10 * n + 9) for n in numbers]
                yield [ListedObject(keys.accepted(identity), 1, EARLIER) for identity in identities]

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        identity = keys.parse_accepted(key)
        assert identity is not None
        digest = sha256(key.encode()).hexdigest()
        manifest = accepted_manifest(identity, digest, 7, at=EARLIER - identity.seq_start * 10**9)
        return Object(self._meta(key), manifest.encode()[start:end])

    async def head(self, key: str) -> ObjectMeta | None:
        # Every batch lacks an entry: findings do not grow either.
        return None if key.startswith(keys.ACCEPTED_BY_BLOB) else self._meta(key)

    def _meta(self, key: str) -> ObjectMeta:
        return ObjectMeta(key, 7, Version("1"), EARLIER)

    async def create(self, key: str, body: bytes) -> Created | Exists:
        raise Misconfigured(f"{key} {body!r}")

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        raise Misconfigured(f"{key} {body!r} {version}")

    async def put(self, key: str, body: bytes) -> Version:
        raise Misconfigured(f"{key} {body!r}")

    async def delete(self, key: str) -> None:
        raise Misconfigured(key)


async def peak_of(batches: int) -> tuple[int, AuditReport]:
    """The most memory that an audit holds, in bytes, beyond what there was."""
    audit = AcceptanceAudit(ReadOnlyStore(EndlessStore(batches)), FixedClock(), AuditSettings())
    gc.collect()
    tracemalloc.start()
    try:
        report = await audit.run()
        return tracemalloc.get_traced_memory()[1], report
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@async_test
async def test_eight_times_the_batches_take_the_same_memory() -> None:
    await peak_of(PAGE)  # what is loaded and cached once
    few, _ = await peak_of(BOOTS * PAGE)

    many, report = await peak_of(8 * BOOTS * PAGE)

    assert (report.accepted, report.boots) == (8 * BOOTS * PAGE, BOOTS)
    assert report.errors == report.accepted
    assert many < 1.5 * few, (few, many)
