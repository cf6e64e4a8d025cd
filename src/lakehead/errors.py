"""The base classes of all errors, by what the caller should do next."""

import errno
import os


class LakeheadError(Exception):
    """The base class of all errors that Lakehead raises on purpose. The message is written for people."""

    def __init__(self, *args: object, fault: str = "") -> None:
        super().__init__(*args)
        self.fault = fault
        """Distinguishes the errors that one line raises, in one or two constant words: part of the stack hash."""


class Misconfigured(LakeheadError):
    """Fix the input: a URL, a setting, a bucket or credentials. The same call fails again."""


class Unavailable(LakeheadError):
    """Try again later. Nothing was changed."""


class DiskFull(Unavailable):
    """Free disk space, then try again: something could not be written. Nothing was published."""

    @classmethod
    def of(cls, error: BaseException, path: object) -> "DiskFull | None":
        """Return a `DiskFull` if the error says that the disk of a path is full; None for any other error.

        Errors of Java, Rust and SQLite have no errno, and are recognized by the system's message.
        """
        number = error.errno if isinstance(error, OSError) else None
        text = str(error)
        reason = _FULL.get(number or 0) or next(
            (reason for reason in (*_FULL.values(), _SQLITE_FULL) if reason in text), None
        )
        return (
            None
            if reason is None
            else cls(f"The disk of {path} is full ({reason}). Make room there, and run it again.")
        )


_FULL = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
"""No space left on the disk, over the user's quota, over the file size limit of the process."""

_SQLITE_FULL = "database or disk is full"


class OutcomeUnknown(LakeheadError):
    """Check before doing it again: the change may have been applied, or may be applied later."""
