"""JSON rows turned into batches: by Arrow's reader where its answer is exact, one by one everywhere else."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from lakehead.consume.decode.arrays import to_array
from lakehead.consume.decode.exact_values import from_json
from lakehead.consume.decode.fast_json import FastJson
from lakehead.consume.decode.json_values import JsonValue, NotJson, parse_row
from lakehead.consume.decode.lines import LineBlock, is_blank
from lakehead.consume.decode.misfit import Misfit
from lakehead.consume.decode.row_batches import BatchMaker, Rescued, rescued_texts
from lakehead.consume.decode.rows import (
    BAD_ROW,
    BAD_ROW_BASE64,
    OWN_COLUMNS,
    ObjectFormat,
    ObjectRefused,
    ReadReport,
)

FAST_BYTES = 4096
"""From so many bytes on Arrow's reader is faster than rows one by one: each of its calls costs as much as 30 rows."""


class JsonRows:
    """Decodes the JSON rows of one object."""

    def __init__(
        self,
        columns: pa.Schema,
        form: ObjectFormat,
        report: ReadReport,
        first_row: int,
        *,
        reserved: frozenset[str] = OWN_COLUMNS,
        fast_from: int | None = FAST_BYTES,
    ) -> None:
        """Texts of at least `fast_from` bytes are read by Arrow's reader, as far as it is exact; None: no text is."""
        self._maker = BatchMaker(columns, form, report, first_row, reserved)
        self._numbers = {field.name: number for number, field in enumerate(columns)}
        self._convert = [from_json(field.type) for field in self._maker.columns]
        self._rescue_bad_rows = form.rescue_bad_rows
        self._fast_from = fast_from
        self._fast: FastJson | None = None

    def block(self, block: LineBlock) -> pa.RecordBatch | None:
        """Return the rows of a block of lines; None if it has none. Raises `ObjectRefused`."""
        batch = self.quick(block.text)
        if batch is not None:
            return batch
        lines = [(number, line) for number, line in enumerate(block.lines()) if not is_blank(line)]
        if not lines:
            return None
        return self.rows([line for _, line in lines], lambda row: block.where(lines[row][0]))

    def quick(self, text: bytes, also: Rescued | None = None) -> pa.RecordBatch | None:
        """Return rows by Arrow's reader; None if `rows` has to read them. `also` has more for `_rescued`."""
        if self._fast_from is None or len(text) < self._fast_from:
            return None
        self._fast = self._fast or FastJson(self._maker.columns)
        found = self._fast.read(text)
        if found is None:
            return None
        arrays, extra = found
        # A refusal says which line it is about, and only the exact way knows.
        if extra and (self._maker.strict or also):
            return None
        for values in extra.values():
            for name, value in values.items():
                self._maker.new_columns.add(name, value)
        return self._maker.batch(arrays, len(arrays[0]), rescued_texts(extra or also or {}))

    def rows(self, rows: Sequence[bytes], where: Callable[[int], str], also: Rescued | None = None) -> pa.RecordBatch:
        """Return rows, each one JSON object. `where` says how to call a row in a message. Raises `ObjectRefused`."""
        values: list[list[Any]] = [[None] * len(rows) for _ in self._convert]
        rescued = {row: dict(more) for row, more in (also or {}).items()}
        for row, line in enumerate(rows):
            try:
                parsed = parse_row(line)
            except NotJson as error:
                if not self._rescue_bad_rows:
                    raise ObjectRefused(error.at(where(row))) from None
                rescued.setdefault(row, {}).update(bad_row(line))
                continue
            for name, value in parsed.items():
                if value is not None and not self._put(values, row, name, value, where):
                    kept = rescued.setdefault(row, {})
                    if name in kept:
                        raise ObjectRefused(f"{where(row)}: {name!r} is a key, and also what the row has besides it.")
                    kept[name] = value
        arrays = [to_array(column, field.type) for column, field in zip(values, self._maker.columns, strict=True)]
        return self._maker.batch(arrays, len(rows), rescued_texts(rescued))

    def _put(self, values: list[list[Any]], row: int, name: str, value: JsonValue, where: Callable[[int], str]) -> bool:
        """Put a value into its column. Returns whether there is one that holds it; if not, it has to be rescued."""
        number = self._numbers.get(name)
        if number is None:
            if self._maker.strict:
                raise self._maker.unknown(where(row), name)
            self._maker.new_columns.add(name, value)
            return False
        try:
            values[number][row] = self._convert[number](value)
        except Misfit:
            if self._maker.strict:
                raise self._maker.misfit(where(row), name, value) from None
            return False
        return True

    def finish(self) -> None:
        """Report the new columns. To be called when every row was read."""
        self._maker.finish()


def bad_row(line: bytes) -> dict[str, JsonValue]:
    """Return what `_rescued` has of a row that cannot be parsed: all of it."""
    try:
        return {BAD_ROW: line.decode()}
    except UnicodeDecodeError:
        return {BAD_ROW_BASE64: base64.b64encode(line).decode()}
