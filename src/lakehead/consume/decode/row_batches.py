"""What all formats share: batches with `_row` and `_rescued`, new columns, and what each schema mode does."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from lakehead.consume.decode.arrays import plain_schema
from lakehead.consume.decode.json_values import JsonValue, to_text
from lakehead.consume.decode.rows import (
    OWN_COLUMNS,
    RESCUED,
    ROW,
    ObjectFormat,
    ObjectRefused,
    ReadReport,
    SchemaMode,
)
from lakehead.consume.decode.seen_types import SeenValues, readable, unify
from lakehead.lake.column_names import MOST_COLUMNS, folded, is_usable

_LONGEST_SHOWN = 60

Rescued = dict[int, dict[str, JsonValue]]
"""Values for `_rescued`, by row and column."""


class NewColumns:
    """Columns that the table lacks, with what their values need. None are proposed if there would be too many."""

    def __init__(self, columns: pa.Schema, mode: SchemaMode, reserved: frozenset[str] = OWN_COLUMNS) -> None:
        self._taken = {folded(name) for name in (*reserved, *columns.names)}
        """Names that engines without upper and lower case take for the same: the first one is the column."""
        self._room = MOST_COLUMNS - len(columns)
        self._wanted = mode is SchemaMode.ADD_COLUMNS
        self._seen: dict[str, SeenValues | pa.DataType] = {}

    def add(self, name: str, value: JsonValue) -> None:
        """Take note of a JSON value of an unknown column."""
        if self._takes(name):
            seen = self._seen.setdefault(name, SeenValues())
            seen.add(value)

    def add_type(self, name: str, kind: pa.DataType) -> None:
        """Take note of an unknown column whose values have a type."""
        if self._takes(name):
            self._seen[name] = unify(self._seen[name], kind) if name in self._seen else kind

    def types(self) -> dict[str, pa.DataType]:
        """Return the columns to propose, by name."""
        types = {name: seen.type() if isinstance(seen, SeenValues) else seen for name, seen in self._seen.items()}
        return {name: readable(kind) for name, kind in types.items() if kind is not None}

    def _takes(self, name: str) -> bool:
        if not self._wanted:
            return False
        if name in self._seen:
            return True
        if not is_usable(name) or folded(name) in self._taken:
            return False
        if len(self._seen) >= self._room:
            self._wanted = False
            self._seen.clear()
            return False
        self._taken.add(folded(name))
        return True


class BatchMaker:
    """Makes the batches of one object, and fills its report."""

    def __init__(
        self,
        columns: pa.Schema,
        form: ObjectFormat,
        report: ReadReport,
        first_row: int,
        reserved: frozenset[str] = OWN_COLUMNS,
    ) -> None:
        self.columns = plain_schema(columns)
        self.new_columns = NewColumns(self.columns, form.mode, reserved)
        self._schema = self.columns.append(pa.field(ROW, pa.int64())).append(pa.field(RESCUED, pa.string()))
        self.strict = form.mode is SchemaMode.FAIL
        """Whether an object is refused for a value that would have to be rescued."""
        self._report = report
        self._next_row = first_row

    def batch(self, arrays: Sequence[pa.Array], rows: int, rescued: dict[int, str]) -> pa.RecordBatch:
        """Return a batch of the table's columns, in order; `rescued` has the JSON of the rows that have any."""
        # Made of a buffer, because `pa.array` imports pandas, which takes longer than a small object.
        numbers = pa.py_buffer(np.arange(self._next_row, self._next_row + rows, dtype=np.int64))
        numbered = pa.Array.from_buffers(pa.int64(), rows, [None, numbers])
        if rescued:
            texts = pa.array([rescued.get(row) for row in range(rows)], pa.string())
        else:
            texts = pa.nulls(rows, pa.string())
        self._next_row += rows
        self._report.rows += rows
        self._report.rescued += len(rescued)
        return pa.RecordBatch.from_arrays([*arrays, numbered, texts], schema=self._schema)

    def unknown(self, where: str, name: str) -> ObjectRefused:
        """Return the error for a value that has no column, where such values are not rescued."""
        return ObjectRefused(f"{where}: the table has no column {name!r}.")

    def misfit(self, where: str, name: str, value: JsonValue) -> ObjectRefused:
        """Return the error for a value that does not fit its column, where such values are not rescued."""
        kind = self.columns.field(name).type
        return ObjectRefused(f"{where}: column {name!r} of type {kind} cannot hold {shortened(to_text(value))}.")

    def rescue_misfits(
        self, name: str, values: Iterable[tuple[int, JsonValue]], where: Callable[[int], str], rescued: Rescued
    ) -> None:
        """Keep values, by row, that do not fit their column. Raises `ObjectRefused` if they are not to be rescued."""
        for row, value in values:
            if self.strict:
                raise self.misfit(where(row), name, value)
            rescued.setdefault(row, {})[name] = value

    def rescue_unknown(
        self, name: str, values: Iterable[JsonValue], where: Callable[[int], str], rescued: Rescued
    ) -> None:
        """Keep the values of a column that the table lacks. Raises `ObjectRefused` if they are not to be rescued."""
        for row, value in enumerate(values):
            if value is not None:
                if self.strict:
                    raise self.unknown(where(row), name)
                rescued.setdefault(row, {})[name] = value

    def finish(self) -> None:
        """Report the new columns. To be called when every row was read."""
        self._report.new_columns.update(self.new_columns.types())


def rescued_texts(rescued: Rescued) -> dict[int, str]:
    """Return the JSON objects for `_rescued`, by row."""
    return {row: to_text(values) for row, values in rescued.items()}


def shortened(text: str) -> str:
    """Return a text for a message."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
