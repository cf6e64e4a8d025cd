"""Configurations for tests to write, break and read."""

import copy
import json
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "runtime": {"raw_root": "raw", "final_root": "final", "intermediate": "mirror"},
    "sources": {"shop": {"dialect": "postgresql", "url": "postgresql://host:5432/shop"}},
    "tables": [
        {"schema": "public", "table": "cities", "mode": "full"},
        {
            "schema": "public",
            "table": "orders",
            "mode": "scd1",
            "incremental_column": "updated_at",
            "incr_col_type": "timestamp",
            "primary_keys": ["id"],
        },
    ],
}


def changed(changes: dict[tuple[str | int, ...], Any]) -> dict[str, Any]:
    """The small configuration with values put at places; None takes a key away."""
    config: Any = copy.deepcopy(SMALL)
    for (*above, last), value in changes.items():
        node = config
        for part in above:
            node = node[part] if isinstance(part, int) else node.setdefault(part, {})
        if value is None:
            del node[last]
        else:
            node[last] = value
    found: dict[str, Any] = config
    return found


def written(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "conf.json"
    path.write_text(json.dumps(config))
    return path
