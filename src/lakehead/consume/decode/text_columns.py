"""Columns of text converted to other types: all values at once where they are plain, one by one where they are not."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from lakehead.consume.decode.arrays import to_array
from lakehead.consume.decode.exact_times import FIRST_DAY, LAST_DAY
from lakehead.consume.decode.exact_values import from_text, is_text
from lakehead.consume.decode.misfit import Misfit

_DAY_US = 86_400_000_000
_CLOCK = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_ZONE = r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_FLOAT = r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_INEXACT = {32: 2.0**24, 64: 2.0**53}

_MOST_DIGITS = 29
_BEFORE_A_NUMBER = frozenset(b' ,:["\t\r\n')
_LONGEST_NUMBER = 64
"""More than a sign, 29 digits, a point and 29 digits."""

_Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
_Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


def texts_to_array(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Return texts as a column's type, and which of them do not fit; those are null."""
    try:
        made = _all_at_once(values, kind)
    except pa.ArrowInvalid:
        made = None
    return (made, []) if made is not None else _one_by_one(values, kind)


def floats_may_be_rounded(values: pa.Array) -> bool:
    """Return whether parsed floats may have been integers with more digits than a float has, or are not finite."""
    buffer = values.buffers()[1]
    if buffer is None:
        return False
    numbers = np.frombuffer(buffer, np.float32 if values.type.bit_width == 32 else np.float64)
    numbers = numbers[values.offset : values.offset + len(values)]
    return not bool((np.abs(numbers) < _INEXACT[values.type.bit_width]).all())


def has_risky_decimals(text: bytes) -> bool:
    """Return whether JSON has numbers, or texts like numbers, that Arrow may get wrong, or crash on, as decimals.

    It scales digits without checking for overflow. Up to 29 digits with an exponent from -39 to 9 fit into its 76.
    """
    characters = np.frombuffer(text, np.uint8)
    digits = (characters - ord("0")) < 10  # below zero it wraps around
    if _has_run(digits, _MOST_DIGITS + 1):
        return True
    return any(
        _ends_with_number(text[max(0, mark - _LONGEST_NUMBER) : mark]) for mark in _large_exponents(characters, digits)
    )


def _has_run(flags: _Flags, length: int) -> bool:
    """Return whether so many flags in a row are set. Runs of twice the length are two runs next to each other."""
    found = 1
    while found < length and flags.any():
        step = min(found, length - found)
        flags = flags[:-step] & flags[step:]
        found += step
    return bool(flags.any())


def _ends_with_number(text: bytes) -> bool:
    before = text.rstrip(b"0123456789.")
    if before.endswith((b"-", b"+")):
        before = before[:-1]
    return not before or before[-1] in _BEFORE_A_NUMBER


def _large_exponents(characters: _Bytes, digits: _Flags) -> list[int]:
    """Return where something looks like a large exponent; a part of a text may do so too."""
    marks = np.flatnonzero(((characters[1:] | 32) == ord("e")) & (digits[:-1] | (characters[:-1] == ord(".")))) + 1
    last = len(characters) - 1
    after = characters[np.minimum(marks + 1, last)]
    negative = after == ord("-")
    first = marks + 1 + (negative | (after == ord("+")))
    one, two, three = (np.minimum(first + offset, last) for offset in range(3))
    least = np.where(negative, ord("4"), ord("1"))
    found: list[int] = marks[digits[one] & digits[two] & (digits[three] | (characters[one] >= least))].tolist()
    return found


def exact_decimals(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return wide decimals, or plain texts, as a decimal column. Raises `pa.ArrowInvalid` if one does not fit."""
    return values.cast(pa.decimal256(76, kind.scale)).cast(kind)


def _all_at_once(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return the column if all of its texts have the most common form; None or `pa.ArrowInvalid` if that is not so."""
    if is_text(kind):
        return values.cast(kind)
    if kinds.is_integer(kind):
        return values.cast(kind) if _all_match(values, "^-?[0-9]{1,19}$") else None
    if kinds.is_floating(kind):
        made = values.cast(kind) if _all_match(values, _FLOAT) else None
        return None if made is None or floats_may_be_rounded(made) else made
    if kinds.is_decimal(kind):
        plain = _all_match(values, r"^-?[0-9]{1,29}(\.[0-9]{1,37})?$")
        return exact_decimals(values, kind) if plain else None
    if kinds.is_boolean(kind):
        plain = _all_match(values, "^(true|false)$")
        return pc.equal(values, "true") if plain else None
    if kinds.is_date32(kind):
        made = values.cast(kind) if _all_match(values, f"^{_DATE}$") else None
        return made if made is not None and _within(made.cast(pa.int32()), FIRST_DAY, LAST_DAY) else None
    if kinds.is_timestamp(kind) and kind.unit == "us":
        plain = _all_match(values, f"^{_DATE}[T ]{_CLOCK}{_ZONE if kind.tz else ''}$")
        made = values.cast(kind) if plain else None
        least, most = FIRST_DAY * _DAY_US, (LAST_DAY + 1) * _DAY_US - 1
        return made if made is not None and _within(made.cast(pa.int64()), least, most) else None
    return None


def _one_by_one(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    convert = from_text(kind)
    made, misfits = values.to_pylist(), []
    for number, text in enumerate(made):
        if text is not None:
            try:
                made[number] = convert(text)
            except Misfit:
                made[number] = None
                misfits.append(number)
    return to_array(made, kind), misfits


def _all_match(values: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(values, pattern)).as_py() is not False


def _within(numbers: pa.Array, least: int, most: int) -> bool:
    span = pc.min_max(numbers)
    low, high = span["min"].as_py(), span["max"].as_py()
    return low is None or (low >= least and high <= most)
