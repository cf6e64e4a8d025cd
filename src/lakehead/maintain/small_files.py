"""Finds the small data files that are worth compacting, without rewriting large ones over and over.

Files are compacted with files of about their own size: thousands of tiny ones become some of medium size, and those
later become large ones. So a row is rewritten once for each size class, and not with every compaction.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table as Iceberg
from pyiceberg.table import TableProperties
from pyiceberg.utils.properties import property_as_int

SMALL = 0.75
"""The part of the table's target file size below which a file is small, as in Iceberg's own compaction."""

CLASS_FACTOR = 32
"""The largest files of a size class are this many times larger than those of the class below."""

CLASSES = 3

_Group: TypeAlias = tuple[int, Any, int]
"""The partition spec, the partition and the size class of files that are compacted together."""


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """The small files of a table."""

    most: int
    """The largest number of small files that one partition has in one size class."""

    data_files: int
    """All data files of the table, small or not."""

    below_bytes: int | None
    """Files smaller than this are to be compacted; None if no partition has enough of them."""


class SmallFileCounter:
    """Counts the small files of one table. A manifest never changes, so each is read once."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, int], tuple[Counter[_Group], int]] = {}

    def count(self, table: Iceberg, enough: int) -> SmallFiles:
        """Count main's small files. `enough` is how many of one class a partition must have to be compacted."""
        limits = size_classes(table)
        snapshot = table.current_snapshot()
        manifests = (
            [one for one in snapshot.manifests(table.io) if one.content is ManifestContent.DATA] if snapshot else []
        )
        counted = {}
        for manifest in manifests:
            key = manifest.manifest_path, limits[-1]
            counted[key] = self._counted.get(key) or _counted(table, manifest, limits)
        self._counted = counted
        groups: Counter[_Group] = Counter()
        for small, _ in counted.values():
            groups.update(small)
        full = [group[2] for group, number in groups.items() if number >= enough]
        return SmallFiles(
            most=max(groups.values(), default=0),
            data_files=sum(files for _, files in counted.values()),
            below_bytes=limits[min(full)] if full else None,
        )


def size_classes(table: Iceberg) -> tuple[int, ...]:
    """The sizes in bytes below which a file is in each class of small files, the smallest first."""
    name, default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    target = property_as_int(table.metadata.properties, name, default) or default
    return tuple(int(target * SMALL / CLASS_FACTOR**number) for number in reversed(range(CLASSES)))


def _counted(table: Iceberg, manifest: ManifestFile, limits: tuple[int, ...]) -> tuple[Counter[_Group], int]:
    small: Counter[_Group] = Counter()
    files = 0
    for size, spec, partition in _sizes(table, manifest):
        files += 1
        group = next((number for number, limit in enumerate(limits) if size < limit), None)
        if group is not None:
            small[spec, partition, group] += 1
    return small, files


def _sizes(table: Iceberg, manifest: ManifestFile) -> Iterator[tuple[int, int, Any]]:
    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
        yield entry.data_file.file_size_in_bytes, manifest.partition_spec_id, entry.data_file.partition
