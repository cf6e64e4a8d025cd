"""Batches of an `Ingestor`: entries of a key and a value, in either of their two formats.

Opaque values: the columns are `key` and `value`, both binary. Values that are JSON objects: each becomes a row as in
NDJSON, and the entry's key is the column `_key`, so that it is not taken for a field of the value. Keys and values also
fit text columns if they are UTF-8. A table without a column for keys keeps those that are not empty in `_rescued`, in
base64.
"""

import base64
from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakehead.consume.decode.arrays import to_array
from lakehead.consume.decode.exact_values import is_binary, is_text
from lakehead.consume.decode.json_rows import JsonRows
from lakehead.consume.decode.json_values import NotJson, parse_row
from lakehead.consume.decode.lines import is_blank
from lakehead.consume.decode.row_batches import BatchMaker, NewColumns, Rescued, rescued_texts
from lakehead.consume.decode.rows import (
    BATCH_BYTES,
    OWN_COLUMNS,
    ObjectFormat,
    ObjectPart,
    ObjectRefused,
    ReadReport,
    SchemaMode,
    most_rows,
    only_part,
)
from lakehead.wire.batch import BatchLimits, KeyValueEntry
from lakehead.wire.compact import decode_batch
from lakehead.wire.errors import NewerFormat, Unreadable

KEY, VALUE = "key", "value"
KEY_OF_JSON = "_key"
_LIMITS = BatchLimits()


def read(
    source: pa.NativeFile,
    form: ObjectFormat,
    columns: pa.Schema,
    report: ReadReport,
    first_row: int,
    part: ObjectPart | None,  # noqa: ARG001 - a batch is one part
) -> Iterator[pa.RecordBatch]:
    """Return the entries of a batch. Raises `NewerFormat` for one of a newer Lakehead: update this one."""
    entries = _entries(source, form)
    chunks = _chunks(entries, most_rows(columns))
    if form.value_json:
        yield from _read_json(chunks, form, columns, report, first_row)
        return
    maker = BatchMaker(columns, form, report, first_row)
    for start, chunk in chunks:
        texts = {KEY: [entry.key for entry in chunk], VALUE: [entry.value for entry in chunk]}
        rescued: Rescued = {}
        arrays = []
        for field in maker.columns:
            values = texts.pop(field.name, None)
            arrays.append(_column(values, field, maker, start, rescued) if values else _nulls(chunk, field))
        for name, values in texts.items():
            _rescue(name, values, maker, start, rescued)
        yield maker.batch(arrays, len(chunk), rescued_texts(rescued))
    maker.finish()


def infer(source: pa.NativeFile, form: ObjectFormat) -> pa.Schema:
    """Return the columns of a batch."""
    entries = _entries(source, form)
    if not form.value_json:
        return pa.schema([(KEY, pa.binary()), (VALUE, pa.binary())])
    seen = NewColumns(pa.schema([]), SchemaMode.ADD_COLUMNS, _RESERVED)
    for number, entry in enumerate(entries):
        try:
            row = parse_row(entry.value)
        except NotJson as error:
            if not form.rescue_bad_rows:
                raise ObjectRefused(error.at(_where(number))) from None
            continue
        for name, value in row.items():
            if value is not None:
                seen.add(name, value)
    keyed = any(entry.key for entry in entries)
    return pa.schema([*([(KEY_OF_JSON, pa.binary())] if keyed else []), *seen.types().items()])


def split(source: pa.NativeFile, size: int, target_bytes: int, start: int) -> list[ObjectPart]:  # noqa: ARG001 - as other formats
    """Return one part: a batch is compressed and checked as a whole."""
    return only_part(size, start)


def count(source: pa.NativeFile, form: ObjectFormat, part: ObjectPart | None) -> int:  # noqa: ARG001 - as other formats
    """Return the number of entries."""
    return len(_entries(source, form))


_RESERVED = OWN_COLUMNS | {KEY_OF_JSON}


def _entries(source: pa.NativeFile, form: ObjectFormat) -> list[KeyValueEntry]:
    source.seek(0)
    try:
        entries = decode_batch(source.read(_LIMITS.stored_bytes + 1), _LIMITS)
    except NewerFormat:
        raise
    except Unreadable as error:
        raise ObjectRefused(str(error)) from None
    for number, size in enumerate(_sizes(entries)):
        if size > form.max_row_bytes:
            raise ObjectRefused(f"{_where(number)} has {size:,} bytes; max_row_bytes allows {form.max_row_bytes:,}.")
    return entries


def _sizes(entries: Sequence[KeyValueEntry]) -> list[int]:
    """Return the sizes of entries, several times as fast as asking each for its own."""
    return [len(entry.key) + len(entry.value) for entry in entries]


def _chunks(entries: Sequence[KeyValueEntry], most: int) -> Iterator[tuple[int, Sequence[KeyValueEntry]]]:
    start, size = 0, 0
    for number, added in enumerate(_sizes(entries)):
        if number > start and (size >= BATCH_BYTES or number - start >= most):
            yield start, entries[start:number]
            start, size = number, 0
        size += added
    if start < len(entries):
        yield start, entries[start:]


def _read_json(
    chunks: Iterator[tuple[int, Sequence[KeyValueEntry]]],
    form: ObjectFormat,
    columns: pa.Schema,
    report: ReadReport,
    first_row: int,
) -> Iterator[pa.RecordBatch]:
    place = columns.get_field_index(KEY_OF_JSON)
    theirs = columns.remove(place) if place >= 0 else columns
    rows = JsonRows(theirs, form, report, first_row, reserved=_RESERVED)
    keys_of = BatchMaker(columns, form, report, first_row)
    for start, chunk in chunks:
        keys, values = [entry.key for entry in chunk], [entry.value for entry in chunk]
        rescued: Rescued = {}
        if place >= 0:
            column = _column(keys, keys_of.columns.field(place), keys_of, start, rescued)
        else:
            _rescue(KEY_OF_JSON, keys, keys_of, start, rescued)
        text = b"\n".join(values)
        plain = text.count(b"\n") == len(values) - 1 and not any(map(is_blank, values))
        batch = rows.quick(text, rescued) if plain else None
        if batch is None:
            batch = rows.rows(values, lambda row, start=start: _where(start + row), rescued)  # type: ignore[misc]
        yield batch if place < 0 else batch.add_column(place, KEY_OF_JSON, column)
    rows.finish()
    keys_of.finish()


def _column(values: list[bytes], field: pa.Field, maker: BatchMaker, start: int, rescued: Rescued) -> pa.Array:
    """Return keys or values as a column; those that do not fit go to `rescued`."""
    made = [_fitting(value, field.type) for value in values]
    unfit = [(row, _base64(values[row])) for row, value in enumerate(made) if value is None]
    maker.rescue_misfits(field.name, unfit, lambda row: _where(start + row), rescued)
    return to_array(made, field.type)


def _rescue(name: str, values: list[bytes], maker: BatchMaker, start: int, rescued: Rescued) -> None:
    """Keep keys or values that have no column."""
    kept = [_base64(value) if value else None for value in values]
    maker.rescue_unknown(name, kept, lambda row: _where(start + row), rescued)
    if any(values):
        maker.new_columns.add_type(name, pa.binary())


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _fitting(value: bytes, kind: pa.DataType) -> bytes | str | None:
    if is_text(kind):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if not is_binary(kind) or (pa.types.is_fixed_size_binary(kind) and len(value) != kind.byte_width):
        return None
    return value


def _nulls(chunk: Sequence[KeyValueEntry], field: pa.Field) -> pa.Array:
    return pa.nulls(len(chunk), field.type)


def _where(number: int) -> str:
    return f"Entry {number + 1}"
