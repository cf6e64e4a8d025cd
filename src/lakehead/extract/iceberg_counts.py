"""How many rows a snapshot of Iceberg's brought, and how many there are now: what its summary tells for certain."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MERGED = "spark.merge-into.num-target-rows-"
"""What the counts of a MERGE begin with. Spark says -1 where it does not know."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What is known; None and absent is what is not."""

    rows: int | None
    """Rows that are new, or that took the place of others."""

    detail: Mapping[str, object] = field(default_factory=dict)
    """`inserted` and `updated` of a MERGE, and `total`, the rows that readers see."""


def counts_of(summary: Mapping[str, str]) -> Counts:
    """The counts of an append, an overwrite of the whole table or a MERGE.

    A MERGE that writes whole files anew adds rows to them that it only copied: these do not count. `total` is told only
    of a table without delete files: what they hide no summary says, as they may outlive the rows that they are of.
    """
    total = _number(summary, "total-records") if summary.get("total-delete-files") == "0" else None
    merged = {name: _number(summary, MERGED + name) for name in ("inserted", "updated")}
    known = {name: number for name, number in {**merged, "total": total}.items() if number is not None}
    rows = _number(summary, "added-records", absent=0)
    if MERGED + "copied" in summary and summary.get("deleted-data-files", "0") != "0":
        inserted, updated = merged.values()
        rows = None if inserted is None or updated is None else inserted + updated
    return Counts(rows if summary else None, known)


def _number(summary: Mapping[str, str], name: str, absent: int | None = None) -> int | None:
    number = int(summary[name]) if name in summary else absent
    return None if number is None or number < 0 else number
