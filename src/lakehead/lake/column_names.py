"""Which names the columns of a table can have, so that every engine can read it. Tasks import this module."""

from collections.abc import Iterator

import pyarrow as pa

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


def paths(name: str, kind: pa.DataType) -> Iterator[str]:
    """Return the names of a column and of all fields in it, as Iceberg indexes them."""
    yield name
    if pa.types.is_map(kind):
        inside = [("key", kind.key_type), ("value", kind.item_type)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inside = [("element", kind.value_type)]
    elif pa.types.is_struct(kind):
        inside = [(each.name, each.type) for each in kind]
    else:
        return
    for part, inner in inside:
        yield from paths(f"{name}.{part}", inner)


def is_ambiguous(kind: pa.DataType) -> bool:
    """Return whether fields inside a type cannot be told apart by their names, or have unusable ones.

    Such are `a` and `A` in one struct, or `a.b` and a struct `a` that has a field `b`.
    """
    found = list(paths("", kind))
    if len(found) == 1:
        return False
    return len({folded(path) for path in found}) < len(found) or max(map(len, found)) > LONGEST_NAME
