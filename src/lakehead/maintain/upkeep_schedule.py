"""Decides when a table that is landed on often gets its next step of upkeep, and keeps that to a share of the time.

Everything is decided from counts that a landing has at hand, so a landing costs nothing more. Nothing here does I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Self

from pyiceberg.table import Table as Iceberg

from lakehead.errors import Misconfigured
from lakehead.lake.iceberg_table import summary_of


class UpkeepKind(Enum):
    """What a step of upkeep does."""

    EXPIRE = "expire"
    COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class UpkeepStep:
    """One thing to do for one table."""

    table: str
    kind: UpkeepKind


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepSettings:
    """How much upkeep a table gets. Raises `Misconfigured` for values that make no sense."""

    share: float = 0.1
    """The part of the time that all steps together may take, above 0 and at most 1."""

    keep_snapshots: int = 100
    """The newest snapshots that are kept whatever their age."""

    keep_for: timedelta = timedelta(minutes=10)
    """Younger snapshots are kept too, so that a query of less than this never loses a file that it reads."""

    keep_unpublished_for: timedelta = timedelta(days=5)
    """Younger snapshots that no branch leads to are kept: others may have staged them to publish them later."""

    most_snapshots: int = 1_000
    """Of more snapshots than this, the oldest expire although they are younger than `keep_for`: every commit writes all
    of them again."""

    small_files: int = 32
    """Small files of about the same size that a partition must have before they are compacted."""

    retry_seconds: float = 30.0
    """The pause after a step failed. It doubles with every further failure."""

    longest_retry_seconds: float = 3600.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise Misconfigured(f"The share of upkeep is {self.share}; it must be above 0 and at most 1.")
        if self.most_snapshots < self.keep_snapshots:
            raise Misconfigured(
                f"Upkeep cannot keep {self.keep_snapshots} snapshots and at most {self.most_snapshots}: keep fewer, or "
                "allow more."
            )
        if (
            self.keep_snapshots < 1
            or self.small_files < 2
            or min(self.keep_for, self.keep_unpublished_for) < timedelta(0)
        ):
            raise Misconfigured(
                f"Upkeep cannot keep {self.keep_snapshots} snapshots for {self.keep_for} and compact "
                f"{self.small_files} files: it must keep at least one snapshot and compact at least two files."
            )

    @property
    def expire_at_once(self) -> int:
        """How many snapshots more than the kept ones there must be before some are expired."""
        return max(1, self.keep_snapshots // 2)


@dataclass(frozen=True, slots=True)
class Figures:
    """How large a table is, as its loaded metadata tells it."""

    snapshots: int
    data_files: int

    @classmethod
    def of(cls, table: Iceberg) -> Self:
        """The figures of a loaded table. Reads nothing: the number of files is in the current snapshot's summary."""
        files = summary_of(table.current_snapshot()).get("total-data-files", "0")
        return cls(len(table.metadata.snapshots), int(files))


@dataclass(frozen=True, slots=True)
class _StepState:
    """What is known of one step of one table."""

    due_from: int
    """The snapshots or data files from which it is due."""

    last_ended: float = float("-inf")
    not_before: float = float("-inf")
    failures: int = 0
    """How often it has failed since it last succeeded."""


class UpkeepSchedule:
    """Says which step is due. One step runs at a time, and steps take at most their share of the time.

    After a step of T seconds, failed or not, none is due for T * (1 / share - 1) seconds. Every `now` is a time of one
    monotonic clock, in seconds.
    """

    def __init__(self, settings: UpkeepSettings) -> None:
        self._settings = settings
        self._tables: dict[str, Figures] = {}
        self._steps: dict[UpkeepStep, _StepState] = {}
        self._running: tuple[UpkeepStep, float] | None = None
        self._rest_until = float("-inf")

    def landed(self, table: str, figures: Figures) -> None:
        """Remember a table's figures after a landing."""
        self._tables[table] = figures
        for kind, due_from in self._first_due().items():
            self._steps.setdefault(UpkeepStep(table, kind), _StepState(due_from))

    def due(self, now: float) -> UpkeepStep | None:
        """The step to run now: of all that are needed, the one that ended longest ago. None if there is none."""
        if self._running is not None or now < self._rest_until:
            return None
        needed = [
            (state.last_ended, number, step)
            for number, (step, state) in enumerate(self._steps.items())
            if now >= state.not_before and self._count(step) >= state.due_from
        ]
        return min(needed)[2] if needed else None

    def started(self, step: UpkeepStep, now: float) -> None:
        """Note that a step runs from now on. No other is due until it has ended."""
        self._running = step, now

    def succeeded(self, now: float, *, due_from: int) -> float:
        """Note that the running step has ended. It is due again from this many snapshots or data files on.

        Returns how many seconds it took.
        """
        step, seconds = self._ended(now)
        self._steps[step] = _StepState(due_from, last_ended=now)
        return seconds

    def failed(self, now: float) -> tuple[float, int]:
        """Note that the running step has failed: it is tried again, after a pause that doubles with each failure.

        Returns how many seconds it took, and how often it has failed since it last succeeded.
        """
        step, seconds = self._ended(now)
        before, settings = self._steps[step], self._settings
        pause = min(settings.longest_retry_seconds, settings.retry_seconds * 2 ** min(before.failures, 30))
        self._steps[step] = replace(before, last_ended=now, not_before=now + pause, failures=before.failures + 1)
        return seconds, before.failures + 1

    def _ended(self, now: float) -> tuple[UpkeepStep, float]:
        if self._running is None:
            raise ValueError("no step of upkeep is running")
        step, began = self._running
        seconds = now - began
        self._running, self._rest_until = None, now + seconds * (1 / self._settings.share - 1)
        return step, seconds

    def _first_due(self) -> Mapping[UpkeepKind, int]:
        settings = self._settings
        return {
            UpkeepKind.EXPIRE: settings.keep_snapshots + settings.expire_at_once,
            UpkeepKind.COMPACT: settings.small_files,
        }

    def _count(self, step: UpkeepStep) -> int:
        figures = self._tables[step.table]
        return figures.snapshots if step.kind is UpkeepKind.EXPIRE else figures.data_files
