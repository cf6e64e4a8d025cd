"""What whoever started a run sees of it: bars on a terminal, lines elsewhere."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TextIO

from lakehead.clock import Clock
from lakehead.run.config.runtime import Logging
from lakehead.run.observe.every import Wait
from lakehead.run.observe.json_lines import StructuredLogSubscriber
from lakehead.run.observe.levels import Level, level_of
from lakehead.run.observe.outputs import Tolerant, on_standard_error
from lakehead.run.observe.standings import Standings
from lakehead.run.observe.terminal import LiveDisplay
from lakehead.run.observe.wording import line_for
from lakehead.telemetry.emitter import Told


class Display(Protocol):
    """Hears of events and shows them, within its `with`."""

    @property
    def dropped(self) -> int:
        """How often the stream did not take what was to be shown."""
        ...

    def __call__(self, told: Told, /) -> None:
        """Show the event."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def display_for(
    settings: Logging,
    *,
    terminal: bool,
    stream: TextIO,
    clock: Clock,
    tell: Callable[[str], None] = on_standard_error,
    wait: Wait = threading.Event.wait,
) -> Display:
    """The display that the settings and the stream call for: JSON lines, lines for a person, or bars.

    JSON lines are printed if the settings say so, or if they say nothing and the stream is no terminal. A stream that
    fails stops nobody; `tell` is told of it once.
    """
    level = Level.named(settings.level)
    if settings.as_json or (settings.as_json is None and not terminal):
        return StructuredLogSubscriber(stream=stream, level=level, tell=tell)
    if terminal:
        return LiveDisplay(stream, clock, level=level, tell=tell, wait=wait)
    return LineDisplay(stream, level=level, tell=tell)


class LineDisplay:
    """One line for a person for every event from a level on."""

    def __init__(self, stream: TextIO, *, level: Level, tell: Callable[[str], None]) -> None:
        self._output = Tolerant.stream(stream, tell)
        self._level = level
        self._standings = Standings()

    @property
    def dropped(self) -> int:
        """The lines that the stream did not take."""
        return self._output.dropped

    def __call__(self, told: Told) -> None:
        """Print the event, if it matters enough."""
        self._standings(told)
        if level_of(told.event) >= self._level:
            standing = None if told.table is None else self._standings.of(told.table)
            self._output.write(line_for(told, standing) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is open."""
