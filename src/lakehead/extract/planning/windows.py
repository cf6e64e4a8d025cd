"""Windows of a column's values, and slices: windows that are read and landed one after the other."""

from dataclasses import dataclass

from lakehead.state.model import Value
from lakehead.state.values import to_text


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a window."""

    value: Value
    included: bool
    """Whether rows that have exactly this value are inside. All of them are, or none: ties are never parted."""


@dataclass(frozen=True, slots=True)
class Window:
    """The rows whose value lies between two bounds."""

    lower: Bound | None
    """None: from the first value on."""

    upper: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One window of a plan. Slices follow each other without gap or overlap."""

    window: Window
    after: Value | None
    """The watermark that the table must have when this lands; None if it has none yet. It is not always the window's
    lower bound: that may be lowered by the lag."""

    estimated_rows: int | None = None
    """How many rows the probe promised; None if it was not asked."""

    @property
    def watermark(self) -> Value:
        """The watermark that the table has once this has landed."""
        return self.window.upper.value

    @property
    def unit(self) -> str:
        """What names this slice among all that a generation of the table ever has: its two watermarks."""
        start = "start" if self.after is None else to_text(self.after)[1]
        return f"{start}..{to_text(self.watermark)[1]}"
