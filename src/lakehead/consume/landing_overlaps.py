"""Before a landing is published: compares the records of its batches that do not land with those that have landed."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakehead.consume.decode.frames import AcceptedFrame
from lakehead.consume.overlaps import DroppedRecords, OverlapCheck
from lakehead.consume.ports import OverlapReport
from lakehead.errors import Unavailable
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landed_numbers import numbers_in, who_landed
from lakehead.lake.landing import Landing, Unit
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.ports import Staged
from lakehead.wire.errors import Unreadable
from lakehead.wire.spans import Spans, without

LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LandingOverlaps:
    """An audit of one landing. If it has no dropped record, nothing is read or written."""

    open_check: Callable[[], OverlapCheck] | None
    """Opens what compares; None if no accepted batches are landed."""

    frames: Mapping[Unit, AcceptedFrame]
    """The frames of accepted batches."""

    table: IcebergTable
    ledger: StoreLedger
    is_cancelled: Callable[[], bool]
    was_read: Callable[[Sequence[Unit]], None]
    """Called when units were read to their end, and compared: only little time is given to the rest of a landing."""

    report: OverlapReport = field(default_factory=OverlapReport)
    _compared: tuple[DroppedRecords, ...] = ()

    async def compare(self, staged: Staged[Any]) -> None:
        """Compare what is dropped, unless that was done: it is the same at each head at which the plan is."""
        dropped = dropped_records(staged.landing, self.frames)
        if self.open_check is not None and dropped != self._compared:
            await self._compare(self.open_check(), dropped, staged)
        self.was_read([each.unit for each in staged.landing.remainders if each.part is None])

    async def _compare(self, check: OverlapCheck, dropped: tuple[DroppedRecords, ...], staged: Staged[Any]) -> None:
        async def owners(stream: str, wanted: Spans) -> Mapping[str, Spans]:
            ours = numbers_in(staged.landing, stream, wanted)
            rest = without(wanted, [span for spans in ours.values() for span in spans])
            newest = max((each.sequence_number or 0 for each in self.table.seen().metadata.snapshots), default=0)
            try:
                before = await who_landed(
                    self.ledger,
                    self.table.uuid,
                    stream,
                    rest,
                    last=staged.landing.before,
                    newest=newest,
                    go_on=self._go_on,
                )
            except Unreadable as error:
                LOG.warning("Which batches have landed is not known: %s", error)
                return ours
            return {**before, **ours}

        check.go_on = self._go_on
        self.report = await check.check(dropped, table=self.table.uuid, owners=owners)
        self._compared = dropped

    def _go_on(self) -> None:
        if self.is_cancelled():
            raise Unavailable("The pipeline ends before overlapping batches were compared. They come again.")


def dropped_records(landing: Landing, frames: Mapping[Unit, AcceptedFrame]) -> tuple[DroppedRecords, ...]:
    """Return what does not land of the batches of a landing: no batch is there of which everything does."""
    found: list[DroppedRecords] = []
    for each in landing.remainders:
        numbers = each.unit.numbers
        if each.spans is None or numbers is None or each.unit not in frames:
            continue
        if spans := without([(numbers.start, numbers.end)], each.spans):
            found.append(DroppedRecords(unit=each.unit.id, frame=frames[each.unit], spans=spans))
    return tuple(found)
