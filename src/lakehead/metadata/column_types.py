"""Which types of columns hold the values of which others."""

import pyarrow as pa
import pyarrow.types as kinds


def plain(kind: pa.DataType) -> pa.DataType:
    """The type without how it is laid out in memory: large text is text."""
    if kinds.is_large_string(kind) or kinds.is_string_view(kind):
        return pa.string()
    if kinds.is_large_binary(kind) or kinds.is_binary_view(kind):
        return pa.binary()
    return kind


def holds(column: pa.DataType, values: pa.DataType) -> bool:
    """Whether a column of one type holds every value of another exactly, as a column of Iceberg may be widened."""
    column, values = plain(column), plain(values)
    if column.equals(values):
        return True
    if kinds.is_int32(values) or kinds.is_float32(values):
        return bool(column.equals(pa.int64() if kinds.is_int32(values) else pa.float64()))
    if kinds.is_decimal(column) and kinds.is_decimal(values):
        return bool(column.scale == values.scale and column.precision >= values.precision)
    return False
