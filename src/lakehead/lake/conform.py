"""Converts a record batch to a table's schema exactly, or rejects it: no value is ever changed silently."""

import pyarrow as pa
import pyarrow.types as kinds

from lakehead.errors import LakeheadError

_FAMILIES = {
    "integer": kinds.is_integer,
    "float": kinds.is_floating,
    "decimal": kinds.is_decimal,
    "boolean": kinds.is_boolean,
    "text": lambda kind: kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind),
    "binary": lambda kind: (
        kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_binary_view(kind)
        or kinds.is_fixed_size_binary(kind)
    ),
    "timestamp": lambda kind: kinds.is_timestamp(kind) and kind.tz is None,
    "timestamp with a zone": lambda kind: kinds.is_timestamp(kind) and kind.tz is not None,
    "date": kinds.is_date,
    "time": kinds.is_time,
    "list": lambda kind: kinds.is_list(kind) or kinds.is_large_list(kind),
    "struct": kinds.is_struct,
    "map": kinds.is_map,
}


class RowsRejected(LakeheadError):
    """Rows do not fit their table. Fix the source or the table's schema; nothing was published."""


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows under the table's schema: columns by name, absent ones null, types widened but never rounded.

    Raises `RowsRejected` with the column's name for a value or a column that the table cannot hold as it is.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return _complete(batch, schema)
    names = batch.schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RowsRejected(f"The rows have several columns named {twice[0]!r}.")
    if unknown := sorted(set(names) - set(schema.names)):
        raise RowsRejected(f"The table has no column {unknown[0]!r}. Add it to the table, or leave it out of the rows.")
    columns = [
        conform_column(batch.column(field.name), field) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return _complete(pa.RecordBatch.from_arrays(columns, schema=schema), schema)


def conform_column(column: pa.Array, field: pa.Field) -> pa.Array:
    """The same values as a column of the table: widened but never rounded. Raises `RowsRejected` as `conform` does."""
    have, want = column.type, field.type
    if have.equals(want):
        return column
    if kinds.is_dictionary(have):
        return conform_column(column.dictionary_decode(), field)
    if isinstance(have, pa.BaseExtensionType):
        return conform_column(column.storage, field)
    if isinstance(want, pa.BaseExtensionType):
        return want.wrap_array(conform_column(column, pa.field(field.name, want.storage_type)))
    if not _may_become(have, want):
        raise RowsRejected(
            f"Column {field.name!r} has values of type {have}, which a column of type {want} cannot hold."
        )
    try:
        return column.cast(want)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise RowsRejected(f"Column {field.name!r} has a value that its type {want} cannot hold: {error}") from None
    except pa.ArrowNotImplementedError:
        raise RowsRejected(f"Column {field.name!r} cannot be turned from {have} into {want}.") from None


def _may_become(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether a cast either keeps every value or fails. Casts of nested values could change values silently."""
    have, want = _plain(have), _plain(want)
    if kinds.is_null(have) or have.equals(want):
        return True
    match _family(have), _family(want):
        case "integer", "decimal":
            return True
        case "float", "float":
            return bool(have.bit_width <= want.bit_width)
        case "list", "list":
            return _may_become(have.value_type, want.value_type)
        case "map", "map":
            return _may_become(have.key_type, want.key_type) and _may_become(have.item_type, want.item_type)
        case "struct", "struct":
            names = [field.name for field in have]
            return len(set(names)) == len(names) and all(
                want.get_field_index(field.name) >= 0 and _may_become(field.type, want.field(field.name).type)
                for field in have
            )
        case before, after:
            return before is not None and before == after


def _plain(kind: pa.DataType) -> pa.DataType:
    if kinds.is_dictionary(kind):
        return _plain(kind.value_type)
    return _plain(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def _family(kind: pa.DataType) -> str | None:
    return next((name for name, belongs in _FAMILIES.items() if belongs(kind)), None)


def _complete(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    for field in schema:
        if lacking := _lacking(batch.column(field.name), field, field.name):
            raise RowsRejected(f"Column {lacking!r} is required, and some of the rows have no value in it.")
    return batch


def _lacking(values: pa.Array, field: pa.Field, name: str) -> str | None:
    """The name of the column, or of a field inside it, that is required and has a null; None if there is none."""
    if values.null_count and not field.nullable:
        return name
    kind, inside = field.type, []
    if kinds.is_struct(kind):
        present = values.drop_null()
        inside = [(present.field(number), child) for number, child in enumerate(kind)]
    elif kinds.is_list(kind) or kinds.is_large_list(kind):
        inside = [(values.flatten(), kind.value_field)]
    elif kinds.is_map(kind):
        entries = values.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))).flatten()
        inside = [(entries.field(1), kind.item_field)]
    found = (_lacking(theirs, child, f"{name}.{child.name}") for theirs, child in inside)
    return next((lacking for lacking in found if lacking), None)
