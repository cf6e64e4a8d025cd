"""One value of an object as the value of a column: exactly, or not at all."""

import base64
import binascii
import math
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as kinds

from lakehead.consume.decode.exact_times import date_of, time_of, timestamp_of
from lakehead.consume.decode.json_values import NOT_FINITE, JsonValue, NotJson, Number, parse_value, to_text
from lakehead.consume.decode.misfit import Misfit

Convert = Callable[[JsonValue], Any]
"""Takes a value that is not null, returns what `pa.array` takes for the column's type, raises `Misfit`."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_LONGEST = 400
"""Digits after which an integer is larger than every double, and a number is not taken for any decimal."""
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def from_json(kind: pa.DataType) -> Convert:  # noqa: C901, PLR0912 - one case for each kind of column
    """Return what converts JSON values to a column's type.

    A text column takes every value: strings as they are, others as their JSON. A number column takes numbers, and
    strings only if it is a decimal. What JSON has no type for (dates, times, UUIDs, binary as base64) is a string.
    """
    if kinds.is_integer(kind):
        return _integer(kind)
    if kinds.is_floating(kind):
        return _single if kind.bit_width == 32 else _double
    if kinds.is_boolean(kind):
        return _boolean
    if is_text(kind):
        return _text
    if kinds.is_decimal(kind):
        return _decimal(kind)
    if is_uuid(kind):
        return _uuid
    if kinds.is_timestamp(kind):
        return _string(timestamp_of(kind))
    if kinds.is_date32(kind):
        return _string(date_of)
    if kinds.is_time(kind):
        return _string(time_of(kind))
    if is_binary(kind):
        return _base64(kind.byte_width if kinds.is_fixed_size_binary(kind) else None)
    if kinds.is_struct(kind):
        return _struct(kind)
    if kinds.is_map(kind):
        return _map(kind)
    if is_list(kind):
        return _list(kind)
    return _never


def from_text(kind: pa.DataType) -> Convert:
    """Return what converts texts without a type of their own, as in CSV, to a column's type. Nested ones are JSON."""
    convert = from_json(kind)
    if kinds.is_integer(kind) or kinds.is_floating(kind):

        def number(text: str) -> Any:
            if not (_NUMBER.fullmatch(text) or (text in NOT_FINITE and kinds.is_floating(kind))):
                raise Misfit
            return convert(Number(text.removeprefix("+")))

        return number
    if kinds.is_boolean(kind):
        return _spelled_boolean
    if is_list(kind) or kinds.is_struct(kind) or kinds.is_map(kind):

        def nested(text: str) -> Any:
            try:
                return convert(parse_value(text))
            except NotJson:
                raise Misfit from None

        return nested
    return convert


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's for text."""
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's for bytes."""
    return bool(
        kinds.is_binary(kind)
        or kinds.is_large_binary(kind)
        or kinds.is_binary_view(kind)
        or kinds.is_fixed_size_binary(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type is one of Arrow's for lists of any length."""
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))


def is_uuid(kind: pa.DataType) -> bool:
    """Return whether a type is Arrow's UUID."""
    return isinstance(kind, pa.UuidType)


def _never(_: JsonValue) -> Any:
    raise Misfit


def _is_integer_token(value: JsonValue) -> bool:
    return type(value) is Number and _INTEGER.fullmatch(value) is not None


def _integer(kind: pa.DataType) -> Convert:
    unsigned = kinds.is_unsigned_integer(kind)
    most = 2 ** (kind.bit_width - (not unsigned)) - 1
    least = 0 if unsigned else -most - 1

    def convert(value: JsonValue) -> int:
        if type(value) is not int:
            if not _is_integer_token(value) or len(value) > _LONGEST:
                raise Misfit
            value = int(value)
        if not least <= value <= most:
            raise Misfit
        return int(value)

    return convert


def _double(value: JsonValue) -> float:
    """Numbers with a fraction or exponent become the nearest double; integers only if they are exactly a double."""
    if type(value) is int:
        made = float(value)
        if int(made) != value:
            raise Misfit
        return made
    if type(value) is not Number:
        raise Misfit
    made = float(value)
    if value in NOT_FINITE:
        return made
    if math.isinf(made):
        raise Misfit
    if _is_integer_token(value) and (len(value) > _LONGEST or int(made) != int(value)):
        raise Misfit
    return made


def _single(value: JsonValue) -> float:
    """As `_double`, with the digits of a single-precision float."""
    exact = _double(value)
    if math.isnan(exact) or math.isinf(exact):
        return exact
    # Rounded once, from the digits, as Arrow's reader does: by way of a double it would be rounded twice.
    made = float(pa.scalar(str(value)).cast(pa.float32()).as_py())
    if math.isinf(made) or ((type(value) is int or _is_integer_token(value)) and made != exact):
        raise Misfit
    return made


def _boolean(value: JsonValue) -> bool:
    if type(value) is not bool:
        raise Misfit
    return value


def _spelled_boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise Misfit
    return _BOOLEANS[text]


def _text(value: JsonValue) -> str:
    if type(value) is str:
        return value
    return str(value) if type(value) is Number else to_text(value)


def _decimal(kind: pa.DataType) -> Convert:
    whole_digits, scale = kind.precision - kind.scale, kind.scale

    def convert(value: JsonValue) -> Decimal:
        if type(value) is bool or not isinstance(value, int | str):
            raise Misfit
        written = str(value)
        if len(written) > _LONGEST or not _NUMBER.fullmatch(written):
            raise Misfit
        try:
            sign, digits, exponent = Decimal(written).as_tuple()
        except InvalidOperation:
            raise Misfit from None
        text = "".join(map(str, digits)).lstrip("0")
        shift = int(exponent) + scale
        if not text:
            return Decimal((0, (0,), -scale))
        if len(text) + int(exponent) > whole_digits or (shift < 0 and text[shift:].strip("0")):
            raise Misfit
        unscaled = text[:shift] if shift < 0 else text + "0" * shift
        return Decimal((sign, tuple(map(int, unscaled)), -scale))

    return convert


def _string(convert: Callable[[str], int]) -> Convert:
    def checked(value: JsonValue) -> int:
        if type(value) is not str:
            raise Misfit
        return convert(value)

    return checked


def _uuid(value: JsonValue) -> bytes:
    if type(value) is not str or not _UUID.fullmatch(value):
        raise Misfit
    return UUID(value).bytes


def _base64(width: int | None) -> Convert:
    def convert(value: JsonValue) -> bytes:
        if type(value) is not str:
            raise Misfit
        try:
            made = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise Misfit from None
        # Python ignores bits that do not fill a byte, and text after the padding.
        if base64.b64encode(made).decode() != value or (width is not None and len(made) != width):
            raise Misfit
        return made

    return convert


def _struct(kind: pa.DataType) -> Convert:
    fields = {field.name: from_json(field.type) for field in kind}

    def convert(value: JsonValue) -> dict[str, Any]:
        if type(value) is not dict:
            raise Misfit
        made = {}
        for name, item in value.items():
            if item is None:
                continue
            if name not in fields:
                raise Misfit
            made[name] = fields[name](item)
        return made

    return convert


def _map(kind: pa.DataType) -> Convert:
    if not is_text(kind.key_type):
        return _never
    convert_item = from_json(kind.item_type)

    def convert(value: JsonValue) -> list[tuple[str, Any]]:
        if type(value) is not dict:
            raise Misfit
        return [(name, None if item is None else convert_item(item)) for name, item in value.items()]

    return convert


def _list(kind: pa.DataType) -> Convert:
    convert_item = from_json(kind.value_type)

    def convert(value: JsonValue) -> list[Any]:
        if type(value) is not list:
            raise Misfit
        return [None if item is None else convert_item(item) for item in value]

    return convert
