"""How much an event matters."""

from enum import IntEnum
from typing import Self

from lakehead.telemetry.events import Happened, PhaseMarked, RunDone, TableFailed, TableHeldBack, TableProgress


class Level(IntEnum):
    """The levels of `runtime.logging.level`, the least first."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40

    @classmethod
    def named(cls, word: str) -> Self:
        """The level that the configuration and the log call by this word."""
        return cls[word.upper()]

    @property
    def word(self) -> str:
        """What the configuration and the log call it."""
        return self.name.lower()


def level_of(event: Happened) -> Level:
    """How much it matters: what comes often is for debugging, and what did not work is an error."""
    match event:
        case TableProgress():
            return Level.DEBUG
        case TableFailed() | PhaseMarked(state="failed"):
            return Level.ERROR
        case RunDone() if event.failed or event.not_ended:
            return Level.WARNING
        case TableHeldBack():
            return Level.WARNING
        case _:
            return Level.INFO
