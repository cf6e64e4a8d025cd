"""Files where a table lies: one name for each, however its metadata spells it; listed, and deleted."""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType
from pyiceberg.table import Table as Iceberg

from lakehead.errors import Misconfigured, Unavailable
from lakehead.lake.lane import filesystem_of

GC_ENABLED = "gc.enabled"
THREADS = 16
"""Requests that are under way at once."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_PATHS_ALONE = ("file", "hdfs", "viewfs")
"""Schemes whose files are named by their path: what stands before it is a host or nothing."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that is there."""

    place: str
    size: int
    written_ns: int
    """When its file system says that it was last written, in nanoseconds since the epoch."""


def check_may_remove(table: Iceberg) -> None:
    """Raise `Misconfigured` where the table's owner has said that nobody removes its files, as Iceberg itself does."""
    said = table.metadata.properties.get(GC_ENABLED, "true")
    if said.lower() != "true":  # so does Java: whatever is not true is false
        name = ".".join(table.name())
        raise Misconfigured(
            f"The table {name} has {GC_ENABLED} set to {said}: its catalog, or another table, uses its files too, and "
            "they are not ours to remove. Clean up by the catalog's own means, or set it to true if that is not so."
        )


def place(uri: str) -> str:
    """The one name of a file: `file:/x`, `file:///x` and `/x` are the same, and so are `s3://b/k` and `s3a://b/k`.

    It is also the name that PyArrow's file systems have for it. Nothing in a name is taken for a query or a fragment.
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
        """Every file that is there now. A folder that does not exist has none."""
        try:
            found = self.filesystem.get_file_info(FileSelector(self.place, recursive=True, allow_not_found=True))
        except OSError as error:
            raise Unavailable(f"The folder {self.place} cannot be listed ({error}). Nothing was removed.") from error
        return [_file(info) for info in found if info.type is FileType.File]

    def first_bytes(self, name: str, size: int) -> bytes:
        """How a file begins. Empty if it is gone."""
        try:
            with self.filesystem.open_input_file(name) as source:
                begins: bytes = source.read(size)
                return begins
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise Unavailable(f"The file {name} cannot be read ({error}). Nothing was removed.") from error

    def delete(self, names: Iterable[str]) -> None:
        """Delete files. One that is gone already is fine."""
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(self._delete, names))

    def _delete(self, name: str) -> None:
        try:
            self.filesystem.delete_file(name)
        except OSError as error:
            # Object stores delete and then fail to keep a folder where there is none, so what counts is what is there.
            if self.filesystem.get_file_info(name).type is not FileType.NotFound:
                raise Unavailable(f"The file {name} cannot be deleted ({error}). Run it again later.") from error


def _file(info: FileInfo) -> File:
    # A file without a time is taken for one written just now, and stays.
    return File(info.path, info.size or 0, info.mtime_ns if info.mtime_ns is not None else 2**63 - 1)
