"""A merge that is written and not visible to readers yet."""

from dataclasses import dataclass

from pyiceberg.manifest import DataFile as IcebergDataFile

from lakehead.lake.staged_rows import NewFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """Files to add to a table and files to remove from it, good only at the head that they were made at."""

    new: NewFiles
    """The changes' rows, and the remaining rows of files that were rewritten."""

    deletes: tuple[IcebergDataFile, ...] = ()
    """Position-delete files, each for one data file."""

    removed: tuple[tuple[str, str], ...] = ()
    """Data and delete files to remove: each with the manifest that has it, then its own path."""

    inserted: int = 0
    updated: int = 0

    @property
    def changes_nothing(self) -> bool:
        """Whether the table stays as it is."""
        return not (self.new.files or self.deletes or self.removed)

    @property
    def sizes(self) -> dict[str, int]:
        """The locations of all new files, with their sizes."""
        deletes = {file.file_path: file.file_size_in_bytes for file in self.deletes}
        return {file.uri: file.size for file in self.new.files} | deletes
