"""Problems of a configuration file: their place in the file, and a message that says how to fix them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

from lakehead.errors import Misconfigured

Schema = Mapping[str, Any]
Place = tuple[int | str, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")

_MESSAGES = {
    "bool_type": "must be true or false.",
    "dict_type": "must be an object with keys.",
    "enum": "must be {expected}.",
    "greater_than_equal": "must be at least {ge}.",
    "int_from_float": "must be an integer.",
    "int_type": "must be an integer.",
    "less_than_equal": "must be at most {le}.",
    "literal_error": "must be {expected}.",
    "mapping_type": "must be an object with keys.",
    "missing": "is missing.",
    "model_type": "must be an object with keys.",
    "path_type": "must be a path (a string).",
    "string_pattern_mismatch": "has an invalid format.",
    "string_too_short": "must not be empty.",
    "string_type": "must be a string.",
    "too_short": "must not be empty.",
    "tuple_type": "must be a list.",
    "union_tag_invalid": "must have one of these types: {expected_tags}.",
    "union_tag_not_found": "needs a type: iceberg or files.",
}


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One problem of a configuration file. It contains names of keys, but no values."""

    path: str
    """The place in the file, such as `tables[3].primary_keys`; empty for the whole file."""

    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidConfig(Misconfigured):
    """The configuration file is invalid. The message has one line per problem."""

    def __init__(self, file: str, problems: Iterable[ConfigProblem]) -> None:
        self.problems = tuple(sorted(set(problems), key=_sort_key))
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n  ".join([f"{file} is invalid: {count}.", *map(str, self.problems)]))


def _sort_key(problem: ConfigProblem) -> tuple[list[tuple[int, str]], str]:
    numbers = [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"([0-9]+)", problem.path)]
    return numbers, problem.message


def path_of(place: Sequence[int | str]) -> str:
    """Format a place as text, such as `tables[3].primary_keys`."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _BARE.fullmatch(part) or part == "$schema":
            text += f".{part}" if text else part
        else:
            text += f'["{part}"]'
    return text


def explain(error: ErrorDetails, schema: Schema) -> ConfigProblem:
    """Convert an error of Pydantic to a problem."""
    place, key = _walk(error["loc"], schema)
    context = error.get("ctx") or {}
    if error["type"] == "lakehead":
        return ConfigProblem(path_of(place), error["msg"])
    if error["type"] == "extra_forbidden":
        return ConfigProblem(path_of(place), _unknown(error["loc"], schema))
    # Never Pydantic's own message for an unknown type: it may quote a value.
    message = _MESSAGES.get(error["type"], "is invalid.").format_map(context)
    if error["type"] in ("literal_error", "enum") and isinstance(error["input"], str):
        meant = get_close_matches(error["input"], re.findall(r"'([^']+)'", message), 1)
        message += f" Did you mean {meant[0]!r}?" if meant else ""
    meaning = key.get("description", "")
    return ConfigProblem(path_of(place), f"{message} {meaning}".strip())


def _unknown(location: Place, root: Schema) -> str:
    *above, last = location
    key, known = str(last), list(_walk(tuple(above), root)[1].get("properties", {}))
    meant = [*get_close_matches(key, known, 1), *(name for name in known if name.startswith(key))]
    if meant:
        return f"is unknown. Did you mean {meant[0]}?"
    for name, child in root["properties"].items():
        if above != [name] and key in _resolved(child, root).get("properties", {}):
            return f"is unknown. Did you mean {path_of((name, key))}?"
    return f"is unknown. Known keys are {', '.join(known)}."


def _walk(location: Place, root: Schema) -> tuple[Place, Schema]:
    """Return the place in the file, without parts that only Pydantic adds, and its JSON Schema."""
    place: list[int | str] = []
    node: Schema = root
    for part in location:
        mapping = node.get("discriminator", {}).get("mapping", {})
        if part in mapping:
            node = _resolved({"$ref": mapping[part]}, root)
            continue
        if part == "[key]":
            continue
        place.append(part)
        if isinstance(part, int):
            node = _resolved(node.get("items", {}), root)
        else:
            below = node.get("additionalProperties") or {}
            node = _resolved(node.get("properties", {}).get(part, below), root)
    return tuple(place), node


def _resolved(node: Schema, root: Schema) -> Schema:
    """Return the schema that a node refers to, with the node's own description if it has one."""
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    target = options[0] if len(options) == 1 else node
    if "$ref" in target:
        target = root["$defs"][target["$ref"].rpartition("/")[2]]
    return {**target, **{key: node[key] for key in ("description",) if key in node}}
