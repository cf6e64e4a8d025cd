"""CSV: a header with names, or the table's columns in order, then one record for each row.

CSV has no types, so columns that are inferred are text. Values for other columns of a table are parsed exactly, or
rescued as the text that they are.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakehead.consume.decode.compression import plain_chunks
from lakehead.consume.decode.csv_records import CsvDialect, Records, exact_records, quick_records
from lakehead.consume.decode.json_rows import bad_row
from lakehead.consume.decode.row_batches import BatchMaker, Rescued, rescued_texts
from lakehead.consume.decode.rows import (
    BATCH_BYTES,
    OWN_COLUMNS,
    ObjectFormat,
    ObjectPart,
    ObjectRefused,
    ReadReport,
    most_rows,
    only_part,
)
from lakehead.consume.decode.text_columns import texts_to_array
from lakehead.lake.column_names import MOST_COLUMNS

_BOM = b"\xef\xbb\xbf"


def read(
    source: pa.NativeFile,
    form: ObjectFormat,
    columns: pa.Schema,
    report: ReadReport,
    first_row: int,
    part: ObjectPart | None,  # noqa: ARG001 - quotes make a part that begins in the middle ambiguous
) -> Iterator[pa.RecordBatch]:
    """Return the rows of an object."""
    maker = BatchMaker(columns, form, report, first_row)
    # A table that has no columns yet gets those of the object.
    reader = CsvReader(source, form, None if form.header else columns.names or None)
    for block in reader.blocks(most_rows(columns)):
        yield _landed(block, maker, form)
    maker.finish()


def infer(source: pa.NativeFile, form: ObjectFormat) -> pa.Schema:
    """Return a text column for each name of the header; without a header they are numbered."""
    reader = CsvReader(source, form, None)
    next(reader.blocks(1), None)
    kept = [name for name in reader.names or [] if name not in OWN_COLUMNS]
    return pa.schema([(name, pa.string()) for name in kept] if len(kept) <= MOST_COLUMNS else [])


def split(source: pa.NativeFile, size: int, target_bytes: int, start: int) -> list[ObjectPart]:  # noqa: ARG001 - as other formats
    """Return one part: whether a newline ends a record depends on all quotes before it."""
    return only_part(size, start)


def count(source: pa.NativeFile, form: ObjectFormat, part: ObjectPart | None) -> int:  # noqa: ARG001 - as other formats
    """Return the number of records, without the header."""
    return sum(block.records.rows for block in CsvReader(source, form, None).blocks(most_rows(pa.schema([]))))


def numbered_names(count: int) -> list[str]:
    """Return names for columns that have none: `column_1`, or `column_01` if there are ten, so that they sort."""
    return [f"column_{number:0{len(str(count))}}" for number in range(1, count + 1)]


@dataclass(frozen=True, slots=True)
class CsvBlock:
    """Some records of an object."""

    names: list[str]
    records: Records
    text: bytes
    first_line: int

    def where(self, row: int) -> str:
        """Return how to call a record in a message."""
        lines_before = self.text.count(b"\n", 0, self.records.starts[row])
        return f"Line {self.first_line + lines_before}"


class CsvReader:
    """Cuts an object into blocks of records."""

    def __init__(self, source: pa.NativeFile, form: ObjectFormat, names: list[str] | None) -> None:
        self._dialect = CsvDialect.of(form)
        self._most_bytes = form.max_row_bytes
        self._chunks = plain_chunks(source)
        self._text, self._line = b"", 1
        self._final = self._begun = False
        self._header = form.header
        self.names = names
        """The names of the columns, as soon as they are known."""

    def blocks(self, most: int) -> Iterator[CsvBlock]:
        """Return blocks of at most so many records. Raises `ObjectRefused`."""
        self._fill(BATCH_BYTES)
        while self._text:
            if self.names is None and not self._find_names():
                continue
            records = self._records(len(self.names or []), most)
            self._check_lengths(records)
            if records.rows:
                yield CsvBlock(self.names or [], records, self._text, self._line)
            self._drop(records.consumed)

    def _find_names(self) -> bool:
        """Take names from the header, or count the fields of the first record. Returns whether they were found."""
        first = self._exact(None, 1)
        if not first.rows:
            self._drop(first.consumed)
            return False
        where = CsvBlock([], first, self._text, self._line).where(0)
        if first.bad:
            raise ObjectRefused(f"{where}: {first.bad[0][1]}.")
        if not self._header:
            self.names = numbered_names(len(first.columns))
            return True
        names = [self._name(column[0].as_py()) for column in first.columns]
        if "" in names:
            raise ObjectRefused(f"{where}: the header has no name for column {names.index('') + 1}.")
        if twice := next((name for name, count in Counter(names).items() if count > 1), None):
            raise ObjectRefused(f"{where}: the header has the name {twice!r} twice.")
        self.names = names
        self._drop(first.consumed)
        return True

    def _name(self, field: str | None) -> str:
        """Return a name of the header: what means null in a record is a name there."""
        return self._dialect.null_text if field is None else field

    def _records(self, width: int, most: int) -> Records:
        return quick_records(self._text, width, self._dialect, most) or self._exact(width, most)

    def _exact(self, width: int | None, most: int) -> Records:
        try:
            return exact_records(self._text, width, self._dialect, most, final=self._final)
        except ObjectRefused as error:
            raise ObjectRefused(f"Line {self._line}: {error}") from None

    def _check_lengths(self, records: Records) -> None:
        if records.consumed <= self._most_bytes:
            return
        ends = [*records.starts, records.consumed][1:]
        for row, (start, end) in enumerate(zip(records.starts, ends, strict=True)):
            if end - start > self._most_bytes + 2:
                where = CsvBlock([], records, self._text, self._line).where(row)
                raise ObjectRefused(f"{where} has {end - start:,} bytes; max_row_bytes allows {self._most_bytes:,}.")

    def _drop(self, consumed: int) -> None:
        """Leave out what was read, and read more. What begins with half a record needs more than there was."""
        self._line += int(np.count_nonzero(np.frombuffer(self._text, np.uint8, consumed) == ord("\n")))
        self._text = self._text[consumed:]
        if not consumed and len(self._text) > self._most_bytes:
            raise ObjectRefused(
                f"Line {self._line}: a record is longer than max_row_bytes, {self._most_bytes:,} bytes. "
                "Is a quote missing?"
            )
        self._fill(BATCH_BYTES if consumed else 2 * len(self._text))

    def _fill(self, size: int) -> None:
        pieces, length = [self._text], len(self._text)
        while length < size and not self._final:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._final = True
            else:
                pieces.append(chunk)
                length += len(chunk)
        self._text = b"".join(pieces)
        if not self._begun:
            self._begun, self._text = True, self._text.removeprefix(_BOM)


def _landed(block: CsvBlock, maker: BatchMaker, form: ObjectFormat) -> pa.RecordBatch:
    rescued: Rescued = {}
    records = block.records
    for row, (text, reason) in records.bad.items():
        if not form.rescue_bad_rows:
            raise ObjectRefused(f"{block.where(row)}: {reason}.")
        rescued[row] = bad_row(text)
    columns = dict(zip(block.names, records.columns, strict=True))
    arrays = []
    for field in maker.columns:
        texts = columns.pop(field.name, None)
        if texts is None:
            arrays.append(pa.nulls(records.rows, field.type))
            continue
        array, misfits = texts_to_array(texts, field.type)
        arrays.append(array)
        maker.rescue_misfits(field.name, [(row, texts[row].as_py()) for row in misfits], block.where, rescued)
    for name, texts in columns.items():
        maker.rescue_unknown(name, texts.to_pylist(), block.where, rescued)
        if texts.null_count < len(texts):
            maker.new_columns.add_type(name, pa.string())
    return maker.batch(arrays, records.rows, rescued_texts(rescued))
