"""A run as a live view at the bottom of a terminal."""

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
from lakehead.run.observe.bars import bars
from lakehead.run.observe.every import Every, Wait
from lakehead.run.observe.levels import Level, level_of
from lakehead.run.observe.outputs import Tolerant
from lakehead.run.observe.overheard import Overheard, shared_with
from lakehead.run.observe.standings import Standings
from lakehead.run.observe.wording import line_for
from lakehead.telemetry.emitter import EPOCH, Told
from lakehead.telemetry.events import TableDone, TableFailed, TableSkipped

REFRESH_SECONDS = 0.25


class LiveDisplay:
    """Shows a bar for every table that is running; those that have ended scroll by above, from a level on.

    What anybody else prints on the same terminal meanwhile stands above the bars too. When the `with` ends the bars are
    gone and the lines stay. Outside it nothing is shown.
    """

    def __init__(
        self,
        stream: TextIO,
        clock: Clock,
        *,
        level: Level,
        tell: Callable[[str], None],
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._level = level
        self._tell = tell
        self._wait = wait
        self._standings = Standings()
        self._open = ExitStack()
        self._screen: _Screen | None = None
        self.dropped = 0
        """How often the terminal did not take what was to be shown; known when the `with` has ended."""

    def __call__(self, told: Told) -> None:
        """Show the event."""
        self._standings(told)
        ended = isinstance(told.event, TableDone | TableSkipped | TableFailed)
        if self._screen is None or told.table is None or not ended or level_of(told.event) < self._level:
            return
        style = "red" if isinstance(told.event, TableFailed) else ""
        self._screen.show([Text(line_for(told, self._standings.of(told.table)), style=style)])

    def __enter__(self) -> Self:
        shared = shared_with(self._stream)
        with ExitStack() as opened:
            stream = opened.enter_context(_another(self._stream)) if shared else self._stream
            self._screen = opened.enter_context(_Screen(stream, self._seen))
            opened.callback(self._leave, self._screen)
            if shared:
                opened.enter_context(Overheard(shared, self._screen.overhear))
            opened.enter_context(Every(REFRESH_SECONDS, self._screen.refresh, name="lakehead-display", wait=self._wait))
            self._open = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def _leave(self, screen: "_Screen") -> None:
        self._screen = None
        self.dropped = screen.output.dropped
        for sentence in screen.sentences:
            self._tell(sentence)

    def _seen(self, size: ConsoleDimensions) -> RenderableType:
        now = EPOCH + timedelta(microseconds=self._clock.now_ns() // 1000)
        return bars(self._standings, now, size.width, size.height)


class _Screen:
    """A console with a live part at its end. One thread at a time draws: a bar drawn over another's would stay."""

    def __init__(self, stream: TextIO, seen: Callable[[ConsoleDimensions], RenderableType]) -> None:
        self.sentences: list[str] = []
        """What is to be told when the terminal is free again."""
        self.output = Tolerant.stream(stream, self.sentences.append, "The terminal")
        self._stream = stream
        self._seen = seen
        self._lock = threading.Lock()
        self._console = Console(
            file=cast("TextIO", self.output),  # it has what a console uses of one
            force_terminal=True,
            highlight=False,
            markup=False,
        )
        self._live = Live(
            get_renderable=lambda: self._seen(self._console.size),
            console=self._console,
            auto_refresh=False,  # its thread would outlive the display
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def show(self, lines: list[Text]) -> None:
        """Print lines above the live part, and draw that anew."""
        with self._lock:
            self._measure()
            self._console.print(Text("\n").join(lines), soft_wrap=True)
            self._live.refresh()

    def overhear(self, lines: list[str]) -> None:
        """Print what others have printed; their colours stay, and nothing else that they do to a terminal."""
        self.show([Text.from_ansi(line) for line in lines])

    def refresh(self) -> None:
        """Draw the live part anew."""
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
        """A window may be resized, and a console cannot see that by a descriptor of ours."""
        with suppress(OSError, ValueError):
            self._console.size = ConsoleDimensions(*os.get_terminal_size(self._stream.fileno()))


@contextmanager
def _another(terminal: TextIO) -> Iterator[TextIO]:
    """The same terminal by a descriptor of our own: the process's are about to be listened to."""
    own = os.fdopen(os.dup(terminal.fileno()), "w", encoding=terminal.encoding)
    try:
        yield own
    finally:
        with suppress(OSError):  # what it did not take is counted already
            own.close()
