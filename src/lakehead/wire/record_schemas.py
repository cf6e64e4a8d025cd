"""The records of frames as Arrow: the schema of each kind and version, and the rules that a schema cannot say.

A version of a schema never changes once frames with it are stored. docs/frames.md describes each column.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehead.wire.errors import BadFrame
from lakehead.wire.valid_arrow import positions, with_maps_of_bytes


class FrameKind(IntEnum):
    """What the records of a frame are. The numbers are part of the format."""

    SAMPLES = 1
    LOGS = 2

    @property
    def word(self) -> str:
        """How records and configurations name it: `samples` or `logs`."""
        return self.name.lower()

    @classmethod
    def named(cls, word: str) -> "FrameKind | None":
        """Return the kind that a record or a configuration names; None if this Lakehead knows none of that name."""
        return next((kind for kind in cls if kind.word == word), None)


NUMBER_TYPES = ("unknown", "gauge", "sum")
"""The types of samples that have a `value`."""

DISTRIBUTION_TYPES = ("histogram", "exponential_histogram", "summary")
"""The types of samples that have a `distribution`."""

TEMPORALITIES = ("cumulative", "delta")
RESET_HINTS = ("yes", "no", "gauge")


def _words(*words: str) -> pa.StringArray:
    """Words of ASCII as Arrow. Made of buffers, because `pa.array` and `pa.scalar` import pandas, which takes most of a
    start.
    """
    ends = array("i", [0, *accumulate(map(len, words))])
    return pa.StringArray.from_buffers(len(words), pa.py_buffer(ends), pa.py_buffer("".join(words).encode()))


class _Words(NamedTuple):
    """The words that a column may have."""

    told: str
    """All of them, for people."""

    each: tuple[pa.StringScalar, ...]
    """In the order in which they are looked for: what most records have comes first."""

    @classmethod
    def of(cls, *words: str, seldom: str = "") -> "_Words":
        return cls(", ".join(words), tuple(_words(*sorted(words, key=seldom.__eq__))))


_IS_NUMBER = _words(*NUMBER_TYPES)
_NUMBER_TYPES = _Words.of(*NUMBER_TYPES, seldom="unknown")
_TYPES = _Words.of(*NUMBER_TYPES, *DISTRIBUTION_TYPES, seldom="unknown")
_TEMPORALITIES, _RESET_HINTS = _Words.of(*TEMPORALITIES), _Words.of(*RESET_HINTS)
_EQUAL, _LESS = pc.get_function("equal"), pc.get_function("less")
_ZERO, _ONE = pa.Array.from_buffers(pa.int32(), 2, [None, pa.py_buffer(array("i", [0, 1]))])

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

_LABELS, _TYPE, _TEMPORALITY = (SAMPLES_V1.get_field_index(name) for name in ("labels", "type", "temporality"))
"""Where they are, in both versions: a column is found faster by its place."""

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


@dataclass(frozen=True, slots=True, eq=False)
class RecordSchema:
    """One version of the records of one kind."""

    schema: pa.Schema
    check_rows: Callable[[pa.RecordBatch], None]
    """Raises `BadFrame` unless each row follows the rules. The batch is valid Arrow and has the schema."""

    message: pa.Buffer = field(init=False)
    """The schema as a message of Arrow IPC, as we write it."""

    required: Mapping[str, int] = field(init=False)
    """The columns without nulls, and where each is."""

    maps: Sequence[int] = field(init=False)
    """Where the columns with maps of texts are."""

    with_maps_of_bytes: pa.Schema = field(init=False)
    """The schema with maps of bytes instead of texts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", self.schema.serialize())
        places = {column.name: place for place, column in enumerate(self.schema) if not column.nullable}
        object.__setattr__(self, "required", places)
        maps = [place for place, column in enumerate(self.schema) if pa.types.is_map(column.type)]
        object.__setattr__(self, "maps", maps)
        object.__setattr__(self, "with_maps_of_bytes", with_maps_of_bytes(self.schema))

    def check(self, records: pa.RecordBatch) -> None:
        """Raise `BadFrame` if there is a null where none may be, or a row that breaks a rule."""
        for name, place in self.required.items():
            if records.column(place).null_count:
                raise _broken(f"The column {name} has nulls.")
        self.check_rows(records)


def _check_numbers(records: pa.RecordBatch) -> None:
    _check_map("labels", records.column(_LABELS))
    _check_words("temporality", records.column(_TEMPORALITY), _TEMPORALITIES)
    _check_words("type", records.column(_TYPE), _NUMBER_TYPES)


def _check_samples(records: pa.RecordBatch) -> None:
    _check_map("labels", records.column(_LABELS))
    _check_words("temporality", records.column(_TEMPORALITY), _TEMPORALITIES)
    types, values, distributions = (records.column(name) for name in ("type", "value", "distribution"))
    _check_words("type", types, _TYPES)
    is_number = pc.is_in(types, value_set=_IS_NUMBER)
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
        is_other = pc.not_equal(types, _words(name)[0])
        for column in _PARTS[name]:
            _require(
                not pc.any(pc.and_(part[column].is_valid(), is_other)).as_py(),
                f"A distribution has {column}, but it is not of the type {name}.",
            )
        has_its_own = pc.or_(part[needed].is_valid(), is_other)
        _require(pc.all(has_its_own).as_py(), f"A distribution of the type {name} has no {needed}.")
    bounds, counts = _lengths(part["bounds"]), _lengths(part["counts"])
    _require(
        pc.all(pc.or_(pc.equal(counts, pc.add(bounds, _ONE)), pc.equal(pc.add(bounds, counts), _ZERO))).as_py(),
        "A histogram must have one count more than bounds, or neither.",
    )
    for one, other in (
        ("positive_indexes", "positive_counts"),
        ("negative_indexes", "negative_counts"),
        ("quantiles", "quantile_values"),
    ):
        _require(_lengths(part[one]).equals(_lengths(part[other])), f"There are not as many {one} as {other}.")
    for column in ("bounds", "positive_indexes", "negative_indexes"):
        lengths = _lengths(part[column])
        ends = np.cumsum(np.frombuffer(lengths.buffers()[1], np.int32, len(lengths), 4 * lengths.offset))
        _check_ascending(column, part[column].flatten(), ends)


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


def _check_words(name: str, column: pa.StringArray, words: _Words) -> None:
    left = len(column) - column.null_count
    for word in words.each:  # mostly one or two of them are all: that takes less than to look up each row
        if not left:
            return
        left -= _EQUAL.call([column, word]).true_count
    if left:
        raise _broken(f"A {name} is none of {words.told}.")


def _check_map(name: str, maps: pa.MapArray) -> None:
    keys = maps.keys
    if keys.null_count or maps.items.null_count:
        raise _broken(f"A key or value of {name} is null.")
    if not len(maps):
        return
    ends = positions(maps)
    if ends[0] or ends[-1] != len(keys):  # the maps are a part of others
        keys, ends = keys.slice(ends[0], ends[-1] - ends[0]), ends - ends[0]
    _check_ascending(name, keys, ends)


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
    # One byte for each pair: whether it ascends, or the second one begins anew. Two more at the end are of no pair: the
    # ends 0 and `len(items)` are not between two items.
    less = _LESS.call([items.slice(0, pairs), items.slice(1)]).buffers()[1]
    is_right = np.unpackbits(np.frombuffer(less, np.uint8), count=pairs + 2, bitorder="little")
    is_right[np.subtract(ends, 1, dtype=np.intp)] = 1
    if b"\0" in is_right[:pairs].tobytes():
        raise _broken(f"The {name} of a record are not ascending, or one is twice.")


def _lengths(lists: pa.ListArray) -> pa.Int32Array:
    return pc.fill_null(pc.list_value_length(lists), _ZERO)


def _require(holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not holds:
        raise _broken(otherwise)


def _broken(rule: str) -> BadFrame:
    return BadFrame("bad_records", f"{rule} See docs/frames.md.")
