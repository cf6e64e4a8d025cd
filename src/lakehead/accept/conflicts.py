"""Conflicts: frames that came under an identity accepted with another hash."""

import asyncio
from dataclasses import dataclass

from lakehead.accept.acceptance import Conflict
from lakehead.clock import Clock
from lakehead.ids import Ids
from lakehead.storage.port import Store
from lakehead.wire.conflict_records import QuarantineManifest
from lakehead.wire.index_records import QuarantineByBlob


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicts:
    """The conflicts of one acceptance authority."""

    store: Store
    clock: Clock
    ids: Ids
    collector_id: str

    async def record(self, conflict: Conflict) -> None:
        """Store a conflict's quarantine manifest and its reverse reference, unless they exist: the first stays.

        The submitted blob is stored already. Raises `Unavailable` and `OutcomeUnknown`; repeating it is safe.
        """
        manifest = QuarantineManifest.of(
            conflict.manifest,
            conflict.submission.sha256,
            observed_at_unix_ns=self.clock.now_ns(),
            collector_id=self.collector_id,
            nonce=self.ids.uuid(),
        )
        reference = QuarantineByBlob.of(manifest)
        await asyncio.gather(
            self.store.create(manifest.key, manifest.encode()),
            self.store.create(reference.key, reference.encode()),
        )
