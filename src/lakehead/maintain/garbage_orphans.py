"""Deletes raw blobs that were never accepted, each after its identity became void.

A blob names its own identity. While that is void nothing can be accepted with the blob, by a retry that comes late
neither: so it may go. Whoever is accepted under the identity before decides otherwise, and then the blob is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from lakehead.accept.conflicts import Conflicts
from lakehead.accept.spooled_batch import IdentityInSpool
from lakehead.accept.voiding import OpenSpools, Voiding
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.maintain.blob_deletion import delete_blob
from lakehead.maintain.blob_references import FoundBlob
from lakehead.maintain.garbage_report import BlobDecision, BlobOutcome
from lakehead.storage.port import Store
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.authority_records import OpenSpool
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.frame import peek_frame

CHUNK = 8 << 20
"""Bytes of a blob that are held in memory at once. Nearly all are smaller, and read in one request."""


class GarbageSpools(OpenSpools, Protocol):
    """The spools of gateways, as garbage collection needs them."""

    async def check(self, spool: OpenSpool) -> None:
        """Raises `SpoolOutOfReach` if the spool does not answer, or another one does."""
        ...

    async def holds(self, spool: OpenSpool, identity: BatchIdentity) -> bool:
        """Return whether the spool has a batch. Changes nothing. Raises `Unavailable`."""
        ...


class SpoolOutOfReach(Unavailable):
    """Start the gateway, or drain its spool: batches may be there that nobody else knows of. Nothing was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """Decides about unreferenced blobs that are old enough and audited, and deletes those that may go."""

    store: Store
    voiding: Voiding
    spools: GarbageSpools
    conflicts: Conflicts
    """Records a frame that contradicts what was accepted, under the name of this collector."""

    now_ns: Callable[[], int]
    """For the time in void records, which is a hint for people."""

    is_dry_run: bool = False

    async def collect(self, blob: FoundBlob, frame_sha256: str) -> BlobDecision:
        """Make the blob's identity void and delete the blob, unless something speaks against it.

        In a dry run nothing is changed, and the same is decided. `Misconfigured` ends all work: as when the authority
        record is another one now.
        """
        try:
            identity = await self._identity(blob, frame_sha256)
            if isinstance(identity, BlobDecision):
                return identity
            found = await (self._foresee if self.is_dry_run else self._void)(identity, frame_sha256)
            if isinstance(found, IdentityManifest):
                return await self._keep(blob, frame_sha256, found)
            if not self.is_dry_run:
                await delete_blob(self.store, frame_sha256)
        except IdentityInSpool as error:
            return _decided(blob, BlobOutcome.IN_SPOOL, str(error))
        except (Unavailable, OutcomeUnknown) as error:
            return _decided(blob, BlobOutcome.UNAVAILABLE, str(error))
        return _decided(blob, BlobOutcome.ORPHAN, str(identity))

    async def _identity(self, blob: FoundBlob, frame_sha256: str) -> BatchIdentity | BlobDecision:
        """Return the identity that the blob names, if its bytes are those of its key; else why it is kept."""
        try:
            first = await self.store.get(blob.key, end=CHUNK)
        except Misconfigured as error:  # this one may not be read, as in an archive: it must not keep the others
            return _decided(blob, BlobOutcome.UNAVAILABLE, str(error))
        if first is None:
            return _decided(blob, BlobOutcome.GONE)
        digest, read = sha256(first.body), len(first.body)
        while read < first.meta.size:
            more = await self.store.get(blob.key, start=read, end=read + CHUNK)
            if more is None or more.meta.version != first.meta.version or not more.body:
                raise Unavailable(f"{blob.key} was changed while it was read.")
            digest.update(more.body)
            read += len(more.body)
        if digest.hexdigest() != frame_sha256:
            return _decided(blob, BlobOutcome.CORRUPT, f"its hash is {digest.hexdigest()}")
        try:
            return peek_frame(first.body).identity
        except NewerFormat as error:
            return _decided(blob, BlobOutcome.NEWER_FORMAT, str(error))
        except Unreadable as error:
            return _decided(blob, BlobOutcome.UNDECODABLE, str(error))

    async def _void(self, identity: BatchIdentity, frame_sha256: str) -> IdentityManifest | IdentityVoid:
        return await self.voiding.void(
            IdentityVoid(
                agent_id=identity.agent_id,
                boot_id=identity.boot_id,
                seq_start=identity.seq_start,
                seq_end=identity.seq_end,
                frame_sha256=frame_sha256,
                voided_at_unix_ns=self.now_ns(),
                voided_by=self.conflicts.collector_id,
            )
        )

    async def _foresee(self, identity: BatchIdentity, frame_sha256: str) -> IdentityManifest | IdentityVoid | None:
        """What `_void` would return just now; None if the identity would become void."""
        del frame_sha256
        for spool in (await self.voiding.authority.read()).open_spools:
            if await self.spools.holds(spool, identity):
                raise IdentityInSpool(f"The spool {spool.spool_id} has {identity}.")
        return await self.voiding.acceptor.read(identity)

    async def _keep(self, blob: FoundBlob, frame_sha256: str, accepted: IdentityManifest) -> BlobDecision:
        if accepted.frame_sha256 == frame_sha256:
            return _decided(blob, BlobOutcome.REFERENCE_MISSING, accepted.key)
        if not self.is_dry_run:
            await self.conflicts.quarantine(accepted, frame_sha256)
        return _decided(blob, BlobOutcome.CONFLICT, accepted.key)


def _decided(blob: FoundBlob, outcome: BlobOutcome, note: str = "") -> BlobDecision:
    return BlobDecision(blob.key, blob.size, outcome, note)
