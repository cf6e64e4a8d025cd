"""What others print while the terminal is ours: Spark's errors, warnings, libraries that know nothing of us."""

import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO

ENOUGH = 65_536


def shared_with(terminal: TextIO) -> tuple[int, ...]:
    """Which of the process's two outputs are that terminal. None are for a stream that is no file."""
    try:
        ours = os.fstat(terminal.fileno())
    except (OSError, ValueError):
        return ()
    found = []
    for output in (1, 2):
        with suppress(OSError):  # closed
            theirs = os.fstat(output)
            if os.isatty(output) and (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino):
                found.append(output)
    return tuple(found)


class Overheard:
    """While its `with` lasts, all that is written to these descriptors is handed over in lines, to be shown elsewhere.

    That is below Python: it hears whoever writes to them in this process, or inherits them. At the end they are what
    they were, every line has been handed over, and the thread has ended.
    """

    def __init__(self, descriptors: Sequence[int], show: Callable[[list[str]], None]) -> None:
        self._descriptors = descriptors
        self._show = show
        self._kept: dict[int, int] = {}
        self._begun = b""

    def __enter__(self) -> Self:
        _flush()
        self._reading, writing = os.pipe()
        self._ending, self._end = os.pipe()
        os.set_blocking(self._reading, False)
        for descriptor in self._descriptors:
            self._kept[descriptor] = os.dup(descriptor)
            os.dup2(writing, descriptor)
        os.close(writing)
        self._thread = threading.Thread(target=self._listen, name="lakehead-overheard", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _flush()
        for descriptor, kept in self._kept.items():
            os.dup2(kept, descriptor)
            os.close(kept)
        os.close(self._end)
        self._thread.join()
        os.close(self._reading)
        os.close(self._ending)

    def _listen(self) -> None:
        ended = False
        while not ended:
            ready, _, _ = select.select([self._reading, self._ending], [], [])
            # A child may hold the other side for ever, so the end is told by a pipe of its own.
            ended = not self._take() or self._ending in ready
        if self._begun:
            self._show([self._begun.decode(errors="replace")])

    def _take(self) -> bool:
        """Hand over what is there. False if nobody can write any more."""
        while True:
            try:
                taken = os.read(self._reading, ENOUGH)
            except BlockingIOError:
                return True
            if not taken:
                return False
            *lines, self._begun = (self._begun + taken).split(b"\n")
            if lines:
                self._show([line.decode(errors="replace") for line in lines])


def _flush() -> None:
    """What Python still holds belongs to before, or to meanwhile."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, failing, or none at all
            stream.flush()
