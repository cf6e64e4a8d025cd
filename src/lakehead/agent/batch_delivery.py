"""Sending a spooled batch, and what its answer does to the spool."""

from dataclasses import dataclass, field, replace

from lakehead.agent.alerts import LOG, AlertKind, Alerts
from lakehead.agent.batch_attempts import Attempted, BatchAttempts, Earlier, Next
from lakehead.agent.counts import AgentCounts
from lakehead.agent.spool import Spool
from lakehead.agent.spool_entry import ParkReason, SpoolEntry
from lakehead.errors import OutcomeUnknown, Unavailable


@dataclass(slots=True, kw_only=True)
class BatchDelivery:
    """Sends batches, forgets, drops, parks or requeues them, and tells what an operator should know."""

    spool: Spool
    attempts: BatchAttempts
    alerts: Alerts
    counts: AgentCounts
    _under_way: set[int] = field(default_factory=set, init=False)
    _left_boots: set[str] = field(default_factory=set, init=False)
    """Boots that gateways take nothing more of, and that were told."""

    def is_under_way(self, entry: SpoolEntry) -> bool:
        """Whether a batch is just being sent, or settled."""
        return entry.number in self._under_way

    async def deliver(self, entry: SpoolEntry, earlier: Earlier) -> Attempted:
        """Send a batch once, and do what the answer says. It must not be under way.

        If this is cancelled, the batch is in the spool as before or as the answer says: each step there is carried to
        its end. Nothing is raised: one batch must not end the sending of all.
        """
        self._under_way.add(entry.number)
        try:
            attempted = await self.attempts.once(entry, earlier)
            return await self._settle(entry, attempted)
        except (Unavailable, OutcomeUnknown) as error:
            self.alerts.tell(
                AlertKind.DISK_FAILED, f"The batch {entry.number} is tried again, its spool failed: {error}"
            )
        except Exception as error:  # noqa: BLE001 - see above
            self.counts.unexpected_errors += 1
            self.alerts.tell(
                AlertKind.UNEXPECTED_ERROR, f"The batch {entry.number} is tried again. Please report this: {error!r}"
            )
            LOG.debug("The batch %d is tried again.", entry.number, exc_info=error)
        finally:
            self._under_way.discard(entry.number)
        return Attempted(Next.WAIT)

    async def forget(self, entry: SpoolEntry) -> None:
        """Remove a batch that was accepted, or that an operator dropped."""
        await self.spool.accepted(entry)
        if entry.parked is not None and not self.spool.parked():
            self.alerts.is_over(AlertKind.PARKED)

    async def _settle(self, entry: SpoolEntry, attempted: Attempted) -> Attempted:
        match attempted.then:
            case Next.FORGET:
                await self.forget(entry)
            case Next.DROP:
                LOG.warning("An operator decided at the gateway that this batch is dropped: %s", attempted.reason)
                self.counts.dropped += 1
                await self.forget(entry)
            case Next.REQUEUE:
                attempted = replace(attempted, requeued=await self.spool.requeue(entry))
                self.counts.requeued += attempted.requeued is not None
            case Next.PARK:
                await self._park(entry, attempted)
            case Next.PARK_BOOT:
                await self._park_boot(entry, attempted)
            case Next.SEND_AGAIN | Next.WAIT | Next.NOTHING:
                pass
        return attempted

    async def _park(self, entry: SpoolEntry, attempted: Attempted) -> None:
        if entry.parked is not None:
            return
        why = ParkReason(attempted.code, attempted.reason)
        parked = await self.spool.park(entry, why)
        if parked is not None and parked.parked is why:
            self.counts.parked[attempted.code] += 1
            if parked.folder != "parked":
                return  # the spool has told that there is no room, which is the worse news
            self.alerts.tell(
                AlertKind.PARKED,
                f"{attempted.reason} It is parked as number {entry.number}, and offered again every now and then: see "
                "`lakehead agent parked list CONFIG`.",
            )

    async def _park_boot(self, entry: SpoolEntry, attempted: Attempted) -> None:
        """Give further records to a new boot, and park all that waits under the one of a batch."""
        boot_id = entry.identity.boot_id
        await self.spool.new_boot(entry.kind, boot_id)
        for each in self.spool.waiting(entry.kind):
            if each.identity.boot_id == boot_id:
                await self._park(each, attempted)
        if boot_id not in self._left_boots:
            self._left_boots.add(boot_id)
            self.counts.quarantined_boots += 1
            self.alerts.tell(
                AlertKind.BOOT_QUARANTINED,
                f"Gateways take nothing more of the boot {boot_id}. What it has is parked, and further records have a "
                "new boot: see `lakehead conflicts list CONFIG` at the gateway.",
            )
