"""Reads and validates a configuration file."""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lakehead.errors import Misconfigured
from lakehead.run.config.pipeline_config import PipelineConfig, json_schema
from lakehead.run.config.problems import ConfigProblem, InvalidConfig, Place, explain, path_of
from lakehead.run.config.rules import broken_rules


def read_config(path: Path) -> PipelineConfig:
    """Read a JSON or TOML configuration. The format follows the file's ending, else its first character.

    Raises `InvalidConfig` with every problem of the file, and `Misconfigured` for a file that cannot be read. Messages
    contain no values of the file, because they may be secrets.
    """
    try:
        written = path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"The configuration {path} cannot be read: {error.strerror}.") from None
    raw, problems = _parse(written, path.suffix.lower())
    config: PipelineConfig | None = None
    if raw is not None:
        config, more = _validate(raw)
        problems += more
    if config is None or problems:
        # Outside of any handler, so that Pydantic's error, which holds values, is not chained as context.
        raise InvalidConfig(str(path), problems)
    return config


def _parse(written: bytes, ending: str) -> tuple[dict[str, Any] | None, list[ConfigProblem]]:
    duplicates: list[tuple[Mapping[str, Any], str]] = []
    try:
        text = written.decode("utf-8-sig")
        if ending == ".json" or (ending != ".toml" and text.lstrip().startswith("{")):
            raw = json.loads(
                text, object_pairs_hook=_recording(duplicates), parse_float=Decimal, parse_constant=_no_number
            )
        else:
            raw = tomllib.loads(text, parse_float=Decimal)
    except UnicodeDecodeError:
        return None, [ConfigProblem("", "The file is not UTF-8 text.")]
    except json.JSONDecodeError as error:
        return None, [
            ConfigProblem("", f"The file is not valid JSON: {error.msg}, in line {error.lineno}, column {error.colno}.")
        ]
    except tomllib.TOMLDecodeError as error:
        return None, [ConfigProblem("", f"The file is not valid TOML: {error}.")]
    except (ValueError, RecursionError):
        return None, [ConfigProblem("", "The file has an invalid number or is nested too deeply.")]
    if not isinstance(raw, dict):
        return None, [ConfigProblem("", "The file must be an object in curly braces.")]
    return raw, [
        ConfigProblem(path_of(place), "is duplicated. Remove one of them.") for place in _places(raw, duplicates)
    ]


def _validate(raw: Mapping[str, Any]) -> tuple[PipelineConfig | None, list[ConfigProblem]]:
    problems = list(broken_rules(raw))
    try:
        config = PipelineConfig.model_validate(raw)
    except ValidationError as error:
        schema = json_schema()
        return None, problems + [explain(each, schema) for each in error.errors(include_url=False)]
    inner = config.runtime.metadata
    if inner is not None:
        runtime = config.runtime.model_copy(update={"metadata": None})
        config = config.model_copy(update={"metadata": inner, "runtime": runtime})
    return config, problems


def _recording(duplicates: list[tuple[Mapping[str, Any], str]]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Return a JSON object hook that builds dictionaries and records duplicate keys."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            duplicates.extend((made, key) for key, count in counts.items() if count > 1)
        return made

    return table


def _places(raw: object, duplicates: list[tuple[Mapping[str, Any], str]], above: Place = ()) -> Iterator[Place]:
    """Yield the places of duplicate keys."""
    if isinstance(raw, dict):
        yield from ((*above, key) for made, key in duplicates if made is raw)
    below = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    for part, child in below:
        yield from _places(child, duplicates, (*above, part))


def _no_number(_word: str) -> None:
    raise ValueError
