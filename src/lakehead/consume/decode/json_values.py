"""JSON as it stands in an object: numbers keep their digits, and nothing is dropped.

A value is None, a bool, an int of at most 18 digits, a `Number`, a str, a list or a dict.
"""

import json
import re
from typing import Any

JsonValue = Any

DEEPEST = 100
"""How deep objects and lists may be nested in a row."""

NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
"""Numbers that JSON does not have, and that many writers write."""

_SHORT = 18
_NEGATIVE_ZERO = frozenset({"-0"})
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?+|([\[{])|([\]}])', re.DOTALL)
"""A text that never ends is taken to the end of the row: each of its quotes would begin a new search otherwise."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Number(str):
    """A number as it is written, where a Python number could differ: any with a fraction or exponent, and long ones."""

    __slots__ = ()


class NotJson(ValueError):
    """A row is no JSON object that can be read without guessing."""

    def __init__(self, reason: str, column: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.column = column
        """Where in the row, from 1; None if it is about all of it."""

    def at(self, where: str) -> str:
        """Return a sentence that begins with where the row is."""
        return f"{where}{f', column {self.column}' if self.column else ''}: {self.reason}."


def parse_row(line: bytes) -> dict[str, JsonValue]:
    """Return the object that a line holds. Raises `NotJson`.

    Not readable are also: a key twice in one object, halves of surrogate pairs, and more than `DEEPEST` levels.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise NotJson("the text is not UTF-8", error.start + 1) from None
    value = parse_value(text)
    if type(value) is not dict:
        raise NotJson(f"the row is {_kind(value)} and not a JSON object")
    return value


def parse_value(text: str) -> JsonValue:
    """Return any JSON value. Raises `NotJson`."""
    if text.count("{") + text.count("[") > DEEPEST and _depth(text) > DEEPEST:
        raise NotJson(f"objects and lists are nested deeper than {DEEPEST} levels")
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"this is not JSON ({error.msg})", error.pos + 1) from None
    except RecursionError:
        raise NotJson("objects and lists are nested too deep") from None
    if "\\u" in text and _SURROGATE.search(to_text(value)):
        raise NotJson("a string has half of a surrogate pair, which is not Unicode text")
    return value


def to_text(value: JsonValue) -> str:
    """Return a value as JSON, without spaces, with each number as it was written. What JSON lacks becomes a string."""
    kind = type(value)
    if kind is Number:
        return f'"{value}"' if value in NOT_FINITE else str(value)
    if kind is dict:
        return "{" + ",".join([f"{_quoted(key)}:{to_text(item)}" for key, item in value.items()]) + "}"
    if kind is list:
        return "[" + ",".join([to_text(item) for item in value]) + "]"
    return _quoted(value)


_quoted = json.JSONEncoder(ensure_ascii=False).encode


def _integer(token: str) -> int | Number:
    return int(token) if len(token) <= _SHORT and token not in _NEGATIVE_ZERO else Number(token)


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise NotJson(f"the key {_quoted(twice)} occurs twice in one object")
    return made


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=Number, parse_constant=Number)


def _depth(text: str) -> int:
    depth = deepest = 0
    for found in _BRACKETS.finditer(text):
        depth += (found[1] is not None) - (found[2] is not None)
        deepest = max(deepest, depth)
    return deepest


def _kind(value: JsonValue) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
