"""Finds tables by their metadata files, for a catalog that was lost."""

import gzip
import json
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, FileType

from lakehead.errors import Unavailable
from lakehead.lake.commits import LAST_LANDING
from lakehead.lake.landing import SnapshotId
from lakehead.maintain.places import THREADS, place

METADATA = ".metadata.json"
NAME_PROPERTY = "lakehead.name"
"""The table property with the name of a table that was renamed: its folder has the old one."""

_DROPPED = "lakehead-dropped-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFile:
    """What one metadata file says of its table."""

    path: str
    uuid: str
    sequence: int
    updated_ms: int
    log: frozenset[str]
    """The metadata files before it, by their normalized names."""

    location: str = ""
    """Where it says that its table is, normalized."""

    manifest_lists: tuple[str, ...] = ()
    last_landing: SnapshotId | None = None
    name: str | None = None
    is_complete: bool = True
    """Whether the manifest lists of all its snapshots exist. Known only if there are several files to choose from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A table whose metadata files are in one folder."""

    folder: str
    """The table's folder: the parent of `metadata`."""

    files: tuple[MetadataFile, ...]
    """Those that no other one follows, not necessarily in an order: all but one come from commits that failed."""

    unreadable: tuple[str, ...] = ()
    """Metadata files in the same folder that are damaged or cannot be read: it is unknown what they are."""

    dropped: bool = False

    @property
    def is_copy(self) -> bool:
        """Whether the folder is not the one that the table says it is in."""
        return all(one.location != self.folder for one in self.files)

    @property
    def uuid(self) -> str:
        """The table's permanent identity."""
        return self.files[0].uuid

    def newest(self, landings: Mapping[SnapshotId, int]) -> MetadataFile:
        """The metadata file that the catalog had.

        By its content: one whose snapshots are all there, because a commit that failed may name snapshots that have
        expired since; the highest sequence number; of several, the one whose last landing is among the `landings` that
        the ledger has; then the one that was written last.
        """
        return max(
            self.files,
            key=lambda one: (one.is_complete, one.sequence, one.last_landing in landings, one.updated_ms, one.path),
        )


def drop_mark(folder: str, uuid: str) -> str:
    """The path of the file that tells that a table was dropped on purpose."""
    return f"{folder.rstrip('/')}/metadata/{_DROPPED}{uuid}"


def find_tables(filesystem: FileSystem, folder: str) -> list[FoundTable]:
    """Every table that has metadata files below a folder.

    Raises `Unavailable` if the folder cannot be listed.
    """
    try:
        listed = filesystem.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
    except OSError as error:
        raise Unavailable(f"The folder {folder} cannot be listed ({error}). Nothing was changed.") from error
    paths = [info.path for info in listed if info.type is FileType.File]
    marks = {posixpath.basename(path).removeprefix(_DROPPED) for path in paths if f"/metadata/{_DROPPED}" in path}
    wanted = [path for path in paths if path.endswith(METADATA)]
    with ThreadPoolExecutor(THREADS) as threads:
        read = dict(zip(wanted, threads.map(lambda path: _read(filesystem, path), wanted), strict=True))
    groups = defaultdict[tuple[str, str], list[MetadataFile]](list)
    unreadable = defaultdict[str, list[str]](list)
    for path, one in read.items():
        if one is None:
            unreadable[_folder_of(place(path))].append(place(path))
        else:
            groups[_folder_of(one.path), one.uuid].append(one)
    return [
        FoundTable(
            folder=where,
            files=tuple(_looked_up(filesystem, _tips(files))),
            unreadable=tuple(sorted(unreadable[where])),
            dropped=uuid in marks,
        )
        for (where, uuid), files in sorted(groups.items())
    ]


def _folder_of(metadata: str) -> str:
    return posixpath.dirname(posixpath.dirname(metadata))


def _looked_up(filesystem: FileSystem, files: list[MetadataFile]) -> list[MetadataFile]:
    """The files, with whether each is complete if there are several. Raises `Unavailable`."""
    if len(files) == 1:
        return files
    lists = sorted({path for one in files for path in one.manifest_lists})
    try:
        found = filesystem.get_file_info(lists)
    except OSError as error:
        raise Unavailable(f"The store does not answer ({error}). Nothing was changed.") from error
    missing = {path for path, info in zip(lists, found, strict=True) if info.type is FileType.NotFound}
    return [replace(one, is_complete=missing.isdisjoint(one.manifest_lists)) for one in files]


def _tips(files: Iterable[MetadataFile]) -> list[MetadataFile]:
    """The files that are not in the log of another one."""
    all_files = list(files)
    followed = frozenset[str]().union(*(one.log for one in all_files))
    return [one for one in all_files if one.path not in followed] or all_files


def _read(filesystem: FileSystem, path: str) -> MetadataFile | None:
    try:
        with filesystem.open_input_file(path) as source:
            body: bytes = source.read()
        text = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
        content: dict[str, Any] = json.loads(text)
        tag = content.get("refs", {}).get(LAST_LANDING)
        return MetadataFile(
            path=place(path),
            uuid=str(content["table-uuid"]),
            sequence=int(content.get("last-sequence-number", 0)),
            updated_ms=int(content["last-updated-ms"]),
            location=place(str(content.get("location", ""))).rstrip("/"),
            manifest_lists=tuple(
                place(str(each["manifest-list"])) for each in content.get("snapshots") or () if "manifest-list" in each
            ),
            log=frozenset(place(entry["metadata-file"]) for entry in content.get("metadata-log") or ()),
            last_landing=int(tag["snapshot-id"]) if tag else None,
            name=(content.get("properties") or {}).get(NAME_PROPERTY),
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return None
