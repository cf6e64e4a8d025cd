"""The type of a new column, from all of its values, and types that hold the values of several."""

from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.types as kinds

from lakehead.consume.decode.exact_times import NS_PER_UNIT
from lakehead.consume.decode.exact_values import is_list, is_text
from lakehead.consume.decode.json_values import NOT_FINITE, JsonValue, Number
from lakehead.lake.column_names import MOST_COLUMNS
from lakehead.lake.column_paths import is_ambiguous

_EXACT_IN_A_DOUBLE = 2**53
_MOST_DIGITS = 38
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


class SeenValues:
    """What JSON values of one column, or of one place inside it, were like."""

    __slots__ = ("boolean", "column", "fields", "fraction", "item", "large", "long", "places", "short", "text")

    def __init__(self, column: "SeenValues | None" = None) -> None:
        """`column` is what this is a place inside of."""
        self.column = column or self
        self.places = 0
        self.boolean = self.text = self.fraction = False
        self.short = self.long = self.large = False
        """Whether there were integers up to 2^53, which a double holds exactly; up to 2^63; and beyond."""
        self.item: SeenValues | None = None
        self.fields: dict[str, SeenValues] | None = None

    def add(self, value: JsonValue) -> None:
        """Take note of a value. Null is no value."""
        kind = type(value)
        if self.text:
            return  # text takes whatever else there is
        if kind is str:
            self.text = True
        elif kind is int or kind is Number:
            self._add_number(value)
        elif kind is bool:
            self.boolean = True
        elif kind is list:
            self.item = self.item or SeenValues(self.column)
            for item in value:
                self.item.add(item)
        elif kind is dict:
            self._add_object(value)

    def type(self) -> pa.DataType | None:
        """Return a type that holds each of the values; None if none of them tells, as null, `[]` and `{}` do not.

        Integers are `int64`, with fractions among them `double`; beyond 2^63 they are decimals. Where that would round,
        and for values of several kinds, it is `string`, which takes every value as its JSON text.
        """
        if not self.tells():
            return None
        number = self.short or self.long or self.large or self.fraction
        if self.boolean + self.text + number + (self.item is not None) + (self.fields is not None) > 1 or self.text:
            return pa.string()
        if self.boolean:
            return pa.bool_()
        if number:
            return self._number()
        if self.item is not None:
            return pa.list_(self.item.type() or pa.string())
        return self._struct()

    def _add_number(self, value: int | Number) -> None:
        if isinstance(value, Number):
            digits = value.removeprefix("-")
            if not digits.isdigit():
                if value not in NOT_FINITE and float(value) in {float("inf"), float("-inf")}:
                    self.text = True
                self.fraction = True
                return
            if len(digits) > _MOST_DIGITS:
                self.text = True
                return
            value = int(value)
        if -_EXACT_IN_A_DOUBLE <= value <= _EXACT_IN_A_DOUBLE:
            self.short = True
        elif -(2**63) <= value < 2**63:
            self.long = True
        else:
            self.large = True

    def _add_object(self, value: dict[str, JsonValue]) -> None:
        if self.fields is None:
            self.fields = {}
        for name, item in value.items():
            if item is None:
                continue
            if name not in self.fields:
                if self.column.places >= MOST_COLUMNS:
                    # Keys like ids: no column has that many fields.
                    self.column.become_text()
                    return
                self.column.places += 1
                self.fields[name] = SeenValues(self.column)
            self.fields[name].add(item)

    def become_text(self) -> None:
        """Forget what is inside: there are too many fields for a column."""
        self.text, self.fields, self.item = True, None, None

    def _number(self) -> pa.DataType:
        if self.fraction:
            return pa.string() if self.long or self.large else pa.float64()
        return pa.decimal128(_MOST_DIGITS, 0) if self.large else pa.int64()

    def _struct(self) -> pa.DataType:
        fields = {
            name: seen.type() or _UNKNOWN.get(seen.item is not None) for name, seen in (self.fields or {}).items()
        }
        return pa.struct([(name, kind) for name, kind in fields.items() if kind is not None])

    def tells(self) -> bool:
        """Return whether there was a value other than lists and objects that have nothing in them."""
        if self.boolean or self.text or self.fraction or self.short or self.long or self.large:
            return True
        inside: Iterable[SeenValues] = [*([self.item] if self.item else []), *(self.fields or {}).values()]
        # A list and an object in one place are text.
        return (self.item is not None and self.fields is not None) or any(seen.tells() for seen in inside)


_UNKNOWN = {True: pa.list_(pa.string()), False: pa.string()}
"""What an empty list, or an empty object, is inside a struct: the struct's type must hold it."""


def readable(kind: pa.DataType) -> pa.DataType:
    """Return a type, or `string` in place of one whose fields some engines cannot tell apart by their names."""
    return pa.string() if is_ambiguous(kind) else kind


def unify_columns(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of all schemas, in order of appearance, each with a type for the values of all of them.

    Integers become the wider integer, with decimals a decimal that has the digits of both, with floats a double; times
    get the finer unit; lists, structs and maps are unified inside. Everything else, such as a number and a text, or a
    decimal and a double, becomes `string`: it takes every value as its JSON text, so nothing is lost. The one type that
    may not hold a value is a double made of integers and floats: reading rescues an integer that a double would round.
    """
    types: dict[str, pa.DataType] = {}
    for schema in schemas:
        for field in schema:
            types[field.name] = unify(types[field.name], field.type) if field.name in types else field.type
    return pa.schema(list(types.items()))


def unify(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return one type for the values of two, as `unify_columns` says."""
    if one.equals(other) or kinds.is_null(other):
        return one
    if kinds.is_null(one):
        return other
    if _is_number(one) and _is_number(other):
        return _number(one, other)
    if kinds.is_timestamp(one) and kinds.is_timestamp(other) and one.tz == other.tz:
        return pa.timestamp(_finer(one, other), one.tz)
    if kinds.is_time(one) and kinds.is_time(other):
        finer = _finer(one, other)
        return pa.time64(finer) if finer in {"us", "ns"} else pa.time32(finer)
    if is_text(one) and is_text(other):
        return one
    if is_list(one) and is_list(other):
        return pa.list_(unify(one.value_type, other.value_type))
    if kinds.is_struct(one) and kinds.is_struct(other):
        return readable(pa.struct(list(unify_columns([pa.schema(list(one)), pa.schema(list(other))]))))
    if kinds.is_map(one) and kinds.is_map(other) and one.key_type.equals(other.key_type):
        return pa.map_(one.key_type, unify(one.item_type, other.item_type))
    return pa.string()


def _is_number(kind: pa.DataType) -> bool:
    return bool(kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind))


def _number(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if kinds.is_integer(one) and kinds.is_integer(other):
        return max(one, other, key=lambda kind: kind.bit_width)
    if kinds.is_decimal(one) or kinds.is_decimal(other):
        if kinds.is_floating(one) or kinds.is_floating(other):
            return pa.string()
        (whole, scale), (other_whole, other_scale) = _digits(one), _digits(other)
        most = max(scale, other_scale)
        precision = max(whole, other_whole) + most
        return pa.decimal128(precision, most) if precision <= _MOST_DIGITS else pa.string()
    return pa.float64()


def _digits(kind: pa.DataType) -> tuple[int, int]:
    if kinds.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return _INTEGER_DIGITS[kind.bit_width], 0


def _finer(one: pa.DataType, other: pa.DataType) -> str:
    return str(min(one.unit, other.unit, key=NS_PER_UNIT.__getitem__))
