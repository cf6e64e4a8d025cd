"""What a snapshot's summary tells of rows: what is certain, and nothing else."""

import pytest

from lakehead.extract.iceberg_counts import MERGED, SnapshotCounts, counts_of


def merge(inserted: int, updated: int, copied: int, **more: str) -> dict[str, str]:
    counts = {"inserted": inserted, "updated": updated, "copied": copied}
    told = {name.replace("_", "-"): value for name, value in more.items()}
    return {**{MERGED + name: str(number) for name, number in counts.items()}, **told}


SUMMARIES = {
    "an overwrite": (
        {"added-records": "5", "deleted-data-files": "2", "total-records": "5", "total-delete-files": "0"},
        SnapshotCounts(5, {"total": 5}),
    ),
    "a merge that writes position deletes": (
        merge(1, 2, 0, added_records="3", total_records="9", total_delete_files="1"),
        SnapshotCounts(3, {"inserted": 1, "updated": 2}),
    ),
    "a merge that writes files anew": (
        merge(1, 2, 6, added_records="9", deleted_data_files="1", total_records="9", total_delete_files="0"),
        SnapshotCounts(3, {"inserted": 1, "updated": 2, "total": 9}),
    ),
    "a merge that was not counted": (
        merge(-1, -1, -1, added_records="9", deleted_data_files="1", total_records="9", total_delete_files="0"),
        SnapshotCounts(None, {"total": 9}),
    ),
    "nothing to merge": ({"total-records": "9", "total-delete-files": "2"}, SnapshotCounts(0, {})),
    "deletes that nobody has counted": ({"added-records": "5", "total-records": "9"}, SnapshotCounts(5, {})),
    "no summary": ({}, SnapshotCounts(None, {})),
}


@pytest.mark.parametrize("which", SUMMARIES)
def test_only_what_is_certain_is_told(which: str) -> None:
    summary, expected = SUMMARIES[which]

    assert counts_of(summary) == expected
