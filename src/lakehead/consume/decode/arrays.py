"""Arrow arrays of columns' types, nested ones included."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from lakehead.consume.decode.exact_values import is_list


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema without metadata in which every column may be null, which is what decoders make."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without the metadata of fields inside it. What is required stays so."""
    return map_leaves(kind, lambda leaf: leaf)


def nullable_type(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with changed leaves, in which everything may be null."""
    return map_leaves(kind, change, keep_required=False)


def map_leaves(
    kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType], *, keep_required: bool = True
) -> pa.DataType:
    """Return a type with everything that is not struct, list or map changed by a function."""

    def inside(field: pa.Field) -> pa.Field:
        changed = map_leaves(field.type, change, keep_required=keep_required)
        return pa.field(field.name, changed, nullable=field.nullable or not keep_required)

    if kinds.is_struct(kind):
        return pa.struct([inside(field) for field in kind])
    if kinds.is_large_list(kind):
        return pa.large_list(inside(kind.value_field))
    if kinds.is_list(kind):
        return pa.list_(inside(kind.value_field))
    if kinds.is_map(kind):
        return pa.map_(inside(kind.key_field).with_nullable(False), inside(kind.item_field))  # noqa: FBT003
    return change(kind)


def leaves(kind: pa.DataType) -> list[pa.DataType]:
    """Return every type inside a type that is not struct, list or map."""
    found: list[pa.DataType] = []

    def note(leaf: pa.DataType) -> pa.DataType:
        found.append(leaf)
        return leaf

    map_leaves(kind, note)
    return found


def to_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an array of values that a `Convert` of this type has returned, and None."""
    stored = map_leaves(kind, _storage)
    made = pa.array(values, stored)
    return made if stored.equals(kind) else rebuild(made, kind, _wrapped)


def rebuild(array: pa.Array, kind: pa.DataType, leaf: Callable[[pa.Array, pa.DataType], pa.Array]) -> pa.Array:
    """Return a nested array as another type of the same shape, each of its leaves converted by a function."""
    if kinds.is_struct(kind):
        children = [rebuild(array.field(number), field.type, leaf) for number, field in enumerate(kind)]
        if not children:
            return array
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if is_list(kind):
        made = pa.LargeListArray if kinds.is_large_list(kind) else pa.ListArray
        values = rebuild(array.values, kind.value_type, leaf)
        return made.from_arrays(array.offsets, values, type=kind, mask=array.is_null() if array.null_count else None)
    if kinds.is_map(kind):
        keys, items = rebuild(array.keys, kind.key_type, leaf), rebuild(array.items, kind.item_type, leaf)
        # A map takes nulls from its offsets only.
        offsets = pa.array(
            [
                None if null else start
                for start, null in zip(array.offsets.to_pylist(), [*array.is_null().to_pylist(), False], strict=True)
            ],
            pa.int32(),
        )
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind)
    return leaf(array, kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _wrapped(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return kind.wrap_array(array) if isinstance(kind, pa.BaseExtensionType) else array
