"""What follows when units have landed or failed: acknowledgements, retries and dead letters."""

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil

from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import HeldMessage, QueueLocalState, UnitKey, Work
from lakehead.consume.patience import Patience
from lakehead.consume.ports import Actions, DeadLetterBox, Failure, LandingReport, ReadUnit
from lakehead.consume.queue import Message, Queue
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.shared_state import SharedState
from lakehead.consume.tables import TableIds
from lakehead.consume.visibility import VisibilityTask
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.state.model import FileOutcome, FileState

LOG = logging.getLogger(__name__)

ACKED_AFTER_ACTIONS = 1_000
"""Messages that are acknowledged together if their objects are deleted, moved or tagged first: that takes its time."""


@dataclass(slots=True, kw_only=True)
class Settling:
    """Settles units and messages of one pipeline. A message is acknowledged when all of its units are settled."""

    settings: PipelineSettings
    queue: Queue
    local: QueueLocalState
    shared: SharedState
    tables: TableIds
    visibility: VisibilityTask
    dead_letters: DeadLetterBox
    patience: Patience
    counts: ConsumeCounts
    after_landing: Actions | None = None
    retry_at: float = 0.0
    """When the last of the messages that were not acknowledged comes again at the latest, by the monotonic clock."""

    unfinished: int = 0
    """Messages that are being acknowledged, or made visible again, at this moment."""

    interrupted: dict[UnitKey, int] = field(default_factory=dict)
    """Units whose try was cut short by the end of the pipeline, each with the number of tries that count."""

    async def settle(self, table: str, works: Sequence[Work], report: LandingReport, tries: Mapping[str, int]) -> None:
        """Settle the units of a landing: landed whole or in part, failed, or no longer ours.

        `tries` counts the one that was made.
        """
        uuid = await self.tables.uuid(table)
        self._count(report)
        await self._settle_landed(uuid, works, report, tries)
        await self._settle_begun(uuid, report, tries)
        if failed := [(work, report.failed[work.key]) for work in works if work.key in report.failed]:
            await self._settle_failed(uuid, failed, tries)
        known = report.landed.keys() | report.begun.keys() | report.failed.keys()
        if unknown := [work.key for work in works if work.key not in known]:
            settled = await self.patience.answer(lambda: self.shared.settled(uuid, [key.unit for key in unknown]))
            self.local.complete(key for key in unknown if key.unit in settled)
            self.local.abandon(key for key in unknown if key.unit not in settled)

    async def give_up(self, work: Work, reason: str, tries: int) -> None:
        """Make a unit a dead letter; its message is acknowledged after that."""
        uuid = await self.tables.uuid(work.key.table)
        if await self.patience.answer(lambda: self.dead_letters.give_up(work, uuid, reason, tries)):
            self.counts.dead_letters += 1
            LOG.warning(
                "Pipeline %s: %s is a dead letter after %d tries: %s", self.settings.name, work.key.unit, tries, reason
            )
            await self._record(uuid, [_failed(work, FileState.DEAD_LETTER, reason, tries)])
            self.local.complete([work.key])
        else:
            self.local.abandon([work.key])  # another pipeline has taken it

    async def give_up_message(self, message: Message, reason: str) -> None:
        """Make a message that was not understood a dead letter."""
        await self.patience.answer(lambda: self.dead_letters.give_up_message(message, reason))
        self.counts.dead_letters += 1
        LOG.warning("Pipeline %s: the message %s is a dead letter: %s", self.settings.name, message.id, reason)
        self.local.add(message, ())  # there is nothing to wait for: it is acknowledged

    async def acknowledge(self) -> None:
        """Acknowledge the messages all of whose units are settled, and let the others come again."""
        settled = self.local.settled()
        self.unfinished += len(settled)
        try:
            await self._acknowledge_settled(settled)
        finally:
            self.unfinished -= len(settled)

    async def _acknowledge_settled(self, settled: Sequence[HeldMessage]) -> None:
        done = [each for each in settled if each.acknowledge]
        again = [each for each in settled if not each.acknowledge]
        self.visibility.stop(each.message for each in again)
        self.visibility.resume(each.message for each in done)
        size = len(done) if self.after_landing is None else ACKED_AFTER_ACTIONS
        for start in range(0, len(done), size or 1):
            some = done[start : start + size]
            # Actions may take long, and whoever gets a message meanwhile would acknowledge it: a crash would lose them.
            await self._act(key for each in some for key in each.units)
            self.visibility.stop(each.message for each in some)
            await self._begin_windows(await self._acknowledge(some))
        await self._deliver_later(again)

    def expect_again(self, after: timedelta | None = None) -> None:
        """A message comes again after a pause; None: when its visibility ends."""
        longest = max(self.settings.visibility, self.settings.last_visibility)
        seconds = ceil((longest if after is None else after).total_seconds())  # a queue may round up
        self.retry_at = max(self.retry_at, self.patience.clock.monotonic() + seconds)

    async def give_back(self, *, within: float) -> None:
        """Make what was received and not landed visible at once. Nothing is lost if that fails, or takes too long.

        Units come first: who receives their messages then can take them. Each of the two may take `within` seconds.
        """
        await _at_most(within, self._give_back_units())
        await _at_most(within, self._give_back_messages())

    async def _give_back_units(self) -> None:
        for table, uuid, units in self.tables.group(self.interrupted):
            with suppress(LakeheadError):
                await self.shared.take_back_try(uuid, {unit: self.interrupted[UnitKey(table, unit)] for unit in units})
        for _, uuid, units in self.tables.group(dict.fromkeys([*self.local.units, *self.interrupted])):
            with suppress(LakeheadError):
                await self.shared.release(uuid, units)

    async def _give_back_messages(self) -> None:
        with suppress(LakeheadError):
            await self.acknowledge()
        messages = self.visibility.messages  # also those whose units are not known yet
        self.local.lose(messages)
        self.visibility.stop(messages)
        with suppress(LakeheadError):
            if messages:
                await self.queue.extend(messages, timedelta(0))

    async def _settle_failed(self, uuid: str, failed: Sequence[tuple[Work, Failure]], tries: Mapping[str, int]) -> None:
        """Let units that failed come again; those that have failed for good become dead letters."""
        self.counts.failed += len(failed)
        if temporary := {work.key.unit: work.tries for work, failure in failed if failure.temporary}:
            await self.patience.answer(lambda: self.shared.take_back_try(uuid, temporary))
        again: list[FileOutcome] = []
        next_try = dict[str, str]()
        for work, failure in failed:
            tried = tries[work.key.unit]
            if tried >= self.settings.max_tries and not failure.temporary:
                await self.give_up(work, failure.reason, tried)
            else:
                again.append(_failed(work, FileState.FAILED, failure.reason, tried))
                which = "not counted" if failure.temporary else f"try {tried} of {self.settings.max_tries}"
                pause = self.settings.delay_after(tried).total_seconds()
                next_try[work.key.unit] = f"{which}, again in {pause:g} s"
        if not again:
            return
        counts = Counter(each.error for each in again)
        for each in {each.error: each for each in reversed(again)}.values():
            more = f" and {counts[each.error] - 1} more" if counts[each.error] > 1 else ""
            LOG.warning(
                "Pipeline %s: %s%s: %s (%s)", self.settings.name, each.unit, more, each.error, next_try[each.unit]
            )
        await self._record(uuid, again)
        await self.patience.answer(lambda: self.shared.release(uuid, [each.unit for each in again]))
        units = {work.key.unit: work.key for work, _ in failed}
        for each in again:
            self.local.abandon([units[each.unit]], retry_after=self.settings.delay_after(each.tries))

    async def _acknowledge(self, done: Sequence[HeldMessage]) -> list[UnitKey]:
        """Acknowledge messages. Returns the units of those for which that succeeded."""
        try:
            failed = {message.id for message in await self.queue.acknowledge([each.message for each in done])}
        except (Unavailable, OutcomeUnknown) as error:
            LOG.warning(
                "Pipeline %s: messages that were not acknowledged, and come again: %d. %s",
                self.settings.name,
                len(done),
                error,
            )
            failed = {each.message.id for each in done}
        if failed:
            self.expect_again()
        self.counts.unacknowledged += len(failed)
        self.counts.acknowledged += len(done) - len(failed)
        return sorted({key for each in done if each.message.id not in failed for key in each.units})

    async def _act(self, settled: Iterable[UnitKey]) -> None:
        """Delete, move or tag what has landed. A message is acknowledged afterwards: a crash loses no action."""
        if self.after_landing is None:
            return
        for _, uuid, units in self.tables.group(settled):
            with suppress(Unavailable, OutcomeUnknown):  # then the objects stay where they are
                report = await self.after_landing.act(uuid, units)
                self.counts.removed += report.done
                self.counts.not_removed += report.failed

    async def _begin_windows(self, acknowledged: Iterable[UnitKey]) -> None:
        """Begin the deduplication window of units; not for a queue that announces them as long as they exist."""
        if not self.queue.forgets:
            return
        for _, uuid, units in self.tables.group(acknowledged):
            with suppress(Unavailable, OutcomeUnknown):  # then they are remembered for longer than they need be
                await self.shared.acknowledge(uuid, units)

    async def _deliver_later(self, messages: Iterable[HeldMessage]) -> None:
        delays: dict[timedelta | None, list[Message]] = {}
        for each in messages:
            delays.setdefault(each.retry_after, []).append(each.message)
        for delay, theirs in delays.items():
            kept: Sequence[Message] = theirs
            if delay is not None:
                with suppress(Unavailable, OutcomeUnknown):
                    kept = await self.queue.extend(theirs, delay)
            self.expect_again(delay)
            if kept:
                self.expect_again()  # at the latest when the visibility that they have ends

    async def _settle_landed(
        self, uuid: str, works: Sequence[Work], report: LandingReport, tries: Mapping[str, int]
    ) -> None:
        """Complete what has landed, write it to the history, and close the dead letters of it that there are."""
        self.local.complete(report.landed)
        if not report.landed:
            return
        landed = [work.key for work in works if work.key in report.landed]
        await self._record(
            uuid, [_landed(key.unit, report.landed[key], tries[key.unit], report.snapshot) for key in landed]
        )
        with suppress(Unavailable, OutcomeUnknown):  # the command that lists dead letters sees that they have landed
            await self.dead_letters.close_landed(uuid, [key.unit for key in landed])

    async def _settle_begun(self, uuid: str, report: LandingReport, tries: Mapping[str, int]) -> None:
        """Let units of which a part has landed go on, and write the parts to the history, each under its own name."""
        if not report.begun:
            return
        if lost := [key.unit for key in report.begun if not self.local.holds(key)]:
            await self.patience.answer(lambda: self.shared.release(uuid, lost))
        self.local.go_on(report.begun)
        self.visibility.resume(self.local.messages_of(report.begun))
        await self._record(
            uuid,
            [_landed(part.id, part.read, tries[key.unit], report.snapshot) for key, part in report.begun.items()],
        )

    async def _record(self, table: str, outcomes: Sequence[FileOutcome]) -> None:
        """Write to the history of files, which is only for people."""
        with suppress(Unavailable, OutcomeUnknown):
            await self.shared.record(table, outcomes)

    def _count(self, report: LandingReport) -> None:
        counts = self.counts
        counts.landings += bool(report.landed or report.begun)
        counts.landed += len(report.landed)
        counts.overlapping += report.overlaps.equal
        counts.overlaps_quarantined += report.overlaps.batches
        counts.records_quarantined += report.overlaps.records
        if report.overlaps.batches:
            LOG.warning(
                "Pipeline %s: %d records of %d accepted batches did not land, because others have landed under their "
                "sequence numbers. They are in quarantine: see `lakehead conflicts list CONFIG`.",
                self.settings.name,
                report.overlaps.records,
                report.overlaps.batches,
            )
        for unit in (*report.landed.values(), *(part.read for part in report.begun.values())):
            counts.rows += unit.rows
            counts.bytes += unit.bytes
            counts.rescued += unit.rescued


def _landed(unit: str, read: ReadUnit, tries: int, snapshot: int | None) -> FileOutcome:
    return FileOutcome(
        unit=unit,
        state=FileState.LANDED,
        rows=read.rows,
        bytes=read.bytes,
        rescued_rows=read.rescued,
        tries=tries,
        snapshot=snapshot,
    )


def _failed(work: Work, state: FileState, reason: str, tries: int) -> FileOutcome:
    return FileOutcome(unit=work.key.unit, state=state, bytes=work.size, tries=tries, error=reason)


async def _at_most(seconds: float, work: Coroutine[None, None, None]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work
