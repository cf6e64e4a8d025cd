"""Row counts of an Iceberg snapshot, as far as its summary is reliable: rows written, and rows in total."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MERGED = "spark.merge-into.num-target-rows-"
"""The prefix of the summary's counts of a MERGE. Spark writes -1 for an unknown count."""


@dataclass(frozen=True, slots=True)
class SnapshotCounts:
    """The known counts; unknown ones are None or absent."""

    rows: int | None
    """Rows that were inserted or updated."""

    detail: Mapping[str, object] = field(default_factory=dict)
    """`inserted` and `updated` of a MERGE, and `total`, the number of rows that readers see."""


def counts_of(summary: Mapping[str, str]) -> SnapshotCounts:
    """The counts of an append, an overwrite of the whole table or a MERGE.

    A copy-on-write MERGE also rewrites unchanged rows, which are not counted. `total` is given only for a table without
    delete files: no summary says how many rows they hide, because they may outlive the rows that they delete.
    """
    total = _number(summary, "total-records") if summary.get("total-delete-files") == "0" else None
    merged = {name: _number(summary, MERGED + name) for name in ("inserted", "updated")}
    known = {name: number for name, number in {**merged, "total": total}.items() if number is not None}
    rows = _number(summary, "added-records", absent=0)
    if MERGED + "copied" in summary and summary.get("deleted-data-files", "0") != "0":
        inserted, updated = merged.values()
        rows = None if inserted is None or updated is None else inserted + updated
    return SnapshotCounts(rows if summary else None, known)


def _number(summary: Mapping[str, str], name: str, absent: int | None = None) -> int | None:
    number = int(summary[name]) if name in summary else absent
    return None if number is None or number < 0 else number
