"""The floor of a raw table: what raw retention has removed from it. It is a property of the table itself, so it is
committed together with the removal and survives the loss of the state."""

import json
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import SetPropertiesUpdate

from lakehead.wire.errors import Unreadable

PROPERTY = "lakehead.raw-floor"


@dataclass(frozen=True, slots=True, order=True)
class RawFloor:
    """The newest slice that was removed. Of this generation, slices up to this one may be incomplete."""

    generation: int
    slice: int

    def misses(self, generation: int, after: int) -> bool:
        """Whether rows of this generation's slices above `after` may have been removed."""
        return self.generation >= generation and after < self.slice


def floor_of(metadata: TableMetadata) -> RawFloor | None:
    """A raw table's floor; None if nothing was removed from it. Raises `Unreadable` if its property is damaged."""
    text = metadata.properties.get(PROPERTY)
    if text is None:
        return None
    try:
        stored = json.loads(text)
        return RawFloor(int(stored["generation"]), int(stored["slice"]))
    except (ValueError, KeyError, TypeError):
        raise Unreadable(f"The table property {PROPERTY} is {text!r}, which cannot be read. Restore it.") from None


def set_floor(metadata: TableMetadata, floor: RawFloor) -> SetPropertiesUpdate:
    """The update that records a floor. One that is higher already stays."""
    known = floor_of(metadata)
    new = floor if known is None else max(known, floor)
    text = json.dumps({"generation": new.generation, "slice": new.slice})
    return SetPropertiesUpdate(updates={PROPERTY: text})
