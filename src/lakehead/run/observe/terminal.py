"""A live display of a run at the bottom of a terminal."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Self, TextIO, cast

from rich.console import Console, ConsoleDimensions, RenderableType
from rich.live import Live
from rich.text import Text

from lakehead.clock import Clock
from lakehead.periodic_task import PeriodicTask, Wait
from lakehead.run.observe.bars import bars
from lakehead.run.observe.event_text import event_line, one_line
from lakehead.run.observe.levels import Level, level_of
from lakehead.run.observe.output_capture import OutputCapture, descriptors_of
from lakehead.run.observe.outputs import BestEffortOutput
from lakehead.run.observe.run_status import RunStatus
from lakehead.telemetry.emitter import EPOCH, EventEnvelope
from lakehead.telemetry.events import TableDone, TableFailed, TableSkipped

REFRESH_SECONDS = 0.25


class LiveDisplay:
    """Shows a progress bar for every running table. Tables that have ended are printed above, from a level on.

    Output of other code to the same terminal is printed above the bars too. At the end of the `with` the bars are
    removed and the lines stay. Outside it nothing is shown.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Clock,
        *,
        level: Level,
        warn: Callable[[str], None],
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._level = level
        self._warn = warn
        self._wait = wait
        self._status = RunStatus()
        self._open = ExitStack()
        self._screen: _Screen | None = None
        self.dropped = 0
        """How many writes to the terminal failed; set at the end of the `with`."""

    def __call__(self, envelope: EventEnvelope) -> None:
        """Show the event."""
        self._status(envelope)
        ended = isinstance(envelope.event, TableDone | TableSkipped | TableFailed)
        screen = self._screen  # another thread may leave the `with` meanwhile
        if screen is None or envelope.table is None or not ended or level_of(envelope.event) < self._level:
            return
        style = "red" if isinstance(envelope.event, TableFailed) else ""
        screen.show([Text(event_line(envelope, self._status.table(envelope.table)), style=style)])

    def __enter__(self) -> Self:
        descriptors = descriptors_of(self._stream)
        with ExitStack() as opened:
            stream = opened.enter_context(_duplicate(self._stream)) if descriptors else self._stream
            self._screen = opened.enter_context(_Screen(stream, self._render))
            opened.callback(self._leave, self._screen)
            if descriptors:
                opened.enter_context(OutputCapture(descriptors, self._screen.show_captured))
            opened.enter_context(
                PeriodicTask(REFRESH_SECONDS, self._screen.refresh, name="lakehead-display", wait=self._wait)
            )
            self._open = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def _leave(self, screen: "_Screen") -> None:
        self._screen = None
        self.dropped = screen.output.dropped
        for warning in screen.warnings:
            self._warn(warning)

    def _render(self, size: ConsoleDimensions) -> RenderableType:
        now = EPOCH + timedelta(microseconds=self._clock.now_ns() // 1000)
        return bars(self._status, now, size.width, size.height)


class _Screen:
    """A console with a live area at its end. Only one thread draws at a time, or bars would be left behind."""

    def __init__(self, stream: TextIO, render: Callable[[ConsoleDimensions], RenderableType]) -> None:
        self.warnings: list[str] = []
        """Warnings to print once the live display has ended."""
        self.output = BestEffortOutput.stream(stream, self.warnings.append, "The terminal")
        self._stream = stream
        self._render = render
        self._lock = threading.Lock()
        self._console = Console(
            file=cast("TextIO", self.output),  # has the methods that a console uses
            force_terminal=True,
            highlight=False,
            markup=False,
        )
        self._live = Live(
            get_renderable=lambda: self._render(self._console.size),
            console=self._console,
            auto_refresh=False,  # its thread could outlive the display
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(self, lines: list[Text]) -> None:
        """Print lines above the live area, and redraw it."""
        with self._lock:
            self._measure()
            self._console.print(Text("\n").join(lines), soft_wrap=True)
            self._live.refresh()

    def show_captured(self, lines: list[str]) -> None:
        """Print captured output: colours are kept, other terminal control codes are not."""
        self.show([_captured_text(line) for line in lines])

    def refresh(self) -> None:
        """Redraw the live area."""
        with self._lock:
            self._measure()
            self._live.refresh()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._live.stop()

    def _measure(self) -> None:
        """Follow window resizes, which a console does not see on a duplicated descriptor."""
        with suppress(OSError, ValueError):
            self._console.size = ConsoleDimensions(*os.get_terminal_size(self._stream.fileno()))


def _captured_text(line: str) -> Text:
    try:
        return Text.from_ansi(line)
    except ValueError:  # a code with too many digits
        return Text(one_line(line))


@contextmanager
def _duplicate(terminal: TextIO) -> Iterator[TextIO]:
    """Open the terminal on a new descriptor, because the process's own are about to be captured."""
    own = os.fdopen(os.dup(terminal.fileno()), "w", encoding=terminal.encoding)
    try:
        yield own
    finally:
        with suppress(OSError):  # failed writes are already counted
            own.close()
