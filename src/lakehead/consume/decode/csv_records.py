"""CSV text cut into records of fields, as RFC 4180 has it: quotes are doubled inside quotes, and stand nowhere else.

A record ends with a newline (LF or CRLF; a CR alone is a character like others) outside quotes. Lines of nothing but
whitespace are no records.
"""

import re
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.csv

from lakehead.consume.decode.rows import ObjectFormat, ObjectRefused
from lakehead.errors import Misconfigured

_NEWLINE, _RETURN = 10, 13
_BOM = b"\xef\xbb\xbf"
Field = str | None


@dataclass(slots=True)
class Records:
    """Records of one text, as far as it has whole ones."""

    columns: list[pa.Array]
    """Text columns of the records that have as many fields as there are columns; others are null in all of them."""

    rows: int
    consumed: int
    """Bytes of the text that the records and blank lines before and between them take."""

    starts: list[int]
    """Where each record begins in the text."""

    bad: dict[int, tuple[bytes, str]] = field(default_factory=dict)
    """Records that cannot be taken apart, with the reason."""


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How records are written."""

    delimiter: bytes
    quote: bytes
    """Empty: there are no quotes."""

    null_text: str

    @property
    def special(self) -> re.Pattern[bytes]:
        """Matches a character that ends a field without quotes. Python keeps the compiled pattern."""
        return re.compile(b"[\n" + re.escape(self.delimiter + self.quote) + b"]")

    @classmethod
    def of(cls, form: ObjectFormat) -> "CsvDialect":
        """Return the dialect of a format. Raises `Misconfigured`."""
        delimiter, quote = form.delimiter.encode(), form.quote.encode()
        if len(delimiter) != 1 or len(quote) > 1 or delimiter in b'\r\n"' or quote in {b"\r", b"\n", delimiter}:
            raise Misconfigured(
                "A CSV delimiter is one ASCII character, and so is a quote, another one; neither is a newline."
            )
        return cls(delimiter, quote, form.null_text)


def quick_records(text: bytes, width: int, dialect: CsvDialect, most: int) -> Records | None:
    """Return whole records by Arrow's reader; None if they have to be read in the exact way.

    Arrow takes quotes inside of fields, text after closing quotes, a CR alone as newline and quotes that never end. So
    it is only asked if each quote stands where it should.
    """
    characters = np.frombuffer(text, np.uint8)
    newlines = np.flatnonzero(characters == _NEWLINE)
    if dialect.quote:
        quotes = np.flatnonzero(characters == dialect.quote[0])
        newlines = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    ends = newlines[:most]
    if len(ends) == 0:
        return None
    consumed = int(ends[-1]) + 1
    text = text[:consumed]
    if dialect.quote and not _quotes_are_plain(text, characters, quotes[: np.searchsorted(quotes, consumed)], dialect):
        return None
    starts = np.concatenate(([0], ends[:-1] + 1))
    filled = _not_blank(text, characters, starts, ends)
    if filled is None or text.startswith(_BOM) or _has_lone_return(text) or not _is_utf8(text):
        return None
    if not len(filled):
        return Records([pa.nulls(0, pa.string())] * width, 0, consumed, [])
    columns = _read_csv(text, width, dialect)
    if columns is None or len(columns[0]) != len(filled):
        return None
    return Records(columns, len(filled), consumed, filled.tolist())


def exact_records(text: bytes, width: int | None, dialect: CsvDialect, most: int, *, final: bool) -> Records:
    """Return whole records, one by one. `final`: the text's end is the last record's end, also without newline.

    `width` is how many fields a record must have; None: any, and all columns of the first record are returned.
    """
    rows: list[list[Field] | None] = []
    starts: list[int] = []
    bad: dict[int, tuple[bytes, str]] = {}
    at = 0
    while at < len(text) and len(rows) < most:
        newline = text.find(b"\n", at)
        line_end = newline if newline >= 0 else len(text)
        if not text[at:line_end].strip(b" \t\r".replace(dialect.delimiter, b"")):
            if newline < 0 and not final:
                break
            at = line_end + 1
            continue
        fields, end, reason = _record(text, at, dialect, final=final)
        if end is None:
            if final and at == 0:
                raise ObjectRefused("A quoted field begins in this record and never ends.")
            break
        width = len(fields) if width is None else width
        if reason is None and len(fields) != width:
            reason = f"the record has {len(fields)} fields and not {width}"
        try:
            decoded = None if reason else [_decoded(field, quoted, dialect) for field, quoted in fields]
        except UnicodeDecodeError:
            decoded, reason = None, "the text is not UTF-8"
        if reason:
            bad[len(rows)] = (text[at:end].rstrip(b"\r\n"), reason)
        rows.append(decoded)
        starts.append(at)
        at = end
    columns = [
        pa.array([None if row is None else row[number] for row in rows], pa.string()) for number in range(width or 0)
    ]
    return Records(columns, len(rows), min(at, len(text)), starts, bad)


def _record(
    text: bytes, start: int, dialect: CsvDialect, *, final: bool
) -> tuple[list[tuple[bytes, bool]], int | None, str | None]:
    """Return the fields of a record and whether each was quoted, where it ends, and why it is bad.

    It has no end if more text is needed: the next character decides whether a quote is doubled.
    """
    fields: list[tuple[bytes, bool]] = []
    at = start
    while True:
        quoted = bool(dialect.quote) and text.startswith(dialect.quote, at)
        if quoted:
            closing = _closing_quote(text, at + 1, dialect.quote)
            if closing < 0 or (closing + 1 == len(text) and not final):
                return fields, None, None
            value, at = text[at + 1 : closing].replace(dialect.quote * 2, dialect.quote), closing + 1
        else:
            stop = _end_of_plain(text, at, dialect)
            value, at = text[at:stop], stop
        if text.startswith(dialect.delimiter, at):
            fields.append((value, quoted))
            at += 1
            continue
        after = text[at : at + 2]
        if len(after) < 2 and b"\n" not in after and not final:
            return fields, None, None
        if after[:1] == b"\n" or after == b"\r\n" or (final and after in {b"", b"\r"}):
            fields.append((value if quoted else value.removesuffix(b"\r"), quoted))
            return fields, at + (after.find(b"\n") + 1 or len(after)), None
        newline = text.find(b"\n", at)
        if newline < 0 and not final:
            return fields, None, None
        reason = "there is text after a closing quote" if quoted else "there is a quote inside a field without quotes"
        return fields, newline + 1 if newline >= 0 else len(text), f"{reason} (column {at - start + 1})"


def _end_of_plain(text: bytes, start: int, dialect: CsvDialect) -> int:
    """Return where the next delimiter, quote or newline is, looking no further: a record may have millions of them."""
    found = dialect.special.search(text, start)
    return found.start() if found else len(text)


def _closing_quote(text: bytes, start: int, quote: bytes) -> int:
    at = text.find(quote, start)
    while at >= 0 and text.startswith(quote, at + 1):
        at = text.find(quote, at + 2)
    return at


def _decoded(value: bytes, quoted: bool, dialect: CsvDialect) -> Field:  # noqa: FBT001 - a pair of the two
    made = value.decode()
    return None if not quoted and made == dialect.null_text else made


def _quotes_are_plain(
    text: bytes,
    characters: "np.ndarray[tuple[int], np.dtype[np.uint8]]",
    quotes: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    dialect: CsvDialect,
) -> bool:
    """Return whether quotes open a field at its start, close it at its end, and are doubled in between."""
    opening, closing = quotes[::2], quotes[1::2]
    if len(opening) != len(closing):
        return False
    before = characters[np.maximum(opening - 1, 0)]
    opens = (opening == 0) | np.isin(before, [_NEWLINE, dialect.delimiter[0]])
    # The second of two in a row goes on with the field that the first one closed.
    opens[1:] |= opening[1:] == closing[:-1] + 1
    after = characters[np.minimum(closing + 1, len(text) - 1)]
    then = characters[np.minimum(closing + 2, len(text) - 1)]
    closes = np.isin(after, [_NEWLINE, dialect.delimiter[0]]) | ((after == _RETURN) & (then == _NEWLINE))
    closes[:-1] |= opening[1:] == closing[:-1] + 1
    return bool(opens.all() and closes.all())


def _not_blank(
    text: bytes,
    characters: "np.ndarray[tuple[int], np.dtype[np.uint8]]",
    starts: "np.ndarray[tuple[int], np.dtype[np.int64]]",
    ends: "np.ndarray[tuple[int], np.dtype[np.int64]]",
) -> "np.ndarray[tuple[int], np.dtype[np.int64]] | None":
    """Return where records start, without empty lines; None if a line may have nothing but spaces."""
    first = characters[starts]
    filled = starts[(first != _NEWLINE) & ~((first == _RETURN) & (ends - starts == 1))]
    spaces = np.flatnonzero(np.isin(first, [32, 9]))
    blank = any(not text[starts[row] : ends[row]].strip(b" \t\r") for row in spaces.tolist())
    return None if blank else filled


def _has_lone_return(text: bytes) -> bool:
    return b"\r" in text and text.count(b"\r") != text.count(b"\r\n")


def _read_csv(text: bytes, width: int, dialect: CsvDialect) -> list[pa.Array] | None:
    names = [str(number) for number in range(width)]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(text),
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=dialect.delimiter.decode(),
                quote_char=dialect.quote.decode() or False,
                newlines_in_values=bool(dialect.quote),
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[dialect.null_text],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                check_utf8=False,
            ),
        )
    except pa.ArrowException:
        return None
    return [column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks) for column in table.columns]


def _is_utf8(text: bytes) -> bool:
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False
