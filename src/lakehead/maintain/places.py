"""The files of a table's location: one normalized name for each; listed, and deleted."""

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType
from pyiceberg.table import Table as Iceberg

from lakehead.errors import Misconfigured, Unavailable
from lakehead.lake.stagers import filesystem_of

GC_ENABLED = "gc.enabled"
THREADS = 16
"""Concurrent requests."""

BATCH = 1_000
"""Deletions that are waiting for their turn at once."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_PATHS_ALONE = ("file", "hdfs", "viewfs")
"""Schemes whose files are identified by their path alone; a host before it is ignored."""


@dataclass(frozen=True, slots=True)
class File:
    """An existing file."""

    place: str
    size: int
    written_ns: int
    """When it was last written, by its file system's clock, in nanoseconds since the epoch."""


def check_may_remove(table: Iceberg) -> None:
    """Raise `Misconfigured` if the table's properties forbid removing its files, as Iceberg itself does."""
    enabled = table.metadata.properties.get(GC_ENABLED, "true")
    if enabled.lower() != "true":  # as in Java, every other value means false
        name = ".".join(table.name())
        raise Misconfigured(
            f"The table {name} has {GC_ENABLED} set to {enabled}: its catalog or another table may use its files too, "
            "so they must not be removed. Clean up with the catalog's own tools, or set it to true if nothing else "
            "uses them."
        )


def place(uri: str) -> str:
    """The normalized name of a file: the same for `file:/x`, `file:///x` and `/x`, and for `s3://b/k` and `s3a://b/k`.

    PyArrow's file systems use the same names. No part of a name is parsed as a query or a fragment.
    """
    found = _URI.fullmatch(uri)
    scheme, rest = (found[1].lower(), found[2]) if found else ("file", uri)
    with_host = rest.startswith("//") and found is not None
    rest = rest[2:] if with_host else rest
    if scheme not in _PATHS_ALONE:
        return rest
    path = "/" + rest.partition("/")[2] if with_host else rest
    return re.sub("/+", "/", path)


class Folder:
    """A folder of a table, and all below it."""

    def __init__(self, table: Iceberg, uri: str) -> None:
        self.place = place(uri).rstrip("/")
        self.filesystem: FileSystem = filesystem_of(table, uri)[0]

    def holds(self, name: str) -> bool:
        """Whether a file of this place is in the folder."""
        return name.startswith(f"{self.place}/")

    def files(self) -> list[File]:
        """Every file in the folder now. Empty if the folder does not exist."""
        try:
            found = self.filesystem.get_file_info(FileSelector(self.place, recursive=True, allow_not_found=True))
        except OSError as error:
            raise Unavailable(f"The folder {self.place} cannot be listed ({error}). Nothing was removed.") from error
        return [_file(info) for info in found if info.type is FileType.File]

    def first_bytes(self, name: str, size: int) -> bytes:
        """The first bytes of a file. Empty if it does not exist."""
        try:
            with self.filesystem.open_input_file(name) as source:
                begins: bytes = source.read(size)
                return begins
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise Unavailable(f"The file {name} cannot be read ({error}). Nothing was removed.") from error

    def delete(self, names: Iterable[str]) -> None:
        """Delete files. Ignores those that do not exist."""
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self._delete, names))

    def _delete(self, name: str) -> None:
        try:
            self.filesystem.delete_file(name)
        except OSError as error:
            # Object stores may delete the file and then fail to recreate its folder, so check whether it is gone.
            if self.filesystem.get_file_info(name).type is not FileType.NotFound:
                raise Unavailable(f"The file {name} cannot be deleted ({error}). Run it again later.") from error


def delete_files(table: Iceberg, uris: Sequence[str]) -> list[str]:
    """Delete files, wherever they are. Returns why some could not be deleted; those that do not exist are ignored."""
    failed: list[str] = []
    with ThreadPoolExecutor(THREADS) as threads:
        for start in range(0, len(uris), BATCH):
            reasons = threads.map(lambda uri: _delete(table, uri), uris[start : start + BATCH])
            failed += [reason for reason in reasons if reason is not None]
    return failed


def _delete(table: Iceberg, uri: str) -> str | None:
    """Delete a file, and the checksum that Hadoop keeps beside a local one. Returns why that failed, or None.

    By its name to the letter: PyIceberg's own deletion takes a name up to a `#` or `?`, which is another file.
    """
    name = place(uri)
    try:
        filesystem, _ = filesystem_of(table, uri)
        filesystem.delete_file(name)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, Misconfigured) as error:
        if not isinstance(error, OSError) or _may_exist(filesystem, name):
            return f"{uri}: {error}"
    if not _is_remote(uri):
        path = PurePosixPath(name)
        with suppress(OSError):  # the next sweep removes it
            filesystem.delete_file(str(path.with_name(f".{path.name}.crc")))
    return None


def _may_exist(filesystem: FileSystem, name: str) -> bool:
    """Whether a file is there after its deletion failed: as in `Folder`, a store may have deleted it before."""
    try:
        return filesystem.get_file_info(name).type is not FileType.NotFound
    except OSError:
        return True


def _is_remote(uri: str) -> bool:
    found = _URI.fullmatch(uri)
    return found is not None and found[1].lower() != "file"


def _file(info: FileInfo) -> File:
    # A file without a time counts as just written, and is kept.
    return File(info.path, info.size or 0, info.mtime_ns if info.mtime_ns is not None else 2**63 - 1)
