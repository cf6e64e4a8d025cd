"""Checks of a table's new rows before they are published, the same for every sink."""

from collections.abc import Mapping

from lakehead.extract.table_settings import Rule, TableSettings
from lakehead.lake.ports import AuditFailed


def check_keys(settings: TableSettings, lacking: Mapping[str, int]) -> None:
    """Raise `AuditFailed` if rows have NULL in a key column, and the settings say that this is an error.

    `lacking` has the number of such rows for each column.
    """
    if lacking and settings.null_keys is Rule.FAIL:
        counts = ", ".join(f"{nulls} in {name!r}" for name, nulls in lacking.items())
        raise AuditFailed(
            f"Rows of {settings.name} have no value in their key: {counts}. Nothing was published. Give them one, or "
            "set null_keys to include or exclude."
        )


def check_not_emptied(settings: TableSettings, rows: int, before: int) -> None:
    """Raise `AuditFailed` if a table that had rows would become empty, and `allow_empty` is not set."""
    if before and not rows and not settings.allow_empty:
        raise AuditFailed(
            f"The source of {settings.name} has no rows, but had some before. The table was not changed. If it should "
            "become empty, set allow_empty to true."
        )
