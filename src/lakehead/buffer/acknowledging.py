"""Acknowledging the batches of one partition: many callers share one write, and a clean-up follows now and then."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from lakehead.buffer.claims import SkippedBatch
from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.consumer import Consumer
from lakehead.buffer.errors import OutOfTurn
from lakehead.buffer.warn import WarnOnce
from lakehead.errors import LakeheadError, OutcomeUnknown

CLEAN_UP_AGAIN_SECONDS = 30.0
"""How long a clean-up that failed is not tried again, unless twice as much is there to clean up."""


class Acknowledging:
    """What is to be acknowledged, and the task that does it."""

    def __init__(self, consumer: Consumer, clean_up: CleanUp, *, ordered: bool, threshold: int) -> None:
        """Clean up once so many done locations as `threshold` have gathered."""
        self._consumer = consumer
        self._clean_up = clean_up
        self._ordered = ordered
        self._threshold = threshold
        self._requested: dict[str, None] = {}
        self._skipped: dict[str, SkippedBatch] = {}
        """What was set aside and is not acknowledged yet, in the order in which it was read."""
        self._last_was_good = False
        """Whether the batch that was read last could be handed out."""
        self._asking: list[asyncio.Future[None]] = []
        """Who waits for the next write."""
        self._answering: list[asyncio.Future[None]] = []
        """Who waits for the write that is under way."""
        self._writer: asyncio.Task[None] | None = None
        self._clean_up_again: tuple[int, float] | None = None
        """After a clean-up that failed: at how many done locations, or when, the next one is tried."""
        self._warnings = WarnOnce()

    def check_turn(self, ours: Collection[str]) -> None:
        """Raise `OutOfTurn` unless what is done is always the beginning of the queue, where it is read in order."""
        left = len(ours) if self._ordered else 0
        for location in self._consumer.held:
            if not left:
                return
            if location in ours:
                left -= 1
            elif not self._is_wanted(location):
                raise OutOfTurn(f"{location} was handed out before {next(iter(ours))}: acknowledge it first.")

    def ack(self, ours: Mapping[str, None]) -> "asyncio.Future[None]":
        """Acknowledge what is held; whoever gives up waiting for the answer does not take it back."""
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking.append(asked)
        self._requested.update(ours)
        self._start()
        return asked

    def set_aside(self, location: str, *, bad: bool) -> None:
        """Acknowledge, when its turn has come, what was set aside; `bad` if because it could not be read."""
        self._skipped[location] = SkippedBatch(bad, begins_row=self._last_was_good)
        self._last_was_good = False
        self._start()

    def handed_out(self) -> None:
        """A batch could be read: those that cannot be and come after it are counted anew."""
        self._last_was_good = True

    def start_again(self) -> None:
        """Try once more to acknowledge what was set aside, if something is left of it."""
        self.forget_released()
        if self._skipped:
            self._start()

    async def wait(self) -> None:
        """Wait until everything is acknowledged that can be, or that has failed."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    def forget_released(self) -> None:
        """Forget what is not held any more."""
        for location in [*self._requested, *self._skipped]:
            if location not in self._consumer.held and location not in self._consumer.forgotten:
                self._requested.pop(location, None)
                self._skipped.pop(location, None)

    def bad_in_a_row(self) -> int:
        """How many there are before the next batch, in the order in which we read."""
        bad = self._consumer.bad_in_a_row
        for location, skipped in self._skipped.items():
            if location in self._consumer.held:  # else it was acknowledged, and is counted there
                bad = skipped.count(bad)
        return 0 if self._last_was_good else bad

    def _start(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._acknowledge())
            self._writer.add_done_callback(self._written)

    async def _acknowledge(self) -> None:
        """Write what can be acknowledged now, until nothing more can."""
        asking: list[asyncio.Future[None]] = []
        try:
            while some := self._ripe():
                self._answering = asking = self._asking
                self._asking = []
                waiting = await self._consumer.ack(some, self._skipped)
                for location in some:
                    self._requested.pop(location, None)
                    self._skipped.pop(location, None)
                if waiting >= self._threshold:
                    await self._clean_up_now(waiting)
                _tell(asking, None)
            asking, self._asking = self._asking, []
            _tell(asking, None)
        except LakeheadError as error:
            self._requested.clear()
            self.forget_released()
            asking, self._asking = [*asking, *self._asking], []
            _tell(asking, error)

    def _written(self, writer: "asyncio.Task[None]") -> None:
        """Go on with what came at the last moment; if the task was cut off, tell everybody who waits for an answer.

        Not at the end of the task itself: one that is cancelled before it began runs not even its `finally`.
        """
        self._writer = None
        if writer.cancelled() or writer.exception() is not None:
            asking = [*self._answering, *self._asking]
            self._asking = []
            self._requested.clear()
            why = "was cancelled" if writer.cancelled() else f"failed in an unforeseen way ({writer.exception()!r})"
            _tell(asking, OutcomeUnknown(f"The acknowledgement {why}. Repeat it."))
        elif self._asking:
            self._start()
        self._answering = []

    def _ripe(self) -> Sequence[str]:
        # What is forgotten is not held, and yet the consumer has to find out what became of it.
        ripe = [location for location in self._consumer.forgotten if self._is_wanted(location)]
        for location in self._consumer.held:
            if self._is_wanted(location):
                ripe.append(location)
            elif self._ordered:
                break
        return ripe

    def _is_wanted(self, location: str) -> bool:
        return location in self._requested or location in self._skipped

    async def _clean_up_now(self, waiting: int) -> None:
        means, key = self._clean_up.means, self._consumer.files.consumer.key
        if self._clean_up_again is not None:
            enough, again_at = self._clean_up_again
            if waiting < enough and means.clock.monotonic() < again_at:
                return
        try:
            await self._clean_up.run()
        except LakeheadError as error:
            # What is acknowledged is, all the same. Each try reads both manifests, so not every ack tries again.
            self._clean_up_again = (2 * waiting, means.clock.monotonic() + CLEAN_UP_AGAIN_SECONDS)
            means.counts.cleanups_failed += 1
            self._warnings.warn(
                "clean-up",
                f"The {waiting:,} acknowledged locations of {key} could not be cleaned up ({error}). It is tried "
                "again later; until then they stay in the store. Check that the store takes writes and deletes.",
            )
        else:
            self._clean_up_again = None
            self._warnings.over("clean-up")


def _tell(asking: "Sequence[asyncio.Future[None]]", error: LakeheadError | None) -> None:
    for each in asking:
        if each.done():
            continue
        if error is None:
            each.set_result(None)
        else:
            each.set_exception(error)
            each.exception()  # whoever asked may be gone
