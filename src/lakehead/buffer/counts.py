"""What a process has done with its queues, as plain numbers: whoever exports them reads them here."""

from dataclasses import dataclass, field

PRODUCER, CONSUMER = "producer", "consumer"
"""The two roles whose manifests are written."""

DURATIONS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds, in seconds, of the classes that flush durations are counted in; one more holds the rest."""


def _by_role() -> dict[str, int]:
    return {PRODUCER: 0, CONSUMER: 0}


@dataclass(slots=True)
class Counts:
    """Numbers that only grow, but for those that say how things stand now."""

    batches_flushed: int = 0
    entries_flushed: int = 0
    bytes_flushed: int = 0
    flushes_failed: int = 0
    flush_seconds: float = 0.0
    flush_classes: list[int] = field(default_factory=lambda: [0] * (len(DURATIONS) + 1))
    bytes_unflushed: int = 0
    """How things stand: bytes of entries that are in memory and not yet durable."""

    batches_stored_again: int = 0
    """Batches stored a second time because orphans were deleted meanwhile."""

    batches_collected: int = 0
    entries_collected: int = 0
    bytes_collected: int = 0
    acks: int = 0
    claims_lost: int = 0
    quarantined: int = 0
    cleaned_up: int = 0
    cleanups_failed: int = 0
    heartbeats_failed: int = 0
    orphans_deleted: int = 0
    manifest_writes: dict[str, int] = field(default_factory=_by_role)
    manifest_conflicts: dict[str, int] = field(default_factory=_by_role)
    queue_length: dict[str, int] = field(default_factory=dict)
    """How things stand: locations not yet acknowledged when the queue was last looked at, by producer manifest."""

    queue_bytes: dict[str, int] = field(default_factory=dict)
    """How things stand: bytes of the batches that wait, likewise."""

    oldest_seconds: dict[str, float] = field(default_factory=dict)
    """How things stand: age of the first that waits, likewise."""

    def flushed(self, *, entries: int, size: int, seconds: float) -> None:
        """One batch is durable."""
        self.batches_flushed += 1
        self.entries_flushed += entries
        self.bytes_flushed += size
        self.flush_seconds += seconds
        self.flush_classes[sum(seconds > bound for bound in DURATIONS)] += 1
