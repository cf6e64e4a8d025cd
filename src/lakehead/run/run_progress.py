"""What the events of many runs say: how far each run is, whether it is alive, and which failures repeat."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from statistics import median

from lakehead.run.observe.run_status import RunStatus, TableOutcome, TableStatus
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import (
    Heartbeat,
    PipelineEnded,
    PipelineProgress,
    PipelineStarted,
    RunDone,
    RunStart,
    TableFailed,
    TableReconciled,
)

DEFAULT_HEARTBEAT = timedelta(seconds=30)
MISSED_HEARTBEATS = 3
"""After so many missed heartbeats a run is not taken for alive any more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed table of one run."""

    run: str
    table: str
    at: datetime
    error: str
    error_kind: str
    stack_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Failures with the same stack hash: the same error at the same place."""

    stack_hash: str
    error_kind: str
    count: int
    tables: tuple[str, ...]
    runs: int
    first_at: datetime
    last_at: datetime
    last_error: str


def group_failures(failures: Iterable[Failure]) -> list[FailureGroup]:
    """Group failures by their stack hashes, the most frequent first."""
    by_hash: dict[str, list[Failure]] = {}
    for failure in failures:
        by_hash.setdefault(failure.stack_hash, []).append(failure)
    groups = [
        FailureGroup(
            stack_hash=stack_hash,
            error_kind=some[-1].error_kind,
            count=len(some),
            tables=tuple(dict.fromkeys(each.table for each in some)),
            runs=len({each.run for each in some}),
            first_at=min(each.at for each in some),
            last_at=max(each.at for each in some),
            last_error=max(some, key=lambda each: each.at).error,
        )
        for stack_hash, some in by_hash.items()
    ]
    return sorted(groups, key=lambda group: (-group.count, group.stack_hash))


@dataclass
class RunProgress:
    """One run, after the events seen so far."""

    run: str
    status: RunStatus = field(default_factory=RunStatus)
    pipeline: str = ""
    load_date: date | None = None
    started_at: datetime | None = None
    last_at: datetime | None = None
    ended: RunDone | None = None
    consumed: dict[str, PipelineStarted | PipelineProgress | PipelineEnded] = field(default_factory=dict)
    """The last event of each pipeline that consumes a queue."""
    failures: dict[str, Failure] = field(default_factory=dict)
    _beats: list[datetime] = field(default_factory=list)

    def add(self, envelope: EventEnvelope) -> None:
        """Take one more event."""
        self.status(envelope)
        event = envelope.event
        self.started_at = self.started_at or envelope.at
        self.last_at = max(self.last_at or envelope.at, envelope.at)
        match event:
            case RunStart():
                self.pipeline, self.load_date = event.pipeline, event.load_date
            case RunDone():
                self.ended = event
            case Heartbeat():
                self._beats = [*self._beats[-20:], envelope.at]
            case TableFailed() if envelope.table is not None:
                self.failures[envelope.table] = Failure(
                    envelope.run, envelope.table, envelope.at, event.error, event.error_kind, event.stack_hash
                )
            case PipelineStarted() | PipelineProgress() | PipelineEnded():
                self.consumed[event.pipeline] = event
            case _:
                pass

    @property
    def is_over(self) -> bool:
        """Whether the run has said that it ended; one that only consumes, whether all pipelines have."""
        pipelines = list(self.consumed.values())
        return self.ended is not None or (
            bool(pipelines) and all(isinstance(each, PipelineEnded) for each in pipelines)
        )

    @property
    def heartbeat(self) -> timedelta:
        """The time between heartbeats, as the log shows it."""
        gaps = [(later - at).total_seconds() for at, later in zip(self._beats, self._beats[1:], strict=False)]
        return timedelta(seconds=max(median(gaps), 0.1)) if gaps else DEFAULT_HEARTBEAT

    def is_silent(self, now: datetime, silence: timedelta | None = None) -> bool:
        """Whether a run that has not ended has said nothing for too long: most likely it was killed."""
        if self.is_over or self.last_at is None:
            return False
        return now - self.last_at > (silence or self.heartbeat * MISSED_HEARTBEATS)

    def state(self, now: datetime, silence: timedelta | None = None) -> str:
        """Return running, silent, done or failed."""
        if self.is_over:
            failed = self.status.counts().failed or (self.ended and (self.ended.failed or self.ended.not_ended))
            broken = any(isinstance(each, PipelineEnded) and each.error for each in self.consumed.values())
            return "failed" if failed or broken else "done"
        return "silent" if self.is_silent(now, silence) else "running"

    def elapsed(self, now: datetime, silence: timedelta | None = None) -> float:
        """Return how long the run took, or has been running. A silent run's time ends with its last event."""
        if self.ended is not None:
            return self.ended.seconds
        end = self.last_at if self.is_over or self.is_silent(now, silence) else now
        return _seconds(self.started_at, end) if end and self.started_at else 0.0

    def seconds_left(self, now: datetime, silence: timedelta | None = None) -> float | None:
        """Estimate the rest of the run from the tables that have ended so far; None if none has, or if it is silent."""
        counts = self.status.counts()
        over = counts.done + counts.failed + counts.skipped
        partly = sum(done_share(each) for each in self.status.tables(TableOutcome.RUNNING))
        if self.is_over or self.is_silent(now, silence) or not over + partly or counts.total <= over:
            return None
        return self.elapsed(now, silence) * max(counts.total - over - partly, 0) / (over + partly)


def done_share(table: TableStatus) -> float:
    """Return which part of a table's slices has landed."""
    return min(max((table.slice or 1) - 1, 0) / table.slices, 1.0) if table.slices and table.slices > 0 else 0.0


def table_seconds_left(table: TableStatus, now: datetime) -> float | None:
    """Estimate the rest of a running table from its slices; None if none of them has landed."""
    share = done_share(table)
    return _seconds(table.started_at, now) * (1 - share) / share if share else None


def _seconds(begin: datetime, end: datetime) -> float:
    """Return the time between; 0 if a clock was put back meanwhile."""
    return max((end - begin).total_seconds(), 0.0)


class Runs:
    """All runs of some logs, in the order of their first events."""

    def __init__(self) -> None:
        self._runs: dict[str, RunProgress] = {}

    def add(self, envelope: EventEnvelope) -> None:
        """Take one more event. Comparisons of tables with their sources are no runs: they have no end to wait for."""
        if isinstance(envelope.event, TableReconciled):
            return
        self._runs.setdefault(envelope.run, RunProgress(envelope.run)).add(envelope)

    def add_all(self, envelopes: Iterable[EventEnvelope]) -> None:
        """Take some more events."""
        for envelope in envelopes:
            self.add(envelope)

    def all(self) -> list[RunProgress]:
        """Return the runs."""
        return list(self._runs.values())

    def failures(self) -> list[FailureGroup]:
        """Return the failures of all runs, grouped."""
        return group_failures(failure for run in self._runs.values() for failure in run.failures.values())
