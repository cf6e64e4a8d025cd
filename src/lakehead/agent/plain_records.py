"""Samples and log records as plain Python values, made into Arrow."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

import pyarrow as pa

from lakehead.agent.errors import BadRecord
from lakehead.agent.plain_columns import usual_records
from lakehead.agent.plain_times import SHOWN, shown, unix_ns
from lakehead.wire.errors import BadFrame
from lakehead.wire.record_schemas import FrameKind, newest_schema

RecordKind: TypeAlias = Literal["samples", "logs"]
PlainRecord: TypeAlias = Mapping[str, object] | tuple[object, ...]
KINDS: Mapping[RecordKind, FrameKind] = {"samples": FrameKind.SAMPLES, "logs": FrameKind.LOGS}

_IN_TUPLES = {FrameKind.SAMPLES: ("time", "metric", "labels", "value"), FrameKind.LOGS: ("time", "body", "attributes")}
_DEFAULTS: Mapping[FrameKind, Mapping[str, object]] = {
    FrameKind.SAMPLES: {"labels": (), "type": "unknown"},
    FrameKind.LOGS: {"attributes": (), "resource_attributes": (), "scope_attributes": ()},
}
_USUAL_DEFAULTS = {
    kind: {name: {} if value == () else value for name, value in defaults.items()}
    for kind, defaults in _DEFAULTS.items()
}
_WHOLE_IN_PARTS = frozenset({"scale", "positive_indexes", "negative_indexes"})
"""The fields of a distribution that are whole numbers, or lists of them."""

_SPECIAL_NUMBERS = {"NaN": float("nan"), "Inf": float("inf"), "+Inf": float("inf"), "-Inf": float("-inf")}
"""What JSON has no numbers for, as Prometheus writes it."""


def record_batch(kind: FrameKind, records: Sequence[PlainRecord]) -> pa.RecordBatch:
    """Return records as Arrow in the newest schema of their kind. Raises `BadRecord` for the first that is wrong.

    A record is a mapping with the columns of docs/frames.md, or a tuple: of a sample `(time, metric, labels, value)`,
    of a log record `(time, body)` or `(time, body, attributes)`. A time is an aware `datetime`, ISO text with an
    offset, or nanoseconds since the Unix epoch. Labels and attributes are mappings, or pairs. A sample without a type
    has the type `unknown`.
    """
    newest = newest_schema(kind)
    batch = usual_records(newest.schema, _IN_TUPLES[kind], _USUAL_DEFAULTS[kind], records)
    if batch is None:
        return one_by_one(kind, records)
    try:
        newest.check(batch)
    except BadFrame:
        return one_by_one(kind, records)  # which finds out which it is
    return batch


def one_by_one(kind: FrameKind, records: Sequence[PlainRecord]) -> pa.RecordBatch:
    """Return records as `record_batch` does, whatever their forms. Raises `BadRecord` for the first that is wrong."""
    rows = []
    for index, record in enumerate(records):
        try:
            rows.append(_row(kind, record))
        except ValueError as error:
            raise _bad_record(index, error) from None
    try:
        return _checked_batch(kind, rows)
    except _NOT_ARROW:
        index = _first_wrong(kind, rows)
        try:
            _checked_batch(kind, rows[index : index + 1])
        except _NOT_ARROW as error:
            raise _bad_record(index, error) from None
        raise


def _first_wrong(kind: FrameKind, rows: list[dict[str, object]]) -> int:
    """Return the first row that Arrow does not take, of rows one of which it does not: by halves, for they are many."""
    begin, end = 0, len(rows)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            _checked_batch(kind, rows[begin:middle])
        except _NOT_ARROW:
            end = middle
        else:
            begin = middle
    return begin


def _bad_record(index: int, error: Exception) -> BadRecord:
    """Name a record and why it is wrong, without all that Arrow, or the sender, says of it."""
    reason = str(error)
    return BadRecord(index, reason if len(reason) <= _REASON_CHARACTERS else f"{reason[:_REASON_CHARACTERS]}…")


_REASON_CHARACTERS = 400
_NOT_ARROW = (BadFrame, pa.ArrowException, OverflowError, TypeError, ValueError)


def _checked_batch(kind: FrameKind, rows: list[dict[str, object]]) -> pa.RecordBatch:
    newest = newest_schema(kind)
    batch = pa.RecordBatch.from_pylist(rows, schema=newest.schema)
    newest.check(batch)
    return batch


def _row(kind: FrameKind, record: PlainRecord) -> dict[str, object]:
    """Return a record as a row for Arrow. Raises `ValueError` with the reason why it is none."""
    schema = newest_schema(kind).schema
    named = record if isinstance(record, Mapping) else _named(_IN_TUPLES[kind], record)
    _refuse_unknown(named, schema.names, "column")
    row: dict[str, object] = {**_DEFAULTS[kind]}
    for name, value in named.items():
        if value is not None:
            row[name] = _FORMS.get(name, _as_it_is)(name, value)
    for field in schema:
        if not field.nullable and field.name not in row:
            raise ValueError(f"It has no {field.name}.")
    if isinstance(part := row.get("distribution"), Mapping):
        _refuse_unknown(part, [field.name for field in schema.field("distribution").type], "field of distribution")
        row["distribution"] = {**part, **{name: _whole_numbers(name, part[name]) for name in _WHOLE_IN_PARTS & {*part}}}
    return row


def _named(names: Sequence[str], record: object) -> dict[str, object]:
    if not isinstance(record, tuple):
        raise ValueError(f"It is a {type(record).__name__}. Give a mapping or a tuple.")  # noqa: TRY004 - see `_row`
    if not 2 <= len(record) <= len(names):
        raise ValueError(f"It is a tuple of {len(record)}. Give ({', '.join(names)}), or a mapping.")
    return dict(zip(names, record, strict=False))


def _refuse_unknown(given: Mapping[str, object], known: Sequence[str], what: str) -> None:
    if unknown := sorted(str(name) for name in given if name not in known):
        raise ValueError(f"There is no {what} {', '.join(unknown)[:SHOWN]}. Known are {', '.join(known)}.")


def _as_it_is(name: str, value: object) -> object:
    if isinstance(value, bytes):
        raise ValueError(f"{name} is bytes. Decode it to text.")  # noqa: TRY004 - see `_row`
    return value


def _text_pairs(name: str, value: object) -> list[tuple[str, str]]:
    """Return labels or attributes in the order that frames have: by the UTF-8 bytes of their names."""
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, list | tuple) or not all(
        isinstance(each, list | tuple) and len(each) == 2 for each in pairs
    ):
        raise ValueError(f"{name} is {shown(value)}. Give a mapping of text to text.")
    for key, text in pairs:
        if not isinstance(key, str) or not isinstance(text, str):
            raise ValueError(f"{name} has {shown(key)}: {shown(text)}. Both must be text.")  # noqa: TRY004 - see `_row`
    return sorted(((key, text) for key, text in pairs), key=lambda pair: pair[0].encode())


def _number(name: str, value: object) -> float:
    if isinstance(value, str) and value in _SPECIAL_NUMBERS:
        return _SPECIAL_NUMBERS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {shown(value)}. Give a number.")  # noqa: TRY004 - see `_row`
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for a number of 64 bits.") from None


def _whole_number(name: str, value: object) -> object:
    """Refuse a fraction, which Arrow would cut off without a word. Everything else is Arrow's to check."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{name} is {value!r}. Give a whole number.")
    return value


def _whole_numbers(name: str, value: object) -> object:
    """Refuse a fraction in a list too."""
    for each in value if isinstance(value, list | tuple) else (value,):
        _whole_number(name, each)
    return value


_FORMS: Mapping[str, Callable[[str, object], object]] = {
    **dict.fromkeys(("time", "start_time", "observed_time"), unix_ns),
    **dict.fromkeys(("labels", "attributes", "resource_attributes", "scope_attributes"), _text_pairs),
    **dict.fromkeys(("severity_number", "flags"), _whole_number),
    "value": _number,
}
"""What is accepted in other forms than Arrow's, by the name of the column."""
