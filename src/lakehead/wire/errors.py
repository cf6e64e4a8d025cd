"""Errors of codecs."""

from lakehead.errors import LakeheadError


class Unreadable(LakeheadError):
    """Repair the stored object: it is damaged or not in the expected format. Reading it again fails again."""


class NewerFormat(Unreadable):
    """Update the reader: a newer Lakehead wrote the stored object. It is not damaged, and never goes to quarantine."""
