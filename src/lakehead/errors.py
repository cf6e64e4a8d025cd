"""Every error of ours, told apart by what the caller should do next."""

import errno
import os


class LakeheadError(Exception):
    """The root of all errors that Lakehead raises on purpose. Its message is a sentence for a person."""

    def __init__(self, *args: object, fault: str = "") -> None:
        super().__init__(*args)
        self.fault = fault
        """Tells apart the faults that one place raises, in a word or two that never change: part of the stack hash."""


class Misconfigured(LakeheadError):
    """Fix the input: a URL, a setting, a bucket or credentials. The same call will fail again."""


class Unavailable(LakeheadError):
    """Try again later. Nothing was changed."""


class DiskFull(Unavailable):
    """There is no room where something was to be written. Make room, then try again. Nothing was published."""

    @classmethod
    def of(cls, error: BaseException, path: object) -> "DiskFull | None":
        """What an error means that says that the disk of a path is full; None for any other error.

        Also for errors of other languages, which have no number: their words are the system's.
        """
        number = error.errno if isinstance(error, OSError) else None
        said = str(error)
        words = _FULL.get(number or 0) or next((words for words in (*_FULL.values(), _SQLITES) if words in said), None)
        return (
            None if words is None else cls(f"The disk of {path} is full ({words}). Make room there, and run it again.")
        )


_FULL = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)}
"""No space left, no space left for this user, and no space left for this file: limits of a disk, a user, a process."""

_SQLITES = "database or disk is full"


class OutcomeUnknown(LakeheadError):
    """The change may have happened, may not, or may happen yet. Look before doing it again."""
