"""The log level of each event."""

from enum import IntEnum
from typing import Self

from lakehead.telemetry.events import (
    Event,
    EventsLost,
    MetadataCollected,
    PhaseMarked,
    PipelineEnded,
    PipelineStarted,
    RunDone,
    SchemaDrifted,
    SnapshotDamaged,
    TableDescribed,
    TableFailed,
    TableHeldBack,
    TableReconciled,
    TableStale,
    TableStep,
)


class Level(IntEnum):
    """The values of `runtime.logging.level`, lowest first."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40

    @classmethod
    def named(cls, label: str) -> Self:
        """Return the level with this label in the configuration and the log."""
        return cls[label.upper()]

    @property
    def label(self) -> str:
        """The level's name in the configuration and the log."""
        return self.name.lower()


def level_of(event: Event) -> Level:
    """Return the level of an event: DEBUG for frequent ones, ERROR for failures."""
    match event:
        case TableStep() | TableDescribed():
            return Level.DEBUG
        case TableFailed() | PhaseMarked(state="failed"):
            return Level.ERROR
        case RunDone() if event.failed or event.not_ended:
            return Level.WARNING
        case SchemaDrifted() | MetadataCollected() | SnapshotDamaged():
            return _metadata_level(event)
        case TableHeldBack() | TableStale() | EventsLost():
            return Level.WARNING
        case PipelineEnded() if event.error is not None:
            return Level.ERROR
        case TableReconciled() if event.outcome != "equal":
            return Level.ERROR
        case PipelineStarted() if event.warning is not None:
            return Level.WARNING
        case _:
            return Level.INFO


def _metadata_level(event: SchemaDrifted | MetadataCollected | SnapshotDamaged) -> Level:
    match event:
        case SchemaDrifted(action="freeze"):
            return Level.ERROR
        case MetadataCollected(error=None, damaged=None):
            return Level.DEBUG
        case _:
            return Level.WARNING
