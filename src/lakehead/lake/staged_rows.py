"""Staged rows: data files that no snapshot refers to, or a branch other than main."""

from dataclasses import dataclass
from enum import Enum

from lakehead.lake.datafiles import DataFile
from lakehead.lake.landing import SnapshotId, Unit


class Change(Enum):
    """What new files do to a table."""

    APPEND = "append"
    OVERWRITE_PARTITIONS = "overwrite partitions"
    """Replace the rows of the partitions that the new files are in; keep the others."""
    REPLACE = "replace"
    """Replace all rows of the table."""
    REPLACE_FILES = "replace files"
    """Replace certain data files; keep the others."""


@dataclass(frozen=True, slots=True)
class Read:
    """What one task read of one unit."""

    unit: Unit
    part: int
    """Which of the parts that the unit was split into."""
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFiles:
    """Data files, and what they do to the table when they are published."""

    files: tuple[DataFile, ...]
    change: Change
    schema_id: int
    spec_id: int
    sort_order_id: int | None
    reads: tuple[Read, ...] = ()
    """What the tasks read; empty if the rows of a unit are not read by our own tasks."""
    parts: int = 0
    """How many parts the units were split into."""
    replaced: frozenset[str] = frozenset()
    """The data files that the new ones replace, for `REPLACE_FILES`."""

    @property
    def rows(self) -> int:
        """How many rows the files hold."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch with one snapshot of ours on top of the fenced head."""

    name: str
    head: SnapshotId
