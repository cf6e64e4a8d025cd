"""Whether accepted batches have landed, by the state; and if not, whether somebody decided so."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lakehead.accept.discarded_batches import DiscardedLookup
from lakehead.maintain.acceptance_audit_report import AuditReport, FindingKind, numbers_of_batch
from lakehead.maintain.landed_batches import LandedBatches
from lakehead.state.model import DeadLetter
from lakehead.state.state import State
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.spans import Spans, without

LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class LandedCheck:
    """Compares accepted batches with the landed ranges of the state. Raises `Unavailable`."""

    landed: LandedBatches
    state: State
    """In which dead letters are looked up."""

    discarded: DiscardedLookup
    unit_of: Callable[[BatchIdentity], str]
    """The name of a batch as a unit of work."""

    async def check(
        self, kind: FrameKind, identities: Sequence[BatchIdentity], report: AuditReport
    ) -> Mapping[BatchIdentity, Spans]:
        """Tell which batches of a kind have not landed. Returns the sequence numbers that have, of each batch."""
        missing = await self.landed.missing(kind, identities)
        if missing:
            await self._tell(self.landed.tables[kind], missing, report)
        return {each: without([(each.seq_start, each.seq_end + 1)], missing.get(each, ())) for each in identities}

    async def _tell(self, table: str, missing: Mapping[BatchIdentity, Spans], report: AuditReport) -> None:
        discarded = await self.discarded.among(table, missing)
        units = {identity: self.unit_of(identity) for identity in missing if identity not in discarded}
        letters = await asyncio.to_thread(self._letters, table, list(units.values()))
        for identity, spans in missing.items():
            letter = letters.get(units.get(identity, ""))
            numbers = numbers_of_batch(identity, spans)
            if identity in discarded:
                report.add(FindingKind.DISCARDED, keys.accepted(identity), numbers)
            elif letter is None:
                report.add(FindingKind.NOT_LANDED, keys.accepted(identity), numbers)
            elif letter.dropped_at is not None:
                report.add(FindingKind.DROPPED, keys.accepted(identity), numbers)
            else:
                report.add(FindingKind.DEAD_LETTER, keys.accepted(identity), letter.reason[:LONGEST_REASON])

    def _letters(self, table: str, units: Sequence[str]) -> Mapping[str, DeadLetter]:
        return {letter.unit: letter for letter in self.state.history.letters_of(table, units)}
