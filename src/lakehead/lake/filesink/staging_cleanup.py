"""Lists directories that crashes left behind, and removes directories that were replaced, by their age."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.lake.filesink.file_names import LANDED, SUCCESS, Places, spelled_in
from lakehead.lake.filesink.port import Files
from lakehead.lake.filesink.published import all_publications, newest_directories

NS_PER_US = 1_000


class Missing(Enum):
    """Which step of a landing a directory lacks."""

    ROWS = "rows"
    """It was not written completely, or is still being written."""

    PUBLICATION = "publication"
    """It was written and never published, or is about to be."""

    MARK = "mark"
    """It is published, and `_LANDED` is not written yet: landing its unit again or `FileSink.recover` writes it."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """A directory that has not landed. Whether its writer is still running is unknown; an operator must decide."""

    directory: str
    missing: Missing


def leftovers(root: str, *, files: Files) -> list[Leftover]:
    """Every directory that has not landed, including those of running writers. They are never removed automatically."""
    places = Places.below(root)
    staged = list(_attempts(places, files))  # before we look at what is published: it only moves that way
    read = set(newest_directories(places, files).values())
    found = [Leftover(each, Missing.MARK) for each in read if not files.exists(f"{each}/{LANDED}")]
    for _, directory in staged:
        names = {each.name for each in files.list(directory)}  # none if it has been published since
        if names and directory not in read and not {SUCCESS, LANDED} <= names:
            found.append(Leftover(directory, Missing.PUBLICATION if SUCCESS in names else Missing.ROWS))
    return sorted(found, key=lambda each: each.directory)


def ttl_cleanup(root: str, ttl: timedelta, *, files: Files, clock: Clock, dry_run: bool = False) -> list[str]:
    """Remove staged directories that have landed and were replaced longer ago than the TTL. Returns them.

    A directory is removed if it is in staging, has both `_SUCCESS` and `_LANDED`, is not one that `published` returns,
    and both it and its replacement landed longer ago than the TTL: a reader that called `published` before the reload
    has that long to finish. Its age is that of the mark, by the file system's clock. Directories in the published
    folder, and those that have not landed, are kept at any age. A dry run removes nothing and returns the same.
    """
    if ttl < timedelta():
        raise Misconfigured(f"The TTL of staging is {ttl}, which is negative. Set it to zero or more.")
    places, before = Places.below(root), clock.now_ns() - ttl // timedelta(microseconds=1) * NS_PER_US
    landed = [
        (key, directory)
        for key, directory in _attempts(places, files)
        if files.exists(f"{directory}/{SUCCESS}") and _landed_before(before, directory, files)
    ]
    # After reading the marks: whatever is published from now on had no mark then.
    read = newest_directories(places, files)
    aged = [
        directory
        for key, directory in landed
        if directory != read.get(key) and (key not in read or _landed_before(before, read[key], files))
    ]
    if not dry_run:
        _remove_pointers(set(aged), places, files)
        for directory in aged:
            _remove(directory, files)
        _remove_empty_folders(before, places, files)
    return sorted(aged)


def _attempts(places: Places, files: Files) -> Iterator[tuple[str, str]]:
    """The directories in staging, each with the key of its unit's name."""
    for unit in files.list(places.staging):
        if unit.is_folder and (spelled := spelled_in(unit.name)):
            folder = f"{places.staging}/{unit.name}"
            yield from ((spelled.key, f"{folder}/{each.name}") for each in files.list(folder) if each.is_folder)


def _landed_before(moment_ns: int, directory: str, files: Files) -> bool:
    marked = files.modified_ns(f"{directory}/{LANDED}")
    return marked is not None and marked < moment_ns


def _remove(directory: str, files: Files) -> None:
    # The marks last: if we are killed in between, the next clean-up still recognizes the directory.
    for each in files.list(directory):
        if each.name not in (SUCCESS, LANDED):
            files.delete(f"{directory}/{each.name}")
    files.delete(directory)


def _remove_pointers(directories: set[str], places: Places, files: Files) -> None:
    """Remove the pointers of older generations to these directories, before the directories go."""
    for generations in all_publications(places, files).values():
        for each in generations[:-1]:
            if each.is_pointer and each.directory(places, files) in directories:
                files.delete(each.path)


def _remove_empty_folders(before: int, places: Places, files: Files) -> None:
    """Remove the empty folders of units that were published by rename, so long ago that no writer needs them."""
    read = newest_directories(places, files)
    for unit in files.list(places.staging):
        spelled = spelled_in(unit.name)
        if spelled and spelled.key in read and _landed_before(before, read[spelled.key], files):
            files.delete_if_empty(f"{places.staging}/{unit.name}")
