"""What is asked of a table's new rows before anybody sees them, wherever the table is kept."""

from collections.abc import Mapping

from lakehead.extract.table import Rule, TableSettings
from lakehead.lake.ports import AuditFailed


def check_keys(settings: TableSettings, lacking: Mapping[str, int]) -> None:
    """Raise `AuditFailed` if rows lack a value in a column of their key, and that is to stop the table."""
    if lacking and settings.null_keys is Rule.FAIL:
        told = ", ".join(f"{nulls} in {name!r}" for name, nulls in lacking.items())
        raise AuditFailed(
            f"Rows of {settings.name} have no value in their key: {told}. Give them one, or set null_keys to include "
            "or exclude. Nothing was published."
        )


def check_not_emptied(settings: TableSettings, rows: int, before: int) -> None:
    """Raise `AuditFailed` if a table that had rows would have none any more, and nobody has allowed it."""
    if before and not rows and not settings.allow_empty:
        raise AuditFailed(
            f"The source of {settings.name} has no rows, and had some before. The table stays as it was. If it is to "
            "become empty, set allow_empty to true."
        )
