"""What an agent has done, in numbers that only grow."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class AgentCounts:
    """Counts of one process."""

    requests: int = 0
    """Calls and requests whose records were put on disk."""

    records: int = 0
    """Records that were put on disk."""

    duplicates: int = 0
    """Requests that were known, and answered without being put on disk again."""

    refused: int = 0
    """Calls and requests that the spool did not take, because it was full or could not be used."""

    attempts: int = 0
    """Attempts to send a batch."""

    failed_attempts: int = 0
    """Those after which the same bytes had to be sent again."""

    accepted: int = 0
    """Batches that a gateway accepted, or had accepted before."""

    accepted_before: int = 0
    """Those of them that were accepted before: an earlier answer was lost."""

    sent_bytes: int = 0
    """Bytes of the frames that were accepted."""

    parked: Counter[str] = field(default_factory=Counter)
    """Batches that were parked, by the gateway's word for the reason."""

    requeued: int = 0
    """Void batches whose records got new sequence numbers."""

    dropped: int = 0
    """Parked batches that were dropped: an operator decided so, at the gateway or here."""

    pauses: int = 0
    """Times that all sending was paused, because a gateway refused the token or the agent."""

    foreign_receipts: int = 0
    """Receipts of another acceptance authority. They count for nothing."""

    quarantined_boots: int = 0
    """Boots that were left because gateways take nothing more of them."""

    unexpected_errors: int = 0
    """Errors that nobody foresaw. The batch is sent again."""
