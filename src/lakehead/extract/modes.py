"""The modes of loading a table: all that differs between them, but for the strategies that carry them out.

A new mode is a record here and a strategy, registered in `run/ingestion.py`. The configuration accepts what is listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class ReadersTable(Enum):
    """Which of its tables the readers of a source's table read."""

    RAW = "raw"
    MIRROR = "mirror"
    FINAL = "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How tables of one mode are kept, and what the configuration must or must not say of them."""

    name: str
    description: str
    """What it does, in a few words of the configuration's reference."""

    readers_table: ReadersTable
    incremental: bool = False
    """Whether each run reads only what is new, by `incremental_column`."""

    merges: bool = False
    """Whether rows are merged by `primary_keys`, so that a row may be read twice."""

    table_properties: Mapping[str, str] = field(default_factory=dict)
    """Iceberg's properties that the readers' table is created with."""

    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Values that a key of the table's configuration must not have, each with the reason."""


FULL = Mode(
    name="full",
    description="read all rows once per load date and replace the table",
    readers_table=ReadersTable.FINAL,
)
SCD1 = Mode(
    name="scd1",
    description="read changed rows and merge them by primary key",
    readers_table=ReadersTable.MIRROR,
    incremental=True,
    merges=True,
    table_properties={  # a merge then writes what has changed, and no more
        "write.merge.mode": "merge-on-read",
        "write.update.mode": "merge-on-read",
        "write.delete.mode": "merge-on-read",
        # Mirrors are sorted. Iceberg's default for such tables reads all that Spark writes twice, to divide it.
        "write.distribution-mode": "hash",
    },
)
APPEND = Mode(
    name="append",
    description="read new rows and append them",
    readers_table=ReadersTable.RAW,
    incremental=True,
    refused={
        (
            "null_watermarks",
            "include",
        ): "must be exclude or fail: with mode append every run would add such rows again.",
        ("null_keys", "exclude"): "must be include or fail: with mode append readers see every raw row.",
    },
)

MODES: Mapping[str, Mode] = {mode.name: mode for mode in (FULL, SCD1, APPEND)}
"""By their names in the configuration."""
