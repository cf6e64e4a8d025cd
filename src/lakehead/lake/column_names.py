"""Which names the columns of a table can have, so that every engine can read it. Configurations import this module."""

METADATA_COLUMNS = frozenset(
    {"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"}
)
"""Iceberg's own columns. Spark reads and compacts no table that has one of its own by such a name."""

MOST_COLUMNS = 1_000
"""Columns that a table may get, so that objects with keys like ids do not make a column of each."""

MOST_FIELDS = 10_000
"""The same with the fields inside of columns, which Iceberg's metadata has all of."""

LONGEST_NAME = 1_000
"""Characters of a name that a column may get. It is in all of the table's metadata and data files."""


def folded(name: str) -> str:
    """Return a name that is equal for names that engines without upper and lower case cannot tell apart."""
    return name.upper().lower().replace("i\u0307", "i")


def is_usable(name: str) -> bool:
    """Return whether a new column may have this name."""
    return 0 < len(name) <= LONGEST_NAME and folded(name) not in METADATA_COLUMNS
