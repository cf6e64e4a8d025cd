"""What can go wrong with a queue, beside what can go wrong with its store."""

from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable


class Fenced(LakeheadError):
    """Give up: another collector has taken over what this one held. Drop its batches and make a new collector."""


class Contended(Unavailable):
    """Try again later: too many others write the same manifest. Nothing was changed."""


class QueueFull(Unavailable):
    """Start a collector, or use more partitions: a manifest would grow too large. Nothing was changed."""


class Forgotten(OutcomeUnknown):
    """Do not repeat it: so many others have written since that nobody can tell any more what became of the change."""


class OutOfTurn(LakeheadError):
    """Acknowledge batches in the order in which they were handed out: an earlier one is still open."""


class Refused(LakeheadError):
    """Fix the call: it is too large, not an entry, or its ingestor or collector is closed. Nothing was changed."""
