"""Opens the spool of a gateway in the mode `local_spool`, for the gateway itself and for `lakehead gateway drain`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakehead.accept.acceptance import Acceptor
from lakehead.accept.after_acceptance import AfterAcceptance
from lakehead.accept.spool import Spool
from lakehead.accept.spool_files import open_spool_folder
from lakehead.accept.spool_limits import SpoolLimits
from lakehead.accept.spool_opening import SpoolConflicts, SpoolNotEmpty, SpoolOpening
from lakehead.accept.spool_uploads import SpoolUploads
from lakehead.errors import Misconfigured
from lakehead.gateway.ports import CopyInMemory
from lakehead.wire.spool_records import BATCHES, DAMAGED, KEPT

if TYPE_CHECKING:
    from lakehead.run.gateway_wiring import GatewayWiring

TOLERATED = frozenset({"store", "landing"})
"""What a gateway with a spool can do without for a while: its checks are told, and it stays ready."""


@dataclass(frozen=True, slots=True)
class OpenedSpool:
    """A spool that was opened, with what belongs to it."""

    opening: SpoolOpening
    spool: Spool
    uploads: SpoolUploads
    conflicts: SpoolConflicts

    @property
    def checks(self) -> dict[str, CopyInMemory]:
        """What `/readyz` says of it."""
        return {"spool": self.spool, "landing": self.uploads}


@asynccontextmanager
async def opened_spool(
    wiring: "GatewayWiring", acceptor: Acceptor, effects: AfterAcceptance, *, address: str = ""
) -> AsyncIterator[OpenedSpool]:
    """Open the spool of a configuration, locked for this process until the end. Its uploads are not running yet.

    Raises `Misconfigured` if there is none, it is another gateway's or another process has it; `Unavailable` and
    `OutcomeUnknown` if the store does not answer.
    """
    ingest = wiring.config.ingest
    if ingest.spool_folder is None:
        raise Misconfigured("The gateway has no spool. Set ingest.spool_folder: see docs/gateway.md.")
    with open_spool_folder(Path(ingest.spool_folder), clock=wiring.clock, ids=wiring.ids) as disk:
        opening = SpoolOpening(
            disk=disk,
            authority=wiring.authority,
            acceptor=acceptor,
            ids=wiring.ids,
            limits=SpoolLimits(most_bytes=ingest.spool_bytes, most_batches=ingest.spool_batches),
        )
        spool = await opening.open(address=ingest.spool_address or address)
        uploads = SpoolUploads(
            spool=spool,
            acceptor=acceptor,
            conflicts=wiring.conflicts,
            effects=effects,
            clock=wiring.clock,
            random=wiring.random,
            interval_seconds=ingest.object_landing_interval_ms / 1000,
        )
        try:
            yield OpenedSpool(opening, spool, uploads, SpoolConflicts(wiring.conflicts, acceptor))
        finally:
            await uploads.stop()
            await spool.boots.close()


async def drain(wiring: "GatewayWiring", *, by: str) -> int | None:
    """Land everything that is in the spool, and close it in the authority record, which the audit trail tells.

    Returns how many batches were landed; None if the mode is another one, so that no spool is open. Raises as
    `opened_spool` does, and `SpoolNotEmpty` if there are files that an operator must look at.
    """
    await wiring.store.ensure_probed()
    if (record := await wiring.authority.read()).mode != "local_spool":
        _check_nothing_is_left(wiring.config.ingest.spool_folder, record.mode)
        return None
    async with AsyncExitStack() as opened:
        effects = await opened.enter_async_context(wiring.side_effects())
        local = await opened.enter_async_context(opened_spool(wiring, wiring.acceptor(wiring.store), effects))
        await local.uploads.drain()
        await local.opening.close(local.spool, by=by)
        return local.uploads.counts.landed


def _check_nothing_is_left(folder: str | None, mode: str) -> None:
    left = 0 if folder is None else sum(1 for name in (BATCHES, KEPT, DAMAGED) for _ in Path(folder, name).rglob("*.*"))
    if left:
        raise SpoolNotEmpty(
            f"The spool {folder} has {left:,} files of batches that agents believe to be accepted, and the gateways "
            f"accept by {mode} now. To land them: `lakehead gateway set-mode CONFIG local_spool`, and drain again."
        )
