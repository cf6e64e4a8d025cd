"""JSON of strangers: read within bounds, and every field with the type that it must have."""

import json
import re
from typing import Any, NoReturn

from lakehead.consume.objects import NotUnderstood
from lakehead.consume.web_urls import shown

JsonObject = dict[str, Any]

MAX_SIZE = 2**63 - 1
_DIGITS = re.compile(r"[0-9]{1,19}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_TEXT = 16_384
_MAX_NAMES = 8
_TYPES = {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}


def parse_object(text: str, expected: str) -> JsonObject:
    """Return the JSON object that a text is. Raises `NotUnderstood`, also for a field that is there twice."""
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise NotUnderstood(f"The message is not valid JSON. Expected {expected}; it is {shown(text)}.") from None
    if not isinstance(value, dict):
        raise NotUnderstood(f"The message is JSON, but {_type(value)}. Expected {expected}.")
    return value


def field_names(fields: JsonObject) -> str:
    """Return the names of an object's first fields, for a message to people."""
    names = ", ".join(shown(name[:40]) for name in list(fields)[:_MAX_NAMES])
    return f"the fields {names}{', …' if len(fields) > _MAX_NAMES else ''}" if fields else "no fields"


def section(fields: JsonObject, name: str, path: str) -> JsonObject:
    """Return a field that must be an object. `path` says where the fields are, for the error."""
    value = fields.get(name)
    if not isinstance(value, dict):
        _wrong(path, name, "an object", value)
    return value


def text(fields: JsonObject, name: str, path: str) -> str:
    """Return a field that must be a text, and not be empty."""
    value = optional_text(fields, name, path)
    if value is None:
        _wrong(path, name, "a text", fields.get(name))
    return value


def optional_text(fields: JsonObject, name: str, path: str) -> str | None:
    """Return a field that is a text; None if it is not there, null or empty."""
    value = fields.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        _wrong(path, name, "a text", value)
    if len(value) > _MAX_TEXT:
        raise NotUnderstood(f"{path}.{name} has {len(value)} characters; at most {_MAX_TEXT} are expected.")
    if _SURROGATE.search(value):
        raise NotUnderstood(f"{path}.{name} is not valid Unicode text.")
    return value


def optional_size(fields: JsonObject, name: str, path: str) -> int | None:
    """Return a field that is a number of bytes, also as a text of digits; None if it is not there or null."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_SIZE:
        _wrong(path, name, "a number of bytes", value)
    return value


def _wrong(path: str, name: str, expected: str, value: object) -> NoReturn:
    raise NotUnderstood(f"{path}.{name} should be {expected}, and is {_type(value)}.")


def _type(value: object) -> str:
    if value is None:
        return "missing or null"
    return "an empty text" if value == "" else f"{_TYPES[type(value)]}"


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
