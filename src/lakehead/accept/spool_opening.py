"""When a spool may be used: the authority lists it from before its first batch until it is empty and closed."""

from dataclasses import dataclass

from lakehead.accept.acceptance import Acceptor, Conflict
from lakehead.accept.authority import Authority, SpoolClosed
from lakehead.accept.conflicts import Conflicts
from lakehead.accept.known_boots import KnownBoots
from lakehead.accept.spool import Spool
from lakehead.accept.spool_files import spool_record
from lakehead.accept.spool_limits import SpoolLimits
from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import Ids
from lakehead.storage.port import Store
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import ConflictResolution
from lakehead.wire.spool_records import BATCHES


class SpoolNotEmpty(Misconfigured):
    """Look after what is left in the spool first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOpening:
    """Opens and closes the spool of one gateway. The caller holds the lock of its folder."""

    disk: Store
    authority: Authority
    acceptor: Acceptor
    ids: Ids
    limits: SpoolLimits = SpoolLimits()  # noqa: RUF009 - frozen
    spool: type[Spool] = Spool

    async def open(self, *, address: str = "") -> Spool:
        """Return the spool with what is in it. When this returns it may accept batches.

        `address` is where garbage collection reaches it. Raises `Misconfigured` if the mode is another one, or it is
        the spool of another gateway or authority; `Unavailable` and `OutcomeUnknown` if the store does not answer.
        """
        clock, store = self.acceptor.clock, self.acceptor.store
        record = await self.authority.check("local_spool")
        whose = await spool_record(self.disk, authority_id=record.authority_id, clock=clock, ids=self.ids)
        boots = KnownBoots(disk=self.disk, store=store)
        was_open = any(each.spool_id == whose.spool_id for each in record.open_spools)
        if not was_open:
            await boots.forget_all()  # whoever changed the store meanwhile did not tell this spool
        spool = self.spool(
            disk=self.disk,
            acceptor=self.acceptor,
            clock=clock,
            boots=boots,
            limits=self.limits,
            spool_id=whose.spool_id,
        )
        await spool.load()
        try:
            await self._record(whose.spool_id, address, was_open=was_open)
        except SpoolClosed:  # a close of an earlier process came late, or somebody has given the spool up
            await boots.forget_all()
            await self._record(whose.spool_id, address, was_open=False)
        return spool

    async def tell_address(self, spool: Spool, address: str) -> None:
        """Record where garbage collection reaches a spool that is open. Raises as `open` does, and `SpoolClosed`."""
        await self._record(spool.spool_id, address, was_open=True)

    async def _record(self, spool_id: str, address: str, *, was_open: bool) -> None:
        await self.authority.open_spool(
            spool_id, collector_id=self.acceptor.collector_id, address=address, was_open=was_open
        )

    async def close(self, spool: Spool, *, by: str) -> None:
        """Record that the spool is empty, and accepts nothing more, and who closed it. The caller no longer uses it.

        Raises `SpoolNotEmpty`, and as `open` does; repeating it is safe.
        """
        if spool.count:
            raise SpoolNotEmpty(
                f"The spool has {spool.count:,} batches that are not in the store yet. Land them first."
            )
        if spool.aside:
            raise SpoolNotEmpty(
                f"The spool has {len(spool.aside):,} files that need an operator: {', '.join(spool.aside[:10])}. They "
                "hold batches that agents believe to be accepted: find out why, then move them out of the folder."
            )
        async for page in self.disk.list(BATCHES):
            raise Unavailable(f"{page[0].key} has landed, and could not be removed from the spool. Try again.")
        record = await self.authority.read()
        whose = await spool_record(self.disk, authority_id=record.authority_id, clock=self.acceptor.clock, ids=self.ids)
        await self.authority.close_spool(whose.spool_id, by=by)


@dataclass(frozen=True, slots=True)
class SpoolConflicts:
    """Records conflicts with batches of a spool: unlike those that the store finds, their frames are not stored yet."""

    conflicts: Conflicts
    acceptor: Acceptor

    async def record(self, conflict: Conflict) -> None:
        """Store the submitted frame, and then its quarantine manifest. Raises `Unavailable` and `OutcomeUnknown`."""
        await self.acceptor.store_blob(conflict.submission)
        await self.conflicts.record(conflict)

    async def resolution(self, identity: BatchIdentity, submitted_sha256: str) -> ConflictResolution | None:
        """Return what was decided about one submitted frame; None if nothing was."""
        return await self.conflicts.resolution(identity, submitted_sha256)
