"""The names of the fields inside of columns. Tasks import this module."""

from collections.abc import Iterator

import pyarrow as pa

from lakehead.lake.column_names import LONGEST_NAME, folded


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
