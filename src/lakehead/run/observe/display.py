"""What a run prints while it works: progress bars on a terminal, lines elsewhere."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TextIO

from lakehead.clock import Clock
from lakehead.periodic_task import Wait
from lakehead.run.config.runtime_config import LoggingConfig
from lakehead.run.observe.event_text import event_line
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.run.observe.levels import Level, level_of
from lakehead.run.observe.outputs import BestEffortOutput, warn_on_stderr
from lakehead.run.observe.run_status import RunStatus
from lakehead.run.observe.terminal import LiveDisplay
from lakehead.telemetry.emitter import EventEnvelope


class Display(Protocol):
    """A subscriber that shows events, within its `with`."""

    @property
    def dropped(self) -> int:
        """How many writes to the stream failed."""
        ...

    def __call__(self, envelope: EventEnvelope, /) -> None:
        """Show the event."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def display_for(
    settings: LoggingConfig,
    *,
    terminal: bool,
    stream: TextIO,
    clock: Clock,
    warn: Callable[[str], None] = warn_on_stderr,
    wait: Wait = threading.Event.wait,
) -> Display:
    """Return the display for a stream: JSON lines, plain text lines, or progress bars.

    JSON lines are printed if `settings.as_json` is true, or if it is unset and the stream is not a terminal. A stream
    that fails does not stop the run; `warn` is called once.
    """
    level = Level.named(settings.level)
    if settings.as_json or (settings.as_json is None and not terminal):
        return StructuredLogSubscriber(stream=stream, level=level, warn=warn)
    if terminal:
        return LiveDisplay(stream, clock, level=level, warn=warn, wait=wait)
    return LineDisplay(stream, level=level, warn=warn)


class LineDisplay:
    """Prints one line of text for every event of at least a level."""

    def __init__(self, stream: TextIO, *, level: Level, warn: Callable[[str], None]) -> None:
        self._output = BestEffortOutput.stream(stream, warn)
        self._level = level
        self._status = RunStatus()

    @property
    def dropped(self) -> int:
        """How many lines could not be written."""
        return self._output.dropped

    def __call__(self, envelope: EventEnvelope) -> None:
        """Print the event if its level is high enough."""
        self._status(envelope)
        if level_of(envelope.event) >= self._level:
            status = None if envelope.table is None else self._status.table(envelope.table)
            self._output.write(event_line(envelope, status) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Do nothing: the stream stays open."""
