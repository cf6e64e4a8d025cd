"""The file system interface of a file sink."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Outcome(Enum):
    """The outcome of a step that must not overwrite."""

    DONE = "done"
    TAKEN = "taken"
    """Something has that name already; nothing was changed."""

    ABSENT = "absent"
    """What was to be renamed, or the folder of the new name, is not there; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder."""

    name: str
    is_folder: bool


class Files(Protocol):
    """A file system. Its methods raise `Unavailable` if reading failed and nothing was changed, `OutcomeUnknown` if a
    change may have been made, and `Misconfigured` if an operator must act."""

    def renames_at_once(self, path: str) -> bool:
        """Whether the file system of this path renames a folder in one step, and refuses a name that is taken."""
        ...

    def list(self, folder: str) -> Sequence[Entry]:
        """The names in a folder, in no order; none where it is absent."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or a folder is there."""
        ...

    def read(self, file: str) -> bytes | None:
        """All of a file, or None where it is absent."""
        ...

    def modified_ns(self, file: str) -> int | None:
        """When a file was written, in nanoseconds since the epoch by the file system's clock; None if absent."""
        ...

    def make_folder(self, folder: str) -> None:
        """Make a folder and those above it. One that is there is left as it is."""
        ...

    def create(self, file: str, body: bytes) -> Outcome:
        """Write a file that does not exist yet. Readers never see a part of it."""
        ...

    def rename(self, folder: str, target: str) -> Outcome:
        """Give a folder a name that is free, in one step where `renames_at_once` says so."""
        ...

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it. What is absent is left absent."""
        ...

    def delete_if_empty(self, folder: str) -> None:
        """Remove a folder unless something is in it."""
        ...
