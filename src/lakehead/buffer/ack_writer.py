"""Writing the acknowledgements of one partition: many callers share one write, and some writes trigger a cleanup."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from lakehead.buffer.claims import SkippedBatch
from lakehead.buffer.consumer import Consumer
from lakehead.buffer.errors import AckOutOfOrder
from lakehead.buffer.queue_cleanup import QueueCleanup
from lakehead.buffer.warn_once import WarnOnce
from lakehead.errors import LakeheadError, OutcomeUnknown


class AckWriter:
    """Collects the locations to acknowledge, and runs the task that writes them."""

    def __init__(self, consumer: Consumer, cleanup: QueueCleanup, *, ordered: bool, threshold: int) -> None:
        """Run a cleanup once there are `threshold` done locations."""
        self._consumer = consumer
        self._cleanup = cleanup
        self._ordered = ordered
        self._threshold = threshold
        self._requested: dict[str, None] = {}
        self._skipped: dict[str, SkippedBatch] = {}
        """Quarantined batches that are not acknowledged yet, in the order in which they were read."""
        self._last_was_good = False
        """Whether the batch that was read last could be handed out."""
        self._next_waiters: list[asyncio.Future[None]] = []
        """Callers that wait for the next write."""
        self._current_waiters: list[asyncio.Future[None]] = []
        """Callers that wait for the running write."""
        self._writer: asyncio.Task[None] | None = None
        self._cleanup_retry: tuple[int, float] | None = None
        """After a failed cleanup: at how many done locations, or at what time, the next one is tried."""
        self._warnings = WarnOnce()

    def check_order(self, locations: Collection[str]) -> None:
        """In ordered mode, raise `AckOutOfOrder` unless all earlier locations are acknowledged or requested to be."""
        left = len(locations) if self._ordered else 0
        for location in self._consumer.held:
            if not left:
                return
            if location in locations:
                left -= 1
            elif not self._is_requested(location):
                raise AckOutOfOrder(f"{location} was handed out before {next(iter(locations))}: acknowledge it first.")

    def ack(self, locations: Mapping[str, None]) -> "asyncio.Future[None]":
        """Request an acknowledgement; the future resolves when it is written. Cancelling it does not take it back."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._next_waiters.append(waiter)
        self._requested.update(locations)
        self._start()
        return waiter

    def skip(self, location: str, *, bad: bool) -> None:
        """Acknowledge a quarantined batch as soon as the order allows; `bad` if it could not be read."""
        self._skipped[location] = SkippedBatch(bad, starts_row=self._last_was_good)
        self._last_was_good = False
        self._start()

    def handed_out(self) -> None:
        """Note that a good batch was handed out: the next bad one starts a new row."""
        self._last_was_good = True

    def start_again(self) -> None:
        """Try again to acknowledge quarantined batches, if any are left."""
        self.forget_released()
        if self._skipped:
            self._start()

    async def wait(self) -> None:
        """Wait until everything that can be acknowledged is, or has failed."""
        while self._writer is not None:
            await asyncio.wait([self._writer])

    def forget_released(self) -> None:
        """Drop the requests for locations that are no longer held."""
        for location in [*self._requested, *self._skipped]:
            if location not in self._consumer.held and location not in self._consumer.lost_acks:
                self._requested.pop(location, None)
                self._skipped.pop(location, None)

    def bad_in_a_row(self) -> int:
        """Return how many bad batches in a row precede the next batch, in the order of reading."""
        bad = self._consumer.bad_in_a_row
        for location, skipped in self._skipped.items():
            if location in self._consumer.held:  # otherwise it is acknowledged, and counted there
                bad = skipped.count(bad)
        return 0 if self._last_was_good else bad

    def _start(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_acks())
            self._writer.add_done_callback(self._writer_ended)

    async def _write_acks(self) -> None:
        """Write what can be acknowledged now, until nothing is left."""
        waiters: list[asyncio.Future[None]] = []
        try:
            while locations := self._ready():
                self._current_waiters = waiters = self._next_waiters
                self._next_waiters = []
                done = await self._consumer.ack(locations, self._skipped)
                for location in locations:
                    self._requested.pop(location, None)
                    self._skipped.pop(location, None)
                if done >= self._threshold:
                    await self._run_cleanup(done)
                _resolve(waiters, None)
            waiters, self._next_waiters = self._next_waiters, []
            _resolve(waiters, None)
        except LakeheadError as error:
            self._requested.clear()
            self.forget_released()
            waiters, self._next_waiters = [*waiters, *self._next_waiters], []
            _resolve(waiters, error)

    def _writer_ended(self, writer: "asyncio.Task[None]") -> None:
        """Start again for late requests; if the task was cancelled or failed, resolve all waiters with an error.

        This is not in a `finally` of the task: a task that is cancelled before its first step does not run one.
        """
        self._writer = None
        if writer.cancelled() or writer.exception() is not None:
            waiters = [*self._current_waiters, *self._next_waiters]
            self._next_waiters = []
            self._requested.clear()
            how = "was cancelled" if writer.cancelled() else f"failed unexpectedly ({writer.exception()!r})"
            _resolve(waiters, OutcomeUnknown(f"The acknowledgement {how}. Repeat the call."))
        elif self._next_waiters:
            self._start()
        self._current_waiters = []

    def _ready(self) -> Sequence[str]:
        """Return the requested locations that the order allows to acknowledge now."""
        # Lost acks are not held, but the consumer still has to find out their outcome.
        ready = [location for location in self._consumer.lost_acks if self._is_requested(location)]
        for location in self._consumer.held:
            if self._is_requested(location):
                ready.append(location)
            elif self._ordered:
                break
        return ready

    def _is_requested(self, location: str) -> bool:
        return location in self._requested or location in self._skipped

    async def _run_cleanup(self, done: int) -> None:
        deps, key = self._cleanup.deps, self._consumer.pair.consumer.key
        if self._cleanup_retry is not None:
            enough, retry_at = self._cleanup_retry
            if done < enough and deps.clock.monotonic() < retry_at:
                return
        try:
            await self._cleanup.run()
        except LakeheadError as error:
            # The acknowledgement has succeeded. A cleanup reads both manifests, so not every ack retries it.
            self._cleanup_retry = (2 * done, deps.clock.monotonic() + deps.retries.failed_cleanup_seconds)
            deps.counts.cleanups_failed += 1
            self._warnings.warn(
                "cleanup",
                f"Could not remove the {done:,} acknowledged locations of {key} ({error}). It is tried again later; "
                "until then they stay in the store. Check that the store accepts writes and deletes.",
            )
        else:
            self._cleanup_retry = None
            self._warnings.resolved("cleanup")


def _resolve(waiters: "Sequence[asyncio.Future[None]]", error: LakeheadError | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
            waiter.exception()  # the caller may be gone: do not log it as never retrieved
