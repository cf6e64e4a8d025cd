"""Raw retention: removes data files of old slices from a raw table, once the mirror or the final table has them.

The files leave main in one commit, which also records the table's floor. They stay on the store until the snapshots
that have them expire. A file that holds rows of a younger or unmerged slice too, as after a compaction, stays whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table as Iceberg
from pyiceberg.types import DateType, LongType, PrimitiveType

from lakehead.errors import Unavailable
from lakehead.lake.commits import live_files, without_files
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.ports import Moved
from lakehead.lake.raw_columns import GENERATION, LOAD_DATE, SLICE
from lakehead.lake.raw_floor import RawFloor, set_floor
from lakehead.lake.stagers import filesystem_of

TRIES = 10
EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRetention:
    """Which slices of a raw table may go."""

    before: date
    """Slices of earlier load dates may go."""

    upto: int
    """The last slice that may go: readers have it, and it is not a full table's last load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRemoved:
    """What was removed from a raw table, or would be."""

    files: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0
    floor: RawFloor | None = None
    """The floor that this removal records; None if nothing was removed."""


def remove_old_slices(table: IcebergTable, retention: RawRetention, *, dry_run: bool = False) -> RawRemoved:
    """Remove the files of slices that may go, and record the floor in the same commit.

    Raises `Unavailable` if landings committed first at every attempt, and `OutcomeUnknown`.
    """
    for _ in range(TRIES):
        iceberg = table.load()
        found = list(_old_files(iceberg, retention))
        removed = RawRemoved(
            files=tuple(sorted(file.file_path for file, _ in found)),
            rows=sum(file.record_count for file, _ in found),
            bytes=sum(file.file_size_in_bytes for file, _ in found),
            floor=max((floor for _, floor in found), default=None),
        )
        if dry_run or removed.floor is None:
            return removed
        floor, files = removed.floor, [file for file, _ in found]
        try:
            table.commit(
                head_of(iceberg.metadata),
                lambda now, floor=floor, files=files: (  # type: ignore[misc] # bound for this attempt
                    (*without_files(now, files), set_floor(now.metadata, floor)),
                    (),
                ),
            )
        except Moved:
            continue
        return removed
    raise Unavailable(
        f"Landings in {table.name} committed before its raw retention {TRIES} times. Nothing was removed; run it again."
    )


def load_dates_before(today: date, days: int) -> date:
    """The first load date that is kept: slices are kept for this many days after their load date."""
    return today - timedelta(days=days)


def _old_files(iceberg: Iceberg, retention: RawRetention) -> Iterator[tuple[DataFile, RawFloor]]:
    """The files that may go, each with the newest slice in it."""
    for file in live_files(iceberg):
        loaded = _largest(iceberg, file, LOAD_DATE, DateType())
        if loaded is None or EPOCH + timedelta(days=loaded) >= retention.before:
            continue
        newest = _largest(iceberg, file, SLICE, LongType())
        generation = _largest(iceberg, file, GENERATION, LongType())
        if newest is not None and generation is not None and newest <= retention.upto:
            yield file, RawFloor(generation, newest)


def _largest(iceberg: Iceberg, file: DataFile, column: str, kind: PrimitiveType) -> int | None:
    """The largest value of one of our columns in a file. None if it is unknown: then the file stays.

    Iceberg keeps statistics of a table's first 100 columns only, and ours are the last, so the file's own footer is
    read where they are missing.
    """
    bound = (file.upper_bounds or {}).get(iceberg.schema().find_field(column).field_id)
    if bound is not None:
        return int(from_bytes(kind, bound))
    filesystem, path = filesystem_of(iceberg, file.file_path)
    with filesystem.open_input_file(path) as source:
        footer = pq.ParquetFile(source).metadata
    number = footer.schema.names.index(column) if column in footer.schema.names else None
    if number is None:
        return None
    parts = [footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups)]
    if not parts or any(part is None or not part.has_min_max for part in parts):
        return None
    largest = max(part.max for part in parts)
    return (largest - EPOCH).days if isinstance(largest, date) else int(largest)
