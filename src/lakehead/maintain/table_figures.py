"""Rows, size, files, freshness and watermark of a table, from its metadata. Starts no JVM and reads no data file."""

from dataclasses import dataclass
from datetime import datetime

from pyiceberg.table import Table as Iceberg

from lakehead.lake.iceberg_table import summary_of
from lakehead.lake.last_landing import last_landing_of
from lakehead.state.values import to_text


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFigures:
    """What a table holds."""

    rows: int
    bytes: int
    files: int
    landed_at: datetime | None
    """When rows last landed in it."""

    watermark: str | None
    slice: int | None
    """The last slice of raw that is in it."""


def figures_of(iceberg: Iceberg) -> TableFigures:
    """The figures of a table's main branch. Rows that delete files hide are not counted."""
    summary, landed = summary_of(iceberg.current_snapshot()), last_landing_of(iceberg.metadata)
    rows = int(summary.get("total-records", 0))
    if summary.get("total-delete-files", "0") != "0":
        # Not by the summary's count of deletes: some may be about files that are gone.
        tasks = list(iceberg.scan().plan_files())
        dead = {file.file_path: file.record_count for task in tasks for file in task.delete_files}
        rows = sum(task.file.record_count for task in tasks) - sum(dead.values())
    watermark = landed.watermark.watermark if landed else None
    return TableFigures(
        rows=rows,
        bytes=int(summary.get("total-files-size", 0)),
        files=int(summary.get("total-data-files", 0)),
        landed_at=landed.at if landed else None,
        watermark=None if watermark is None else to_text(watermark)[1],
        slice=landed.watermark.slice if landed else None,
    )
