"""A run whose events a test emits itself, and a terminal whose screen it can read."""

import re
from datetime import date, timedelta

from lakehead.ids import Random, SeededIds
from lakehead.telemetry.emitter import Emitter, EventEnvelope, Subscriber
from lakehead.telemetry.events import (
    Event,
    RunStart,
    TableDone,
    TableFailed,
    TablePlanned,
    TableStart,
    TableStep,
)
from tests.support.state_tools import HandClock

DAY = date(2026, 3, 1)
HASH = "0123456789ab"


class FakeRun:
    """Emits events in the order of a test, one second apart unless it says otherwise."""

    def __init__(self, *subscribers: Subscriber, run: str = "run-7") -> None:
        self.clock = HandClock()
        self.received: list[EventEnvelope] = []
        self.emitter = Emitter(run, self.clock, SeededIds(Random(7)), [self.received.append, *subscribers])

    def emit(self, event: Event, table: str | None = None, *, after: float = 1) -> None:
        self.clock.at += timedelta(seconds=after)
        self.emitter.emit(event, table)
        assert self.emitter.first_failure is None

    def start(self, tables: int) -> None:
        self.emit(RunStart(pipeline="shop", tables=tables, load_date=DAY), after=0)

    def begin(self, table: str, mode: str = "scd1", slices: int = 1) -> None:
        self.emit(TableStart(mode=mode, load_date=DAY, reload=False), table)
        self.emit(TablePlanned(slices=slices, done=0, resumed=False), table, after=0)

    def reach(self, table: str, at: int, slices: int, rows: int, step: str = "reading") -> None:
        self.emit(TableStep(step=step, rows=rows, slice=at, slices=slices), table)

    def finish(
        self,
        table: str,
        rows: int,
        slices: int = 1,
        watermark: str | None = None,
        *,
        published: int | None = None,
    ) -> None:
        done = TableDone(rows=rows, published=published, seconds=62.4, slices=slices, watermark=watermark)
        self.emit(done, table)

    def fail(self, table: str, sentence: str) -> None:
        self.emit(TableFailed(error=sentence, error_kind="Unavailable", stack_hash=HASH, seconds=9.9), table)


class Terminal:
    """What is seen on a terminal of a width after all that was written to it; lines that scrolled off stay readable."""

    _PIECES = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(.)", re.DOTALL)
    _CUT = re.compile(r"\x1b(\[[0-9;?]*)?$")

    def __init__(self, width: int) -> None:
        self._width = width
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self._rest = ""

    def write(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        if cut := self._CUT.search(text):
            text, self._rest = text[: cut.start()], cut.group()
        for number, control, letter in self._PIECES.findall(text):
            if letter:
                self._put(letter)
            elif control == "A":
                self._row = max(self._row - int(number or 1), 0)
            elif control == "K":
                assert number == "2", "a whole line is erased"
                self._lines[self._row] = []
            else:
                assert control in "mhl", f"{number}{control} is not known to this terminal"

    def _put(self, letter: str) -> None:
        if letter == "\n":
            self._row += 1
            self._column = 0
        elif letter == "\r":
            self._column = 0
        else:
            assert letter.isprintable(), repr(letter)
            if self._column == self._width:
                self._row, self._column = self._row + 1, 0
            self._reach()
            line = self._lines[self._row]
            line += [" "] * (self._column + 1 - len(line))
            line[self._column] = letter
            self._column += 1
        self._reach()

    def _reach(self) -> None:
        while len(self._lines) <= self._row:
            self._lines.append([])

    @property
    def lines(self) -> list[str]:
        """The lines with something on them."""
        return [line for line in ("".join(each).rstrip() for each in self._lines) if line]
