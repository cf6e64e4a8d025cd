"""Errors of an agent's spool. Each class says what the caller should do."""

from lakehead.errors import Misconfigured, Unavailable


class SpoolFull(Unavailable):
    """Try again later: the spool or its disk has no room. Nothing was taken, and nothing was dropped. HTTP: 503."""


class SpoolUnusable(Unavailable):
    """Look at the disk, then try again: it failed. None of it was promised to be kept. HTTP: 503."""


class KeyReused(Misconfigured):
    """Use a new Idempotency-Key for another request: this one was used with another body. HTTP: 422."""


class RecordsTooLarge(Misconfigured):
    """Send the records in several requests: these do not fit into one batch. HTTP: 413."""


class SpoolLocked(Misconfigured):
    """Stop the other agent first: it has the spool open."""
