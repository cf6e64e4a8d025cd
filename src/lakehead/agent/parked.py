"""Batches that were refused or are conflicts: what they are, offering them again, and dropping them."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from lakehead.agent.batch_attempts import Earlier, Next
from lakehead.agent.batch_delivery import BatchDelivery
from lakehead.agent.gateway_choice import ChosenGateway
from lakehead.agent.spool_entry import SpoolEntry
from lakehead.agent.wake_up import WakeUp
from lakehead.ids import Random
from lakehead.retry import PollInterval
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind

NEW_IDENTITIES = 3
"""How often a batch that is void is sent under a new identity in one go."""


@dataclass(frozen=True, slots=True)
class ParkedBatch:
    """A batch that is kept, and not sent in its turn."""

    number: int
    """Its name in this spool."""

    kind: FrameKind
    identity: BatchIdentity
    size: int
    """The bytes of its frame."""

    code: str
    """The gateway's word for the reason, such as `identity_conflict`; empty if it is not known."""

    reason: str
    """What the gateway said."""

    @classmethod
    def of(cls, entry: SpoolEntry) -> "ParkedBatch":
        """Return an entry of the spool as people see it."""
        why = entry.parked
        return cls(
            entry.number, entry.kind, entry.identity, entry.size, why.code if why else "", why.text if why else ""
        )


@dataclass(slots=True, kw_only=True)
class ParkedBatches:
    """The parked batches of an agent.

    Offering one again is sending it, one after the other: it leaves the spool if it is accepted now, or if an operator
    decided at the gateway that it may. A void one gets its new identity where it lies, in one step, and is sent from
    there at once: if the agent dies between the two, the next start offers all that is parked. One that no gateway can
    answer is sent again after the others.
    """

    delivery: BatchDelivery
    every_seconds: float
    """How long after the last time all of them are offered again."""

    backoff: PollInterval
    """The pauses after attempts without an answer."""

    random: Random
    _wake_up: WakeUp = field(init=False)
    _is_asked: bool = field(default=False, init=False)
    """Whether they are to be offered at once."""

    _last_at: dict[int, ChosenGateway | None] = field(default_factory=dict, init=False)
    """Where each was sent last: the next time another gateway is asked, if there is one."""

    _unanswered: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._wake_up = WakeUp(self.delivery.attempts.clock)

    def list(self) -> tuple[ParkedBatch, ...]:
        """Return all of them, by number."""
        return tuple(ParkedBatch.of(entry) for entry in self.delivery.spool.parked())

    async def drop(self, numbers: Collection[int]) -> tuple[ParkedBatch, ...]:
        """Remove batches for good, because an operator said so. Their records are lost unless they were accepted.

        Returns those that were there.
        """
        dropped = []
        for entry in self.delivery.spool.parked():
            if entry.number in numbers:
                await self.delivery.forget(entry)
                self.delivery.counts.dropped += 1
                dropped.append(ParkedBatch.of(entry))
        return tuple(dropped)

    def offer_now(self) -> None:
        """Offer all of them again without waiting for the time."""
        self._is_asked = True
        self._wake_up.now()

    async def run(self) -> None:
        """Offer all of them now and every so many seconds, until this is cancelled."""
        clock = self.delivery.attempts.clock
        while True:
            ends = clock.monotonic() + self.every_seconds
            self._is_asked = False
            await self._offer_all(ends)
            while not self._is_asked and (left := ends - clock.monotonic()) > 0:
                await self._wake_up.sleep(left)

    async def _offer_all(self, ends: float) -> None:
        """Offer each until it is answered, or until all of them are to be offered again."""
        parked = {entry.number: entry for entry in self.delivery.spool.parked()}
        self._unanswered &= parked.keys()
        self._last_at = {number: self._last_at.get(number) for number in parked}
        left = deque(sorted(parked.values(), key=lambda entry: (entry.number in self._unanswered, entry.number)))
        pauses = self.backoff.pauses(self.random)
        while left and not self._is_asked and self.delivery.attempts.clock.monotonic() < ends:
            entry = left.popleft()
            if (unanswered := await self._offer(entry)) is None:
                self._unanswered.discard(entry.number)
                pauses = self.backoff.pauses(self.random)
            else:
                self._unanswered.add(entry.number)
                left.append(unanswered)
                await self._wake_up.sleep(next(pauses))

    async def _offer(self, entry: SpoolEntry) -> SpoolEntry | None:
        """Send a batch once. Returns it as it is now if there was no answer about it; None if there was, or it left."""
        for _ in range(NEW_IDENTITIES):
            await self._until_something_can_be_sent()
            if self.delivery.is_under_way(entry):
                return None
            earlier = Earlier(gateway=self._last_at.get(entry.number), is_to_blame=True)
            attempted = await self.delivery.deliver(entry, earlier)
            self._last_at[entry.number] = attempted.gateway
            if attempted.requeued is None:
                return entry if attempted.then in (Next.SEND_AGAIN, Next.WAIT) else None
            entry = attempted.requeued
        return None

    async def _until_something_can_be_sent(self) -> None:
        attempts = self.delivery.attempts
        while seconds := attempts.seconds_left:
            await attempts.clock.sleep(seconds)
