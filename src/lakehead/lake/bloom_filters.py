"""Bloom filters of Parquet columns, sized by the rows that a file is begun with.

Tasks import this module, so it depends on PyArrow alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log
from typing import Any

_BITS_PER_BYTE = 8
_HASHES = 8
"""Bits that a value sets: Parquet's filters of split blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BloomFilters:
    """Which columns have Bloom filters, and how large these may be."""

    columns: Mapping[str, float] = field(default_factory=dict)
    """Each column's probability of a false positive."""

    max_bytes: int = 2**20
    """The largest filter of a column in a row group; with more values it answers wrongly more often."""

    def options(self, rows: int) -> dict[str, dict[str, Any]] | None:
        """PyArrow's option for row groups of so many rows. Its writer holds a filter for as many values in memory."""
        if not self.columns:
            return None
        return {
            name: {"ndv": max(1, min(rows, _most_values(fpp, self.max_bytes))), "fpp": fpp}
            for name, fpp in self.columns.items()
        }


def _most_values(fpp: float, most_bytes: int) -> int:
    """How many values a filter of so many bytes holds at this probability of a false positive."""
    return int(-log(1 - fpp ** (1 / _HASHES)) * most_bytes * _BITS_PER_BYTE / _HASHES)
