"""What is wrong with a configuration, in sentences: where in the file, and what would be right."""

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

_SENTENCES = {
    "bool_type": "must be true or false.",
    "dict_type": "must be a table of keys.",
    "enum": "must be {expected}.",
    "greater_than_equal": "must be at least {ge}.",
    "int_from_float": "must be a whole number.",
    "int_type": "must be a whole number.",
    "less_than_equal": "must be at most {le}.",
    "literal_error": "must be {expected}.",
    "mapping_type": "must be a table of keys.",
    "missing": "is missing.",
    "model_type": "must be a table of keys.",
    "path_type": "must be a path, as text.",
    "string_pattern_mismatch": "is not written as it must be.",
    "string_too_short": "must not be empty.",
    "string_type": "must be text.",
    "too_short": "must not be empty.",
    "tuple_type": "must be a list.",
    "union_tag_invalid": "must have one of these as its type: {expected_tags}.",
    "union_tag_not_found": "must say its type: iceberg or files.",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. It holds nothing of what the file says but the names of keys."""

    path: str
    """The place in the file, as in `tables[3].primary_keys`; empty for the whole of it."""

    sentence: str

    def __str__(self) -> str:
        return f"{self.path}: {self.sentence}" if self.path else self.sentence


class ConfigFaults(Misconfigured):
    """A configuration cannot be used. All that is wrong with it is told, a line for each."""

    def __init__(self, file: str, faults: Iterable[Fault]) -> None:
        self.faults = tuple(sorted(set(faults), key=_in_order))
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        super().__init__("\n  ".join([f"{file} cannot be used: {count}.", *map(str, self.faults)]))


def _in_order(fault: Fault) -> tuple[list[tuple[int, str]], str]:
    numbers = [(int(word), "") if word.isdecimal() else (0, word) for word in re.split(r"([0-9]+)", fault.path)]
    return numbers, fault.sentence


def path_of(place: Sequence[int | str]) -> str:
    """A place as people write it."""
    words = ""
    for part in place:
        if isinstance(part, int):
            words += f"[{part}]"
        elif _BARE.fullmatch(part) or part == "$schema":
            words += f".{part}" if words else part
        else:
            words += f'["{part}"]'
    return words


def explain(error: ErrorDetails, schema: Schema) -> Fault:
    """A fault of the file's shape, in our words."""
    place, key = _walk(error["loc"], schema)
    context = error.get("ctx") or {}
    if error["type"] == "lakehead":
        return Fault(path_of(place), error["msg"])
    if error["type"] == "extra_forbidden":
        return Fault(path_of(place), _unknown(error["loc"], schema))
    # Never Pydantic's own words for what we do not know: they may quote the file.
    said = _SENTENCES.get(error["type"], "is not what it should be.").format_map(context)
    if error["type"] in ("literal_error", "enum") and isinstance(error["input"], str):
        meant = get_close_matches(error["input"], re.findall(r"'([^']+)'", said), 1)
        said += f" Did you mean {meant[0]!r}?" if meant else ""
    meaning = key.get("description", "")
    return Fault(path_of(place), f"{said} {meaning}".strip())


def _unknown(location: Place, root: Schema) -> str:
    *above, last = location
    key, known = str(last), list(_walk(tuple(above), root)[1].get("properties", {}))
    meant = [*get_close_matches(key, known, 1), *(name for name in known if name.startswith(key))]
    if meant:
        return f"is not known here. Did you mean {meant[0]}?"
    for name, child in root["properties"].items():
        if above != [name] and key in _resolved(child, root).get("properties", {}):
            return f"is not known here. Did you mean {path_of((name, key))}?"
    return f"is not known here. Known are {', '.join(known)}."


def _walk(location: Place, root: Schema) -> tuple[Place, Schema]:
    """The place in the file, without the words that only Pydantic has for it, and what the schema says of it."""
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
    """The schema that a node stands for; its own description goes before that of what it refers to."""
    options = [option for option in node.get("anyOf", ()) if option.get("type") != "null"]
    target = options[0] if len(options) == 1 else node
    if "$ref" in target:
        target = root["$defs"][target["$ref"].rpartition("/")[2]]
    return {**target, **{key: node[key] for key in ("description",) if key in node}}
