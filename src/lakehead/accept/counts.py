"""What a gateway's acceptance has done, in numbers that only grow."""

from dataclasses import dataclass


@dataclass(slots=True)
class AcceptCounts:
    """Counts of one process."""

    indexed: int = 0
    """Accepted batches whose derived indexes were written."""

    not_indexed: int = 0
    """Accepted batches whose derived indexes could not be written: the reconciler does it."""

    queued: int = 0
    """Accepted batches that were put on the queue of what is to be landed."""

    not_queued: int = 0
    """Accepted batches that could not be queued, or are not known to be: the reconciler does it."""

    left_to_reconciler: int = 0
    """Accepted batches for which nothing was tried, because too many others waited or the process ended."""
