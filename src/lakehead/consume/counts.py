"""What a pipeline has done since it started, in figures."""

from dataclasses import dataclass


@dataclass(slots=True)
class ConsumeCounts:
    """Counts of one pipeline since it started. Read it at any time; only its coordinator writes it."""

    received: int = 0
    """Messages received, each delivery counted."""

    duplicates: int = 0
    """Units that had landed, or were given up, when a message announced them."""

    busy: int = 0
    """Units that another pipeline was working on."""

    ignored: int = 0
    """Records of messages that announce nothing to land, such as removals."""

    filtered: int = 0
    """Objects that no route takes."""

    landed: int = 0
    """Units that landed."""

    landings: int = 0
    rows: int = 0
    bytes: int = 0
    """Bytes of the objects that landed."""

    rescued: int = 0
    """Rows that have something in `_rescued`."""

    overlapping: int = 0
    """Records that had landed with another batch, are the same, and were dropped."""

    overlaps_quarantined: int = 0
    """Accepted batches that went to quarantine, because other records than theirs had landed."""

    records_quarantined: int = 0
    """The records of those that did not land."""

    failed: int = 0
    """Tries of units that failed."""

    dead_letters: int = 0
    acknowledged: int = 0
    """Messages acknowledged."""

    unacknowledged: int = 0
    """Acknowledgements that the queue refused: those messages come again."""

    lost: int = 0
    """Messages whose visibility could not be extended."""

    taken_over: int = 0
    """Units of another pipeline that had shown no sign of life."""

    removed: int = 0
    """Objects that were deleted, moved or tagged after they had landed."""

    not_removed: int = 0
    """Objects for which that failed: they are as they were."""

    pruned: int = 0
    """Units forgotten after the deduplication window."""
