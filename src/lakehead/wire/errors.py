"""What a codec says of bytes that it cannot believe."""

from lakehead.errors import LakeheadError


class Unreadable(LakeheadError):
    """Repair or set aside what is stored: it is not what it should be. Reading it again will fail again."""


class NewerFormat(Unreadable):
    """Update the reader: what is stored was written by a newer Lakehead. It is not damaged, and never set aside."""
