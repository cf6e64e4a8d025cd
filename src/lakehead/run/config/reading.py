"""From a file to a configuration, or to all that is wrong with it."""

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lakehead.errors import Misconfigured
from lakehead.run.config.config import Config, json_schema
from lakehead.run.config.faults import ConfigFaults, Fault, Place, explain, path_of
from lakehead.run.config.rules import broken_rules


def read_config(path: Path) -> Config:
    """The configuration in a file, JSON or TOML by its ending, or by its first character where that tells nothing.

    Raises `ConfigFaults` with every fault of the file, and `Misconfigured` for a file that cannot be read. No message
    holds a value from it.
    """
    try:
        written = path.read_bytes()
    except OSError as error:
        raise Misconfigured(f"The configuration {path} cannot be read: {error.strerror}.") from None
    raw, faults = _parse(written, path.suffix.lower())
    config: Config | None = None
    if raw is not None:
        config, more = _validate(raw)
        faults += more
    if config is None or faults:
        # Outside of any handler: what Pydantic raised holds values, and must not travel along as a context.
        raise ConfigFaults(str(path), faults)
    return config


def _parse(written: bytes, ending: str) -> tuple[dict[str, Any] | None, list[Fault]]:
    twice: list[tuple[Mapping[str, Any], str]] = []
    try:
        text = written.decode("utf-8-sig")
        if ending == ".json" or (ending != ".toml" and text.lstrip().startswith("{")):
            raw = json.loads(text, object_pairs_hook=_keeping(twice), parse_float=Decimal, parse_constant=_no_number)
        else:
            raw = tomllib.loads(text, parse_float=Decimal)
    except UnicodeDecodeError:
        return None, [Fault("", "It is not text in UTF-8.")]
    except json.JSONDecodeError as error:
        return None, [Fault("", f"It is no JSON: {error.msg}, in line {error.lineno}, column {error.colno}.")]
    except tomllib.TOMLDecodeError as error:
        return None, [Fault("", f"It is no TOML: {error}.")]
    except (ValueError, RecursionError):
        return None, [Fault("", "It holds a number that is too long or not a number, or too many nested brackets.")]
    if not isinstance(raw, dict):
        return None, [Fault("", "It must be a table of keys, in curly brackets.")]
    return raw, [Fault(path_of(place), "stands twice in the file. Keep one of them.") for place in _places(raw, twice)]


def _validate(raw: Mapping[str, Any]) -> tuple[Config | None, list[Fault]]:
    faults = list(broken_rules(raw))
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        schema = json_schema()
        return None, faults + [explain(each, schema) for each in error.errors(include_url=False)]
    inner = config.runtime.metadata
    if inner is not None:
        runtime = config.runtime.model_copy(update={"metadata": None})
        config = config.model_copy(update={"metadata": inner, "runtime": runtime})
    return config, faults


def _keeping(twice: list[tuple[Mapping[str, Any], str]]) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """Makes tables of pairs, and remembers which keys a table was given more than once."""

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice.extend((made, key) for key, count in counts.items() if count > 1)
        return made

    return table


def _places(raw: object, twice: list[tuple[Mapping[str, Any], str]], above: Place = ()) -> Iterator[Place]:
    """Where the keys are that were given more than once."""
    if isinstance(raw, dict):
        yield from ((*above, key) for made, key in twice if made is raw)
    below = raw.items() if isinstance(raw, dict) else enumerate(raw) if isinstance(raw, list) else ()
    for part, child in below:
        yield from _places(child, twice, (*above, part))


def _no_number(_word: str) -> None:
    raise ValueError
