"""A gateway whose spool is on a disk in memory."""

from lakehead.accept.known_boots import KnownBoots
from lakehead.accept.spool import Spool
from lakehead.accept.spool_limits import SpoolLimits
from lakehead.clock import SystemClock
from tests.unit.accept.support import acceptor
from tests.unit.gateway.support import Gateway, WatchedStore


class SpoolGateway(Gateway):
    """Accepts in a spool, and lands nothing."""

    def __init__(self, limits: SpoolLimits | None = None) -> None:
        disk, store = WatchedStore(), WatchedStore()
        self.spool = Spool(
            disk=disk,
            acceptor=acceptor(store),
            clock=SystemClock(),
            boots=KnownBoots(disk=disk, store=store),
            limits=limits or SpoolLimits(),
            spool_id="spool-1",
        )
        self.spool_disk, self.spool_store = disk, store
        super().__init__(spool=self.spool)
