"""Reads which files a manifest list and a manifest have. A file that is missing or damaged is an error."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType

from lakehead.errors import LakeheadError, Unavailable
from lakehead.maintain.avro_fields import read_fields

Read = TypeVar("Read")

# The few fields that are needed, by their ids in Iceberg's specification.
_LIST = StructType(
    NestedField(500, "manifest_path", StringType(), required=True),
    NestedField(501, "manifest_length", LongType(), required=True),
)
_FILE = StructType(NestedField(100, "file_path", StringType(), required=True))
_MANIFEST = StructType(
    NestedField(0, "status", IntegerType(), required=True), NestedField(2, "data_file", _FILE, required=True)
)
_DELETED = ManifestEntryStatus.DELETED.value


class Incomplete(LakeheadError):
    """A table's metadata refers to a file that does not exist, so the files that this one refers to are unknown."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest, as a manifest list has it."""

    uri: str
    length: int
    """Its size in bytes."""


def manifests_of(io: FileIO, manifest_list: str) -> tuple[Manifest, ...]:
    """The manifests of a manifest list. Raises `Incomplete`, `Unavailable` and `Unreadable`."""
    records = _explained(manifest_list, lambda: read_fields(io, manifest_list, _LIST))
    return tuple(Manifest(str(record[0]), int(record[1])) for record in records)


def live_files_of(io: FileIO, manifest: Manifest) -> tuple[str, ...]:
    """The data or delete files that a manifest has as added or existing. Raises as `manifests_of` does."""
    records = _explained(manifest.uri, lambda: read_fields(io, manifest.uri, _MANIFEST, manifest.length))
    return tuple(str(record[1][0]) for record in records if record[0] != _DELETED)


def _explained(uri: str, read: Callable[[], Read]) -> Read:
    try:
        return read()
    except FileNotFoundError:
        raise Incomplete(
            f"The table refers to {uri}, which does not exist. No file was removed. If snapshots were expired just "
            "now, run it again; if the file was lost, restore it from a backup."
        ) from None
    except OSError as error:
        raise Unavailable(f"The file {uri} cannot be read ({error}). No file was removed.") from error
