"""The published directories of a file sink."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lakehead.lake.filesink.file_names import LABEL, Places, spelled_in
from lakehead.lake.filesink.port import Files
from lakehead.lake.filesink.records import BrokenRecord, Label, decode_label, decode_pointer


@dataclass(frozen=True, slots=True)
class Publication:
    """One generation of a unit that has been published, by its directory's name or by a pointer."""

    generation: int
    path: str
    is_pointer: bool

    def directory(self, places: Places, files: Files) -> str | None:
        """Where its rows are, or None if the pointer is gone, which only happens to one that was replaced."""
        if not self.is_pointer:
            return self.path
        body = files.read(self.path)
        return None if body is None else f"{places.staging}/{decode_pointer(body, file=self.path)}"


def published(root: str, *, files: Files) -> list[str]:
    """The directories a reader should read: every unit that is published, once, in its newest generation.

    Each is complete, and a reload replaces a unit's rows from one call to the next. What is returned stays where it is
    until its unit is reloaded.
    """
    return sorted(newest_directories(Places.below(root), files).values())


def label_of(directory: str, *, files: Files) -> Label:
    """Which unit a published directory holds, and the watermark it was staged with."""
    file = f"{directory}/{LABEL}"
    body = files.read(file)
    if body is None:
        raise BrokenRecord(f"{directory} has no {LABEL} file. It is not a directory that a file sink has published.")
    return decode_label(body, file=file)


def newest_directories(places: Places, files: Files) -> Mapping[str, str]:
    """The directory of each unit's newest generation, by the key of the unit's name."""
    found: dict[str, str] = {}
    while True:
        publications = all_publications(places, files)
        for key, generations in publications.items():
            directory = generations[-1].directory(places, files)
            if directory is None:
                break  # replaced since we listed, and already cleaned up
            found[key] = directory
        else:
            return found
        found.clear()


def all_publications(places: Places, files: Files) -> Mapping[str, Sequence[Publication]]:
    """Every generation that is published, oldest first, by the key of the unit's name."""
    found: dict[str, list[Publication]] = defaultdict(list)
    for key, publication in [*_pointers(places, files), *_directories(places, files)]:
        found[key].append(publication)
    for generations in found.values():
        generations.sort(key=lambda each: (each.generation, not each.is_pointer))
    return found


def _directories(places: Places, files: Files) -> list[tuple[str, Publication]]:
    """The directories in the published folder, listed until two listings agree.

    Listings are not atomic: a reload between two pages could hide both generations of a unit, the new one because it
    came too late and the old one because it was already moved.
    """
    seen = None
    while (names := sorted(each.name for each in files.list(places.published) if each.is_folder)) != seen:
        seen = names
    return list(_spelled(places.published, names, is_pointer=False))


def _pointers(places: Places, files: Files) -> Iterator[tuple[str, Publication]]:
    names = [each.name for each in files.list(places.pointers) if not each.is_folder]
    return _spelled(places.pointers, names, is_pointer=True)


def _spelled(folder: str, names: Sequence[str], *, is_pointer: bool) -> Iterator[tuple[str, Publication]]:
    for name in names:
        if spelled := spelled_in(name):
            yield spelled.key, Publication(spelled.generation, f"{folder}/{name}", is_pointer)
