"""Finds tables by their metadata files, for a catalog that was lost."""

import gzip
import json
import posixpath
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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

    last_landing: SnapshotId | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """A table whose metadata files are in one folder."""

    folder: str
    """The table's folder: the parent of `metadata`."""

    files: tuple[MetadataFile, ...]
    """Those that no other one follows, not necessarily in an order: all but one come from commits that failed."""

    dropped: bool = False

    @property
    def uuid(self) -> str:
        """The table's permanent identity."""
        return self.files[0].uuid

    def newest(self, landings: Mapping[SnapshotId, int]) -> MetadataFile:
        """The metadata file that the catalog had.

        By its content: the highest sequence number; of several, the one whose last landing is among the `landings` that
        the ledger has; then the one that was written last.
        """
        return max(self.files, key=lambda one: (one.sequence, one.last_landing in landings, one.updated_ms, one.path))


def drop_mark(folder: str, uuid: str) -> str:
    """The path of the file that tells that a table was dropped on purpose."""
    return f"{folder.rstrip('/')}/metadata/{_DROPPED}{uuid}"


def find_tables(filesystem: FileSystem, folder: str) -> list[FoundTable]:
    """Every table that has metadata files below a folder. Files that cannot be read are left out.

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
        read = [one for one in threads.map(lambda path: _read(filesystem, path), wanted) if one is not None]
    groups = defaultdict[tuple[str, str], list[MetadataFile]](list)
    for one in read:
        groups[posixpath.dirname(posixpath.dirname(one.path)), one.uuid].append(one)
    return [
        FoundTable(folder=where, files=tuple(_tips(files)), dropped=uuid in marks)
        for (where, uuid), files in sorted(groups.items())
    ]


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
            log=frozenset(place(entry["metadata-file"]) for entry in content.get("metadata-log") or ()),
            last_landing=int(tag["snapshot-id"]) if tag else None,
            name=(content.get("properties") or {}).get(NAME_PROPERTY),
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return None
