"""One attempt to send a spooled batch, and what its answer means for gateways, token and authority."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum

from lakehead.agent.alerts import AlertKind, Alerts
from lakehead.agent.counts import AgentCounts
from lakehead.agent.errors import (
    AgentRefused,
    BatchRefused,
    BootQuarantined,
    ForeignAuthority,
    IdentityConflict,
    TokenRefused,
    UnexpectedAnswer,
    VoidBatch,
)
from lakehead.agent.framed_batch import FramedBatch, Receipt
from lakehead.agent.gateway_answers import TryAgain
from lakehead.agent.gateway_choice import ChosenGateway, GatewayChoice
from lakehead.agent.gateway_connection import send_once
from lakehead.agent.spool import Spool
from lakehead.agent.spool_entry import SpoolEntry
from lakehead.agent.token_pause import TokenPause
from lakehead.clock import Clock

ACCEPT_EXISTING = "accept_existing"
"""The decision of an operator after which a conflicting batch may be dropped."""


class Next(Enum):
    """What is to be done with the batch."""

    FORGET = "forget"
    """It is accepted."""

    DROP = "drop"
    """An operator decided that the batch that was accepted under its identity counts."""

    SEND_AGAIN = "send again"
    """The same bytes, in its turn."""

    WAIT = "wait"
    """Something here failed: send it again after a while, as the spool has it."""

    PARK = "park"
    PARK_BOOT = "park boot"
    """With all others of its boot, which gateways take nothing more of."""

    REQUEUE = "requeue"
    """Its identity is void: nothing was ever accepted under it, and nothing ever will be."""

    NOTHING = "nothing"
    """It is not in the spool any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What earlier attempts to send a batch say about it."""

    gateway: ChosenGateway | None = None
    """Where it failed last. Another gateway is used if there is one."""

    in_doubt: bool = False
    """Whether one of them may have been accepted."""

    is_to_blame: bool = False
    """Whether the batch is held to be why it fails, and not the gateway: then that is not avoided for it."""


@dataclass(frozen=True, slots=True)
class Attempted:
    """What came of an attempt."""

    then: Next
    gateway: ChosenGateway | None = None
    """Where it was sent to; None if it was not sent."""

    code: str = ""
    """The gateway's word for the reason."""

    reason: str = ""
    in_doubt: bool = False
    """Whether it may have been accepted all the same."""

    requeued: SpoolEntry | None = None
    """A void batch as it is now."""


@dataclass(slots=True, kw_only=True)
class BatchAttempts:
    """Sends spooled batches, each call once. Nothing in the spool is changed but the authority of the first receipt."""

    spool: Spool
    gateways: GatewayChoice
    token: TokenPause
    authority: str
    """The acceptance authority whose receipts count; empty: the one that the spool knows, or of the first receipt."""

    clock: Clock
    alerts: Alerts
    counts: AgentCounts
    _pinning: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    @property
    def seconds_left(self) -> float:
        """How long nothing can be sent, because of a pause or because all gateways are avoided; 0 if something can."""
        return max(self.token.seconds_left, self.gateways.seconds_left)

    @property
    def pinned(self) -> str:
        """The acceptance authority whose receipts count; empty before the first receipt."""
        return self.authority or self.spool.authority

    async def once(self, entry: SpoolEntry, earlier: Earlier) -> Attempted:
        """Send a batch to a gateway, if there is one that is not avoided.

        Raises `Unavailable` and `OutcomeUnknown` if the spool's disk fails: then the same bytes are to be sent again.
        """
        batch = await self.spool.read(entry)
        if batch is None:
            return Attempted(Next.NOTHING)
        gateway = None if self.token.seconds_left else self.gateways.choose(rather_not=earlier.gateway)
        if gateway is None:
            return Attempted(Next.SEND_AGAIN, reason="No gateway can be asked now.")
        self.counts.attempts += 1
        token = self.token.to_send_with()
        begun, is_to_blame = self.clock.monotonic(), earlier.is_to_blame
        try:
            found = await send_once(
                gateway.connection,
                batch,
                token=token,
                in_doubt=earlier.in_doubt,
                clock=self.clock,
                authority=self.pinned,
            )
        except (TokenRefused, AgentRefused) as refused:
            self.token.refused(token, refused.reason)
            found = TryAgain(refused.reason, in_doubt=earlier.in_doubt)
            is_to_blame = False  # after the pause, another gateway may know the token
        except UnexpectedAnswer as error:
            self._tell_if_foreign(error, gateway)
            found = TryAgain(error.reason, in_doubt=True)
        except BatchRefused as refused:
            if refused.authority and not await self._is_ours(refused.authority, batch, gateway):
                found = TryAgain(refused.reason, in_doubt=True)
            else:
                return self._refused(refused, gateway, begun)
        except Exception as error:
            self.gateways.failed(gateway, repr(error), begun=begun)  # so that another one is asked the next time
            raise
        if isinstance(found, Receipt):
            return await self._accepted(found, batch, gateway, begun)
        return self._failed(found, gateway, begun, is_to_blame=is_to_blame)

    async def _accepted(self, receipt: Receipt, batch: FramedBatch, gateway: ChosenGateway, begun: float) -> Attempted:
        if not await self._is_ours(receipt.authority, batch, gateway):
            return self._failed(TryAgain("A foreign receipt.", in_doubt=True), gateway, begun, is_to_blame=False)
        self._works(gateway)
        self.counts.accepted += 1
        self.counts.accepted_before += receipt.duplicate
        self.counts.sent_bytes += len(batch.body)
        return Attempted(Next.FORGET, gateway)

    async def _is_ours(self, authority: str, batch: FramedBatch, gateway: ChosenGateway) -> bool:
        """Whether what an authority says counts. The first one does, and from then on no other."""
        async with self._pinning:  # of two first answers, one decides
            if not self.pinned:
                await self.spool.pin(authority)
        if authority != self.pinned:
            reason = f"It was answered by {authority!r}, and {self.pinned!r} counts."
            self._tell_if_foreign(ForeignAuthority(batch, reason), gateway)
        return authority == self.pinned

    def _failed(self, again: TryAgain, gateway: ChosenGateway, begun: float, *, is_to_blame: bool) -> Attempted:
        self.counts.failed_attempts += 1
        if is_to_blame:
            self.gateways.told_to_wait(gateway, again.after_seconds)
        else:
            self.gateways.failed(gateway, again.reason, begun=begun, after_seconds=again.after_seconds)
            self._tell_if_none_is_left(gateway, again.reason)
        return Attempted(Next.SEND_AGAIN, gateway, reason=again.reason, in_doubt=again.in_doubt)

    def _refused(self, refused: BatchRefused, gateway: ChosenGateway, begun: float) -> Attempted:
        if refused.code:
            self._works(gateway)
        else:  # the page of something else: others should not get it too
            self.gateways.failed(gateway, refused.reason, begun=begun)
        match refused:
            case IdentityConflict() if refused.resolution == ACCEPT_EXISTING:
                then = Next.DROP
            case VoidBatch():
                then = Next.REQUEUE
            case BootQuarantined():
                then = Next.PARK_BOOT
            case _:
                then = Next.PARK
        return Attempted(then, gateway, refused.code, refused.reason, refused.in_doubt)

    def _works(self, gateway: ChosenGateway) -> None:
        self.gateways.answered(gateway)
        self.token.worked()
        self.alerts.is_over(AlertKind.NO_GATEWAY)

    def _tell_if_none_is_left(self, gateway: ChosenGateway, reason: str) -> None:
        if self.gateways.seconds_left and not self.token.seconds_left:  # a refused token has an alert of its own
            last = f"The last one asked, {gateway.connection.name}: {reason}"
            self.alerts.tell(AlertKind.NO_GATEWAY, f"No gateway takes batches, and they wait on disk. {last}")

    def _tell_if_foreign(self, error: UnexpectedAnswer, gateway: ChosenGateway) -> None:
        if isinstance(error, ForeignAuthority):
            self.counts.foreign_receipts += 1
            self.alerts.tell(AlertKind.FOREIGN_AUTHORITY, f"{gateway.connection.name}: {error.reason}")
