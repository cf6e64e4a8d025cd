"""Units of work as directories: staged, published in one step, marked.

1. **Stage.** The rows are written to `_staging/<unit>/<attempt>`, a directory that no other attempt has, and marked
   `_SUCCESS`.
2. **Publish.** Where folders are renamed in one step, the directory becomes `published/<unit>`; elsewhere a pointer
   file comes to name it. Either is refused if the unit is published already: then ours is dropped.
3. **Mark.** `_LANDED` is written into the directory, and older generations of the unit leave the published place.

A crash before the second step leaves a directory that is never read, and the next run starts over: rows that an audit
rejected are never published later by mistake. A crash after it leaves a unit that the next run finds and marks.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from lakehead.errors import LakeheadError, OutcomeUnknown
from lakehead.ids import Ids
from lakehead.lake.filesink.file_names import LABEL, LANDED, SUCCESS, Places, key_of, name_of
from lakehead.lake.filesink.port import Files, Outcome
from lakehead.lake.filesink.published import Publication, all_publications
from lakehead.lake.filesink.records import Label, encode_label, encode_pointer
from lakehead.lake.landing import Unit

Write = Callable[[str], None]
"""Writes all rows of a unit as Parquet into a directory that does not exist yet."""


class PublishMode(Enum):
    """How a directory is published."""

    RENAME = "rename"
    POINTER = "pointer"


class Result(Enum):
    """What a landing came to."""

    PUBLISHED = "published"
    FOUND = "found"
    """The unit was published already, or another writer was faster."""

    SUPERSEDED = "superseded"
    """A newer generation of the unit is published. Readers read that one."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A unit that readers see, and the directory where they do."""

    unit: Unit
    result: Result
    directory: str


@dataclass(frozen=True, slots=True)
class StagedDirectory:
    """A unit's rows, complete, where no reader sees them."""

    unit: Unit
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSink:
    """Lands units of work below one root, each exactly once, also while other writers land there."""

    root: str
    files: Files
    ids: Ids
    way: PublishMode | None = None
    """Default: none, by rename where the file system renames folders in one step, by pointer elsewhere."""

    def land(self, unit: Unit, write: Write, *, watermark: str | None = None) -> Landed:
        """Stage and publish the unit unless it is published. On return readers see it, and it is marked."""
        return self.find(unit) or self.publish(self.stage(unit, write, watermark=watermark))

    def stage(self, unit: Unit, write: Write, *, watermark: str | None = None) -> StagedDirectory:
        """Write the unit's rows where no reader sees them. What `write` raises is raised, and nothing stays behind."""
        directory = f"{self._places.staging}/{name_of(unit)}/{self.ids.uuid()}"
        try:
            write(directory)
            self.files.create(f"{directory}/{LABEL}", encode_label(Label(unit, watermark)))
            self.files.create(f"{directory}/{SUCCESS}", b"")  # Spark has made it, unless it is set not to
        except BaseException:
            self.drop(StagedDirectory(unit, directory))
            raise
        return StagedDirectory(unit, directory)

    def drop(self, staged: StagedDirectory) -> None:
        """Remove what was staged and will not be published. If that fails, it is reported among the leftovers."""
        with suppress(LakeheadError):
            self.files.delete(staged.directory)

    def publish(self, staged: StagedDirectory) -> Landed:
        """Make staged rows the unit's, unless another writer was faster; then they are dropped."""
        if self._way is PublishMode.RENAME:
            target = f"{self._places.published}/{name_of(staged.unit)}"
            self.files.make_folder(self._places.published)
            outcome = self.files.rename(staged.directory, target)
        else:
            target = staged.directory
            self.files.make_folder(self._places.pointers)
            pointer = encode_pointer(target.removeprefix(f"{self._places.staging}/"))
            outcome = self.files.create(f"{self._places.pointers}/{name_of(staged.unit)}", pointer)
        landed = self.find(staged.unit)
        if landed is None:
            raise OutcomeUnknown(
                f"The unit {staged.unit.id!r} was staged in {staged.directory}, and is neither there nor published. "
                f"Find out who else removes files below {self.root}, and land the unit again."
            )
        if outcome is Outcome.DONE and landed.directory == target:
            return Landed(staged.unit, Result.PUBLISHED, target)
        if outcome is Outcome.TAKEN:
            self.drop(staged)
        else:
            # On a store that cannot refuse, a later pointer has replaced ours. Readers may have seen ours, so it is
            # not dropped: marked, it goes by its age.
            self._mark(staged.directory)
        return landed

    def find(self, unit: Unit) -> Landed | None:
        """The unit as readers see it, or None if it is not published. Also finishes what a crash left unfinished."""
        key = key_of(unit)
        while generations := all_publications(self._places, self.files).get(key, ()):
            newest = generations[-1].generation
            if newest < unit.generation:
                return None
            if directory := self._finish(generations):
                return Landed(unit, Result.SUPERSEDED if newest > unit.generation else Result.FOUND, directory)
        return None

    def recover(self) -> None:
        """Finish what crashes left unfinished for published units: write marks, and retire older generations."""
        for generations in all_publications(self._places, self.files).values():
            self._finish(generations)

    @property
    def _places(self) -> Places:
        return Places.below(self.root)

    @property
    def _way(self) -> PublishMode:
        return self.way or (PublishMode.RENAME if self.files.renames_at_once(self.root) else PublishMode.POINTER)

    def _finish(self, generations: Sequence[Publication]) -> str | None:
        """Mark every generation of a unit, and leave only the newest in the published place; returns its directory.

        None if it is no longer there: a newer one has come.
        """
        *older, newest = generations
        directory = newest.directory(self._places, self.files)
        if directory is not None:
            self._mark(directory)
        for each in older:
            if replaced := each.directory(self._places, self.files):
                self._mark(replaced)
            if not each.is_pointer:
                self._retire(each)
        return directory

    def _mark(self, directory: str) -> None:
        # Only where there is a directory: some stores would make one of the mark alone.
        if not self.files.exists(f"{directory}/{LANDED}") and self.files.exists(f"{directory}/{SUCCESS}"):
            self.files.create(f"{directory}/{LANDED}", b"")

    def _retire(self, replaced: Publication) -> None:
        """Move a directory that a newer generation has replaced back to staging, where it is removed by its age."""
        folder = f"{self._places.staging}/{replaced.path.rpartition('/')[2]}"
        self.files.make_folder(folder)
        self.files.rename(replaced.path, f"{folder}/{self.ids.uuid()}")  # or another writer has
