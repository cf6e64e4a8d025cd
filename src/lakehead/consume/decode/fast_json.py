"""Arrow's JSON reader, for blocks of rows that it reads exactly as we would.

What it does in silence, and what is done about it here (tried with Arrow 26): integers beyond 2^53 are rounded in
double columns; `NaN`, `Infinity` and also `Inf` are floats; UTF-8 is not checked; a row may span lines, and a line may
have several rows; decimals overflow; timestamps are taken with and without zone, a missing time is midnight. It crashes
at `null` as a row, at thousands of nested lists in a column it does not know, and at decimals like `"1e-999999999"`.
Right without us: it refuses keys that occur twice, halves of surrogate pairs, control characters, and any value of
another type than its column's.
"""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.json
import pyarrow.types as kinds

from lakehead.consume.decode.arrays import leaves, nullable_type, rebuild
from lakehead.consume.decode.json_values import DEEPEST, JsonValue, NotJson, parse_value
from lakehead.consume.decode.lines import is_blank
from lakehead.consume.decode.misfit import Misfit
from lakehead.consume.decode.text_columns import (
    exact_decimals,
    floats_may_be_rounded,
    has_risky_decimals,
    texts_to_array,
)
from lakehead.lake.column_names import MOST_COLUMNS
from lakehead.lake.column_paths import paths

_NEWLINE, _RETURN, _OPEN, _CLOSE, _BRACKET = b"\n\r{}["
_DEEPEST = 1_000
"""Arrow's reader survives ten times that in a column that it has to infer."""


_BLOCK = 2**20
"""What Arrow parses at a time: larger blocks do not stay in the processor's cache."""

_INFERRED_BYTES = 2**15
"""The same where Arrow infers columns: some thousand names with some thousand rows at most."""

Lines = np.ndarray[tuple[int], np.dtype[np.int64]]
Extra = dict[int, dict[str, JsonValue]]


class FastJson:
    """Reads blocks of rows with known columns."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        self._read = pa.schema([(field.name, nullable_type(field.type, _read_as)) for field in columns])
        self._names = frozenset(columns.names)
        self._decimals = any(kinds.is_decimal(leaf) for field in columns for leaf in leaves(field.type))
        self._possible = len(columns) > 0 and not any(_has_map(field.type) for field in columns)
        self._unexpected = "error"
        """What Arrow does with other columns: it gives up, and from then on it takes them along."""

    def read(self, text: bytes) -> tuple[list[pa.Array], Extra] | None:
        """Return the columns of whole lines, and the values of other columns by row and name.

        Returns None if they have to be read in the exact way, one by one.
        """
        if not self._possible:
            return None
        ends = _plain_lines(text)
        if ends is None:
            text = b"\n".join([line for line in text.split(b"\n") if not is_blank(line)])
            ends = _plain_lines(text)
        if ends is None or not _is_utf8(text) or (self._decimals and has_risky_decimals(text)):
            return None
        parsed = self._parse(text, ends)
        if parsed is None:
            return None
        table, others = parsed
        if table.num_rows != len(ends):
            return None
        try:
            return [self._column(table, field) for field in self._columns], _extra(others, text)
        except (Misfit, NotJson, msgspec.MsgspecError, pa.ArrowInvalid):
            return None

    def _parse(self, text: bytes, ends: Lines) -> tuple[pa.Table, set[str]] | None:
        """Return the columns of lines, and the names of other columns that have a value."""
        longest = int(np.diff(ends, prepend=-1).max())
        try:
            if self._unexpected == "error":
                return _read_json(text, self._read, self._unexpected, longest), set()
        except pa.ArrowInvalid as error:
            if "unexpected field" not in str(error):
                return None
            self._unexpected = "infer"
        except pa.ArrowException:
            return None
        if longest >= _INFERRED_BYTES or _most_brackets(text, ends) > _DEEPEST:
            return None
        return self._parse_with_others(text, ends)

    def _parse_with_others(self, text: bytes, ends: Lines) -> tuple[pa.Table, set[str]] | None:
        """Read lines that have other columns, in small pieces of which only our columns are kept.

        Arrow has a value of each column, and of each field inside one, for each row: keys like ids would take the
        square of the memory that they should.
        """
        tables: list[pa.Table] = []
        others: set[str] = set()
        start = 0
        while start < len(text):
            end = int(ends[int(np.searchsorted(ends, start + _INFERRED_BYTES)) - 1]) + 1
            try:
                piece = _read_json(text[start:end], self._read, self._unexpected, _INFERRED_BYTES)
            except pa.ArrowException:
                return None
            ours = piece.select(self._read.names)
            new = [field for field in piece.schema if field.name not in self._names]
            others.update(field.name for field in new if not kinds.is_null(field.type))
            fields = sum(1 for field in new for _ in paths(field.name, field.type))
            if not ours.schema.equals(self._read) or max(len(others), fields) > MOST_COLUMNS:
                return None
            tables.append(ours)
            start = end
        return pa.concat_tables(tables), others

    def _column(self, table: pa.Table, field: pa.Field) -> pa.Array:
        column = table.column(field.name)
        if not column.type.equals(self._read.field(field.name).type):
            raise Misfit
        array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        if array.type.equals(field.type) and not _may_round(field.type):
            return array
        return rebuild(array, field.type, _leaf)


def _extra(names: set[str], text: bytes) -> Extra:
    """Return the values of other columns. Arrow's own may be rounded: these are from the text."""
    if not names:
        return {}
    extra: Extra = {}
    for row, line in enumerate(text.removesuffix(b"\n").split(b"\n")):
        for name, raw in _raw_row.decode(line).items():
            if name in names and raw != _NULL:
                extra.setdefault(row, {})[name] = _extra_value(bytes(raw))
    return extra


def _extra_value(raw: bytes) -> JsonValue:
    if raw.count(b"{") + raw.count(b"[") >= DEEPEST:
        raise Misfit
    return parse_value(raw.decode())


_raw_row = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NULL = msgspec.Raw(b"null")


def _read_json(text: bytes, schema: pa.Schema, unexpected: str, longest: int) -> pa.Table:
    return pyarrow.json.read_json(
        pa.BufferReader(text),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(_BLOCK, longest + 1)),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


def _read_as(kind: pa.DataType) -> pa.DataType:
    if kinds.is_decimal(kind):
        return pa.decimal256(76, kind.scale)
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind) or kinds.is_null(kind):
        return kind
    return pa.string()


def _leaf(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if kinds.is_decimal(kind):
        return exact_decimals(array, kind)
    if kinds.is_floating(kind) and floats_may_be_rounded(array):
        raise Misfit
    if array.type.equals(kind):
        return array
    made, misfits = texts_to_array(array, kind)
    if misfits:
        raise Misfit
    return made


def _may_round(kind: pa.DataType) -> bool:
    return bool(kinds.is_nested(kind) or kinds.is_floating(kind))


def _has_map(kind: pa.DataType) -> bool:
    if kinds.is_struct(kind):
        return any(_has_map(field.type) for field in kind)
    return bool(kinds.is_map(kind)) or (
        (kinds.is_list(kind) or kinds.is_large_list(kind)) and _has_map(kind.value_type)
    )


def _plain_lines(text: bytes) -> Lines | None:
    """Return where lines end, if each of them begins with { and ends with }; then no row spans two of them."""
    characters = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(characters == _NEWLINE)
    if not text.endswith(b"\n"):
        ends = np.append(ends, len(text))
    starts = np.concatenate(([0], ends[:-1] + 1))
    if len(text) == 0 or not (characters[starts] == _OPEN).all():
        return None
    last = characters[ends - 1]
    if not (last == _CLOSE).all():
        last = np.where(last == _RETURN, characters[ends - 2], last)
        if not (last == _CLOSE).all():
            return None
    return ends


def _is_utf8(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _most_brackets(text: bytes, ends: Lines) -> int:
    """Return how many objects and lists a line has at most, which is more than it can be deep."""
    characters = np.frombuffer(text, np.uint8)
    opened = np.cumsum((characters == _OPEN) | (characters == _BRACKET), dtype=np.int64)
    counts = opened[np.minimum(ends, len(text) - 1)]
    return int(np.diff(counts, prepend=0).max())
