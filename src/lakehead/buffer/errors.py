"""Errors of a queue, beside those of its store. Each class says what the caller should do."""

from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable


class Fenced(LakeheadError):
    """Discard the batches that are not acknowledged, and make a new collector: another one has taken over."""


class QueueContended(Unavailable):
    """Try again later: too many others write the same manifest. Nothing was changed."""


class QueueFull(Unavailable):
    """Start a collector, or use more partitions: a manifest would grow too large. Nothing was changed."""


class OutcomeLost(OutcomeUnknown):
    """Do not repeat the call: so many others have written since that its outcome can no longer be found out."""


class AckOutOfOrder(LakeheadError):
    """Acknowledge batches in the order in which they were handed out: an earlier one is not acknowledged yet."""


class InvalidCall(LakeheadError):
    """Fix the call: an argument is invalid, or the ingestor or collector is closed. Nothing was changed."""
