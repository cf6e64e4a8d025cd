"""Sends what waits in an agent's spool: in order, several batches at once, each until it is settled."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from lakehead.agent.batch_attempts import Attempted, BatchAttempts, Earlier, Next
from lakehead.agent.batch_delivery import BatchDelivery
from lakehead.agent.gateway_choice import ChosenGateway
from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool_entry import SpoolEntry
from lakehead.agent.wake_up import WakeUp
from lakehead.ids import Random
from lakehead.to_its_end import to_its_end
from lakehead.wire.record_schemas import FrameKind


@dataclass(slots=True)
class _Failing:
    """A batch that failed, and is to be sent again."""

    accepted_before: int
    """How many batches had been accepted when it failed first."""

    pauses: Iterator[float]
    gateway: ChosenGateway | None = None
    """Where it failed last."""

    in_doubt: bool = False
    not_before: float = float("-inf")
    """The monotonic time until which it waits: set only if it is to blame itself."""


@dataclass(slots=True, kw_only=True)
class EntrySender:
    """Sends the entries of a spool, until it is cancelled.

    A batch that fails is sent again in its turn, as long as no other is accepted either: then the gateways are to
    blame, and all wait. Where others are accepted, the batch is to blame, and waits by itself. Of the batches of a kind
    that are under way, one at least has never failed. So a batch that no gateway can answer holds up none.
    """

    delivery: BatchDelivery
    settings: AgentSettings
    random: Random
    _attempts: BatchAttempts = field(init=False)
    _failing: dict[int, _Failing] = field(default_factory=dict, init=False)
    _under_way: dict[FrameKind, dict[int, "asyncio.Task[None]"]] = field(init=False)
    _wake_up: WakeUp = field(init=False)

    def __post_init__(self) -> None:
        self._attempts = self.delivery.attempts
        self._under_way = {kind: {} for kind in FrameKind}
        self._wake_up = WakeUp(self._attempts.clock)

    async def run(self) -> None:
        """Send what waits and what comes, until this is cancelled. What was answered by then is settled."""
        news = asyncio.create_task(self._wait_for_news(), name="lakehead-agent-news")
        try:
            while True:
                await self._wake_up.sleep(self._start_what_can_go())
        finally:
            tasks = [news, *(task for tasks in self._under_way.values() for task in tasks.values())]
            for task in tasks:
                task.cancel()
            await to_its_end(asyncio.gather(*tasks, return_exceptions=True))

    async def _wait_for_news(self) -> None:
        while True:
            self._wake_up.now()
            await self._attempts.spool.wait_for_work()

    # --- what is sent next

    def _start_what_can_go(self) -> float | None:
        """Start attempts, and return how long it is until more can be started; None: until something happens.

        All of it is decided by one look at the clock: what is too early now must be waited for.
        """
        if (left := self._attempts.seconds_left) > 0:
            return left
        now = self._attempts.clock.monotonic()
        for kind in FrameKind:
            for entry in self._next_entries(kind, now):
                task = asyncio.create_task(self._send(entry), name=f"lakehead-agent-send-{entry.number}")
                self._under_way[kind][entry.number] = task
                task.add_done_callback(partial(self._is_done, kind, entry.number))
        return min((each.not_before - now for each in self._failing.values() if each.not_before > now), default=None)

    def _next_entries(self, kind: FrameKind, now: float) -> Sequence[SpoolEntry]:
        """Return what can be sent now: by number, and one at least that has not failed, if there is one."""
        under_way = self._under_way[kind]
        free = self.settings.in_flight - len(under_way)
        if free <= 0:
            return ()
        waits = {number for number, failing in self._failing.items() if failing.not_before > now}
        found = self._attempts.spool.waiting(kind, limit=free, besides={*under_way, *waits})
        again = [entry for entry in found if entry.number in self._failing]
        allowed = max(0, self.settings.in_flight - 1 - sum(number in self._failing for number in under_way))
        if len(again) <= allowed:
            return found
        fresh = self._attempts.spool.waiting(kind, limit=free, besides={*under_way, *self._failing})
        return [*again[:allowed], *islice(fresh, free - allowed)]

    def _is_done(self, kind: FrameKind, number: int, _: "asyncio.Task[None]") -> None:
        del self._under_way[kind][number]
        self._wake_up.now()

    # --- one batch

    async def _send(self, entry: SpoolEntry) -> None:
        attempted = await self.delivery.deliver(entry, self._earlier(self._failing.get(entry.number)))
        match attempted.then:
            case Next.SEND_AGAIN:
                self._failed(entry, attempted)
            case Next.WAIT:
                self._wait_by_itself(entry)
            case Next.REQUEUE if attempted.requeued is not None:
                # If gateways find every identity void, numbers must not be used up as fast as they answer.
                self._wait_by_itself(entry).in_doubt = False
            case _:
                self._failing.pop(entry.number, None)

    def _failed(self, entry: SpoolEntry, attempted: Attempted) -> None:
        if attempted.gateway is None:
            return  # it was not sent: another batch found meanwhile that no gateway can be asked
        is_to_blame = self._is_to_blame(self._failing.get(entry.number))
        failing = self._wait_by_itself(entry) if is_to_blame else self._remembered(entry)
        failing.gateway = attempted.gateway
        failing.in_doubt = failing.in_doubt or attempted.in_doubt

    def _earlier(self, failing: _Failing | None) -> Earlier:
        if failing is None:
            return Earlier()
        return Earlier(gateway=failing.gateway, in_doubt=failing.in_doubt, is_to_blame=self._is_to_blame(failing))

    def _is_to_blame(self, failing: _Failing | None) -> bool:
        """Whether others were accepted since a batch failed first."""
        return failing is not None and self._attempts.counts.accepted > failing.accepted_before

    def _wait_by_itself(self, entry: SpoolEntry) -> _Failing:
        failing = self._remembered(entry)
        failing.not_before = self._attempts.clock.monotonic() + next(failing.pauses)
        return failing

    def _remembered(self, entry: SpoolEntry) -> _Failing:
        new = _Failing(self._attempts.counts.accepted, self.settings.batch_backoff.pauses(self.random))
        return self._failing.setdefault(entry.number, new)
