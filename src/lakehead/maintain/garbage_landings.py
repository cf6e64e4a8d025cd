"""When accepted batches landed, by the ledger: their frames are needed until nobody would roll the landing back.

That all numbers of a batch have landed is not enough: another batch may have brought them, and this one is still to be
compared with it. The ledger names each batch that was landed, or was compared and dropped, by its unit.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from lakehead.lake.landed_units import settled_landings
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.state_progress import state_landings
from lakehead.maintain.blob_pages import closing
from lakehead.maintain.garbage_report import BlobOutcome
from lakehead.maintain.garbage_retention import KeepReason, RetiringBatch
from lakehead.maintain.landed_batches import LandedBatches, StateRanges
from lakehead.state.schema import EPOCH
from lakehead.state.state import State
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.record_schemas import FrameKind


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedFrames:
    """Landing, as one who reads frames: the tables in which each kind lands, by one state and ledger."""

    state: State
    ledger: StoreLedger
    tables: Callable[[], Mapping[FrameKind, Sequence[str]]]
    """Returns the uuids of all tables in which a kind lands, as they are now; none if the kind lands nowhere, or one of
    its tables does not exist. It blocks. Asked each time: in a table that was created again nothing has landed."""

    unit_of: Callable[[BatchIdentity], str]
    """By which name pipelines land a batch: the URI of its identity manifest."""

    async def still_needed(
        self, batches: Sequence[RetiringBatch], *, done_before_ns: int
    ) -> Mapping[BatchIdentity, KeepReason]:
        """Return the batches that did not land in all tables of their kind before a time. Raises `Unavailable`.

        The time is compared with the clock of the ledger's store.
        """
        kept: dict[BatchIdentity, KeepReason] = {}
        of_kind = await asyncio.to_thread(self.tables)
        for kind in {each.kind for each in batches}:
            identities = [each.identity for each in batches if each.kind is kind]
            tables = of_kind.get(kind, ())
            if not tables:
                kept |= dict.fromkeys(identities, KeepReason(BlobOutcome.NO_TABLE, kind.word))
            for table in tables:
                kept |= await self._still_needed(kind, table, identities, done_before_ns)
        return kept

    async def _still_needed(
        self, kind: FrameKind, table: str, identities: Sequence[BatchIdentity], done_before_ns: int
    ) -> Mapping[BatchIdentity, KeepReason]:
        missing = await LandedBatches(StateRanges(self.state), {kind: table}).missing(kind, identities)
        kept = {each: KeepReason(BlobOutcome.NOT_LANDED, str(each)) for each in missing}
        units = {self.unit_of(each): each for each in identities if each not in missing}
        try:
            landed = await self._landed_ns(table, units) if units else {}
        except Unreadable as error:
            return kept | dict.fromkeys(units.values(), KeepReason(BlobOutcome.LANDING_UNKNOWN, str(error)))
        for unit, identity in units.items():
            if unit not in landed:
                kept[identity] = KeepReason(BlobOutcome.LANDING_UNKNOWN, str(identity))
            elif landed[unit] > done_before_ns:
                kept[identity] = KeepReason(BlobOutcome.LANDED_LATELY, str(identity))
        return kept

    async def _landed_ns(self, table: str, units: Collection[str]) -> dict[str, int]:
        """When the last landing of each unit was recorded, in nanoseconds since the Unix epoch."""
        pointer = await asyncio.to_thread(self.state.landings.pointer, table)
        found: dict[str, int] = {}
        chain = settled_landings(self.ledger, table, pointer.last_landing if pointer else None)
        async with closing(chain) as landings:
            async for snapshot, recorded in landings:
                at_ns = (recorded - EPOCH) // timedelta(microseconds=1) * 1_000
                for landing in state_landings(snapshot):
                    for unit in landing.units:
                        if unit in units:
                            found[unit] = max(at_ns, found.get(unit, 0))
        return found
