"""What an agent tells about itself."""

from dataclasses import dataclass

from lakehead.agent.alerts import Alert
from lakehead.agent.gateway_choice import GatewayStatus
from lakehead.agent.parked import ParkedBatch
from lakehead.agent.spool_entry import SpoolStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """How an agent is."""

    agent_id: str
    spool_id: str
    """The id of its spool, which stays the same."""

    authority: str
    """The acceptance authority whose receipts count; empty before the first receipt."""

    spool: SpoolStatus
    """How much waits for how long, the current boots, what is damaged, and why nothing is taken if so."""

    parked: tuple[ParkedBatch, ...]
    """Batches that are kept and not sent in their turn, by number."""

    paused: str
    """Why nothing is sent; empty if there is no pause."""

    gateways: tuple[GatewayStatus, ...]
    alerts: tuple[Alert, ...]
    """What an operator should know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """What became of all that an agent was given before it was asked to send it."""

    waiting: int
    """Batches that still wait, because time was up."""

    parked: tuple[ParkedBatch, ...]
    """Batches that are parked. All others were accepted, or an operator decided that they may be dropped."""

    damaged: int
    """Files that were found damaged meanwhile, and are set aside. An operator should look at them."""

    @property
    def is_accepted(self) -> bool:
        """Whether all of it was accepted."""
        return not (self.waiting or self.parked or self.damaged)
