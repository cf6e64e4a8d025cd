"""The records of frames as Arrow: the schema of each kind and version, and the rules that a schema cannot say.

A version of a schema never changes once frames with it are stored. docs/frames.md describes each column.
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.wire.errors import BadFrame
from lakehead.wire.valid_arrow import positions


class FrameKind(IntEnum):
    """What the records of a frame are. The numbers are part of the format."""

    SAMPLES = 1
    LOGS = 2


NUMBER_TYPES = ("unknown", "gauge", "sum")
"""The types of samples that have a `value`."""

DISTRIBUTION_TYPES = ("histogram", "exponential_histogram", "summary")
"""The types of samples that have a `distribution`."""

TEMPORALITIES = ("cumulative", "delta")
RESET_HINTS = ("yes", "no", "gauge")


def _words(*words: str) -> pa.StringArray:
    """Words of ASCII as Arrow. Made of buffers, because `pa.array` imports pandas, which takes most of a start."""
    ends = array("i", [0, *accumulate(map(len, words))])
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(ends), pa.py_buffer("".join(words).encode()))


_TYPES, _NUMBER_TYPES = _words(*NUMBER_TYPES, *DISTRIBUTION_TYPES), _words(*NUMBER_TYPES)
_TEMPORALITIES, _RESET_HINTS = _words(*TEMPORALITIES), _words(*RESET_HINTS)

_time = pa.timestamp("ns", tz="UTC")
_text_map = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))
_numbers = pa.list_(pa.field("item", pa.float64(), nullable=False))
_indexes = pa.list_(pa.field("item", pa.int32(), nullable=False))

_DISTRIBUTION = pa.struct(
    [
        pa.field("count", pa.float64()),
        pa.field("sum", pa.float64()),
        pa.field("min", pa.float64()),
        pa.field("max", pa.float64()),
        pa.field("bounds", _numbers),
        pa.field("counts", _numbers),
        pa.field("scale", pa.int32()),
        pa.field("zero_count", pa.float64()),
        pa.field("zero_threshold", pa.float64()),
        pa.field("positive_indexes", _indexes),
        pa.field("positive_counts", _numbers),
        pa.field("negative_indexes", _indexes),
        pa.field("negative_counts", _numbers),
        pa.field("quantiles", _numbers),
        pa.field("quantile_values", _numbers),
        pa.field("reset_hint", pa.string()),
    ]
)

_NUMBER_FIELDS = [
    pa.field("time", _time, nullable=False),
    pa.field("start_time", _time),
    pa.field("metric", pa.string(), nullable=False),
    pa.field("labels", _text_map, nullable=False),
    pa.field("type", pa.string(), nullable=False),
    pa.field("unit", pa.string()),
    pa.field("temporality", pa.string()),
    pa.field("monotonic", pa.bool_()),
]

SAMPLES_V1 = pa.schema([*_NUMBER_FIELDS, pa.field("value", pa.float64(), nullable=False)])
"""Numbers, as most samples are. Without the fields of a distribution a frame is two thirds as large to decode."""

SAMPLES_V2 = pa.schema([*_NUMBER_FIELDS, pa.field("value", pa.float64()), pa.field("distribution", _DISTRIBUTION)])
"""Numbers and distributions."""

LOGS_V1 = pa.schema(
    [
        pa.field("time", _time, nullable=False),
        pa.field("observed_time", _time),
        pa.field("severity_number", pa.int32()),
        pa.field("severity_text", pa.string()),
        pa.field("event_name", pa.string()),
        pa.field("body", pa.string()),
        pa.field("attributes", _text_map, nullable=False),
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        pa.field("flags", pa.int64()),
        pa.field("resource_attributes", _text_map, nullable=False),
        pa.field("scope_name", pa.string()),
        pa.field("scope_version", pa.string()),
        pa.field("scope_attributes", _text_map, nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """One version of the records of one kind."""

    schema: pa.Schema
    check_rows: Callable[[pa.RecordBatch], None]
    """Raises `BadFrame` unless each row follows the rules. The batch is valid Arrow and has the schema."""

    message: pa.Buffer = field(init=False)
    """The schema as a message of Arrow IPC, as we write it."""

    required: Mapping[str, int] = field(init=False)
    """The columns without nulls, and where each is."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", self.schema.serialize())
        places = {column.name: place for place, column in enumerate(self.schema) if not column.nullable}
        object.__setattr__(self, "required", places)

    def check(self, records: pa.RecordBatch) -> None:
        """Raise `BadFrame` if there is a null where none may be, or a row that breaks a rule."""
        for name, place in self.required.items():
            _require(records.column(place).null_count == 0, f"The column {name} has nulls.")
        self.check_rows(records)


def _check_numbers(records: pa.RecordBatch) -> None:
    _check_map("labels", records.column("labels"))
    _check_words("temporality", records.column("temporality"), _TEMPORALITIES)
    _check_words("type", records.column("type"), _NUMBER_TYPES)


def _check_samples(records: pa.RecordBatch) -> None:
    _check_map("labels", records.column("labels"))
    _check_words("temporality", records.column("temporality"), _TEMPORALITIES)
    types, values, distributions = (records.column(name) for name in ("type", "value", "distribution"))
    _check_words("type", types, _TYPES)
    is_number = pc.is_in(types, value_set=_NUMBER_TYPES)
    _require(
        values.is_valid().equals(is_number) and distributions.is_null().equals(is_number),
        "A sample of a type with a value has no value, or a distribution besides; or one of a distribution lacks it.",
    )
    if distributions.null_count < len(distributions):
        _check_distributions(types.filter(distributions.is_valid()), distributions.drop_null())


def _check_distributions(types: pa.StringArray, distributions: pa.StructArray) -> None:
    part = dict(zip((field.name for field in distributions.type), distributions.flatten(), strict=True))
    _require(part["count"].null_count == 0, "A distribution has no count.")
    _check_words("reset_hint", part["reset_hint"], _RESET_HINTS)
    for column, lists in part.items():
        _require(not pa.types.is_list(lists.type) or lists.values.null_count == 0, f"An item of {column} is null.")
    for name, needed in (("histogram", "counts"), ("exponential_histogram", "scale"), ("summary", "quantiles")):
        for column in _PARTS[name]:
            _require(
                not pc.any(pc.and_(part[column].is_valid(), pc.not_equal(types, name))).as_py(),
                f"A distribution has {column}, but it is not of the type {name}.",
            )
        has_its_own = pc.or_(part[needed].is_valid(), pc.not_equal(types, name))
        _require(pc.all(has_its_own).as_py(), f"A distribution of the type {name} has no {needed}.")
    bounds, counts = _lengths(part["bounds"]), _lengths(part["counts"])
    _require(
        pc.all(pc.or_(pc.equal(counts, pc.add(bounds, 1)), pc.equal(pc.add(bounds, counts), 0))).as_py(),
        "A histogram must have one count more than bounds, or neither.",
    )
    for one, other in (
        ("positive_indexes", "positive_counts"),
        ("negative_indexes", "negative_counts"),
        ("quantiles", "quantile_values"),
    ):
        _require(_lengths(part[one]).equals(_lengths(part[other])), f"There are not as many {one} as {other}.")
    for column in ("bounds", "positive_indexes", "negative_indexes"):
        _check_ascending(column, part[column].flatten(), np.cumsum(_lengths(part[column]).to_numpy()))


_PARTS: Mapping[str, tuple[str, ...]] = {
    "histogram": ("bounds", "counts"),
    "exponential_histogram": (
        *("scale", "zero_count", "zero_threshold"),
        *("positive_indexes", "positive_counts", "negative_indexes", "negative_counts"),
    ),
    "summary": ("quantiles", "quantile_values"),
}
"""The fields of a distribution that belong to one type alone."""


def _check_logs(records: pa.RecordBatch) -> None:
    for column in ("attributes", "resource_attributes", "scope_attributes"):
        _check_map(column, records.column(column))
    _check_between("severity_number", records.column("severity_number"), 1, 24)
    _check_between("flags", records.column("flags"), 0, 2**32 - 1)
    for column, digits in (("trace_id", 32), ("span_id", 16)):
        ids = records.column(column)
        matches = pc.match_substring_regex(ids, rf"\A[0-9a-f]{{{digits}}}\z")
        _require(pc.all(matches).as_py() is not False, f"A {column} is not {digits} lowercase hex digits.")


RECORD_SCHEMAS: Mapping[FrameKind, Mapping[int, RecordSchema]] = {
    FrameKind.SAMPLES: {1: RecordSchema(SAMPLES_V1, _check_numbers), 2: RecordSchema(SAMPLES_V2, _check_samples)},
    FrameKind.LOGS: {1: RecordSchema(LOGS_V1, _check_logs)},
}
"""Each kind's versions. The newest has the columns of all others."""


def newest_schema(kind: FrameKind) -> RecordSchema:
    """Return the newest version of a kind."""
    versions = RECORD_SCHEMAS[kind]
    return versions[max(versions)]


def as_newest(kind: FrameKind, records: pa.RecordBatch) -> pa.RecordBatch:
    """Return records of any version as those of the newest of their kind, with nulls in columns that they lack."""
    schema = newest_schema(kind).schema
    if records.schema.equals(schema):
        return records
    columns = [
        records.column(field.name) if field.name in records.schema.names else pa.nulls(len(records), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def as_oldest(kind: FrameKind, records: pa.RecordBatch) -> tuple[int, pa.RecordBatch]:
    """Return records of any version as those of the first version that can hold them, and that version.

    Raises `BadFrame` if they have the schema of none.
    """
    versions = sorted(RECORD_SCHEMAS[kind].items())
    given = next(
        (version for version, known in versions if records.schema.equals(known.schema, check_metadata=True)), None
    )
    if given is None:
        schema = newest_schema(kind).schema
        raise BadFrame("bad_schema", f"The records have the columns {records.schema.to_string()}, not {schema}.")
    nulls = {name: column.null_count for name, column in zip(records.schema.names, records.columns, strict=True)}
    for version, known in versions[: given - 1]:
        left_out = nulls.keys() - known.schema.names
        if all(nulls[name] == len(records) for name in left_out) and not any(nulls[name] for name in known.required):
            columns = [records.column(name) for name in known.schema.names]
            return version, pa.RecordBatch.from_arrays(columns, schema=known.schema)
    return given, records


def _check_words(name: str, column: pa.StringArray, words: pa.StringArray) -> None:
    left = len(column) - column.null_count
    for word in words:  # mostly one or two of them are all: that takes less than to look up each row
        if not left:
            return
        left -= pc.equal(column, word).true_count
    _require(left == 0, f"A {name} is none of {', '.join(words.to_pylist())}.")


def _check_map(name: str, maps: pa.MapArray) -> None:
    _require(maps.keys.null_count == 0 and maps.items.null_count == 0, f"A key or value of {name} is null.")
    if not len(maps):
        return
    ends = positions(maps)
    _check_ascending(name, maps.keys.slice(ends[0], ends[-1] - ends[0]), ends - ends[0])


def _check_between(name: str, column: pa.Array, least: int, most: int) -> None:
    found = pc.min_max(column).as_py()
    inside = found["min"] is None or (found["min"] >= least and found["max"] <= most)
    _require(inside, f"A {name} is not between {least} and {most}.")


def _check_ascending(name: str, items: pa.Array, ends: "np.ndarray[tuple[int], np.dtype[Any]]") -> None:
    """Raise `BadFrame` unless the items ascend, without equal ones, up to each end, and from there anew.

    Texts compare by their UTF-8 bytes. No item is null.
    """
    pairs = len(items) - 1
    if pairs < 1:
        return
    begins = np.zeros(len(items) + 1, np.bool_)
    begins[ends] = True
    less = np.frombuffer(pc.less(items.slice(0, pairs), items.slice(1)).buffers()[1], np.uint8)
    ascends = np.unpackbits(less, count=pairs, bitorder="little")
    _require(bool((ascends | begins[1:-1]).all()), f"The {name} of a record are not ascending, or one is twice.")


def _lengths(lists: pa.ListArray) -> pa.Int32Array:
    return pc.fill_null(pc.list_value_length(lists), 0)


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise BadFrame("bad_records", f"{otherwise} See docs/frames.md.")
