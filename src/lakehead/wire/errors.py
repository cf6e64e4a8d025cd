"""Errors of codecs."""

from lakehead.errors import LakeheadError


class Unreadable(LakeheadError):
    """Repair the stored object: it is damaged or not in the expected format. Reading it again fails again."""


class NewerFormat(Unreadable):
    """Update the reader: a newer Lakehead wrote the stored object. It is not damaged, and never goes to quarantine."""


class BadFrame(Unreadable):
    """Fix the sender: the bytes are not a valid frame. `code` says why in one stable word, for programs."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason, fault=code)
        self.code = code

    def __reduce__(self) -> tuple[type["BadFrame"], tuple[str, str]]:
        return BadFrame, (self.code, str(self))


class TooLarge(Unreadable):
    """Send smaller batches: the frame is above a limit of this reader. Nothing was allocated for it."""


class InvalidIdentity(LakeheadError, ValueError):
    """Fix the input: no batch can have this agent, boot and range of sequence numbers."""


class InvalidKeyPart(LakeheadError, ValueError):
    """Fix the input: an object key cannot hold this hash, time or name."""


class InvalidRecord(LakeheadError, ValueError):
    """Fix the input: a record that says this could not be read back. Nothing was stored."""
