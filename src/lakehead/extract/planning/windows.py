"""Windows of a column's values, and slices, which are windows that are read and landed one after the other."""

from dataclasses import dataclass

from lakehead.state.model import Value
from lakehead.state.values import to_text


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a window."""

    value: Value
    included: bool
    """Whether rows with exactly this value are inside. Either all or none of them are."""


@dataclass(frozen=True, slots=True)
class Window:
    """The rows whose value lies between two bounds."""

    lower: Bound | None
    """None: from the lowest value on."""

    upper: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One window of a plan. Slices follow each other without gaps or overlaps."""

    window: Window
    after: Value | None
    """The watermark that the table must have when this lands; None if it has none yet. It can differ from the window's
    lower bound, which the lag may have lowered."""

    estimated_rows: int | None = None
    """How many rows the probe counted; None if it was not used."""

    @property
    def watermark(self) -> Value:
        """The watermark that the table has once this has landed."""
        return self.window.upper.value

    @property
    def unit(self) -> str:
        """The slice's id, unique within a generation of the table: its two watermarks."""
        start = "start" if self.after is None else to_text(self.after)[1]
        return f"{start}..{to_text(self.watermark)[1]}"
