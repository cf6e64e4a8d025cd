"""The keys that are validated and have no effect yet: the one list of them. Remove a key here when it takes effect."""

from collections.abc import Mapping
from typing import Any

from lakehead.run.config.base import ConfigModel
from lakehead.run.config.connections import SourceConfig
from lakehead.run.config.runtime_config import (
    GuardrailsConfig,
    MetadataConfig,
    SchemaPolicyConfig,
)

UNUSED_KEYS: Mapping[type[ConfigModel], tuple[str, ...]] = {
    SourceConfig: ("driver",),
    MetadataConfig: ("enabled", "cache_path", "ttl_hours"),
    GuardrailsConfig: ("max_precision", "max_scale"),
    SchemaPolicyConfig: ("require_snapshot", "allow_missing_columns", "allow_new_columns"),
}

NO_EFFECT = "Validated, but has no effect yet."


def mark_unused_keys(schema: dict[str, Any]) -> None:
    """Say in the descriptions of a JSON Schema which keys have no effect yet."""
    for model, keys in UNUSED_KEYS.items():
        for key in keys:
            node = schema["$defs"][model.__name__]["properties"][key]
            node["description"] = f"{node['description']} {NO_EFFECT}"
