"""Voids in a gateway's spool that somebody asks for over HTTP, with their entries in the audit trail."""

from dataclasses import dataclass

from lakehead.accept.audit import AuditTrail
from lakehead.accept.spool import Spool
from lakehead.accept.spooled_batch import IdentityInSpool
from lakehead.errors import Unavailable
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.spool_records import SpoolVoid


class NotAudited(Unavailable):
    """Try again later: the object store did not take the entry of the audit trail."""


@dataclass(frozen=True, slots=True)
class SpoolVoids:
    """Makes identities void in one spool, and leaves a trace of each in the authority's audit trail."""

    spool: Spool

    async def void(self, identity: BatchIdentity, *, by: str) -> None:
        """Accept nothing more under an identity, as `Spool.void` does, and raise what it raises.

        The trail says who asked for it before it is done, and afterwards if the spool refused. Raises `NotAudited` if
        either is not known to be stored; repeating it is safe.
        """
        record = SpoolVoid.of(identity, voided_at_unix_ns=self.spool.clock.now_ns())
        asked = await self._recorded("void_in_spool", by, record, because_of=self.spool.spool_id)
        try:
            await self.spool.void(identity)
        except IdentityInSpool:
            await self._recorded("refuse_void_in_spool", by, record, because_of=asked)
            raise

    async def _recorded(self, action: str, by: str, record: SpoolVoid, *, because_of: str) -> str:
        """Append to the trail, and return the key of the entry."""
        at = self.spool.acceptor
        trail = AuditTrail(store=at.store, clock=at.clock, ids=at.ids, random=at.random)
        try:
            entry = await trail.append(action, by=by, subject=record.key, because_of=because_of, after=record)
        except Unavailable as error:
            raise NotAudited(str(error)) from error
        return entry.key
