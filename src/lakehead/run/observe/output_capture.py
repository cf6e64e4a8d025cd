"""Captures what other code writes to standard output and error while a live display owns the terminal."""

import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TextIO

READ_BYTES = 65_536
MAX_LINE_BYTES = 1 << 20
"""A longer line is passed on in pieces: a progress bar of other code may never end its line."""

_log = logging.getLogger("lakehead.run")


def descriptors_of(terminal: TextIO) -> tuple[int, ...]:
    """Return which of descriptors 1 and 2 are this terminal; none if the stream is not a file."""
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


class OutputCapture:
    """Passes lines written to file descriptors to a callback, within its `with`.

    It works below Python, so it also captures output of native libraries and of child processes that inherit the
    descriptors. On exit the descriptors are restored and every line has been passed on. If the callback raises, its
    lines are lost, and a warning is logged at the end: reading goes on, or everyone who writes would wait for ever.
    """

    def __init__(self, descriptors: Sequence[int], show: Callable[[list[str]], None]) -> None:
        self._descriptors = descriptors
        self._show = show
        self._originals: dict[int, int] = {}
        self._partial_line = b""
        self._lost_lines = 0
        self._first_error: Exception | None = None

    def __enter__(self) -> Self:
        _flush()
        self._reading, writing = os.pipe()
        self._ending, self._end = os.pipe()
        os.set_blocking(self._reading, False)
        for descriptor in self._descriptors:
            self._originals[descriptor] = os.dup(descriptor)
            os.dup2(writing, descriptor)
        os.close(writing)
        self._thread = threading.Thread(target=self._run, name="lakehead-output-capture", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _flush()
        for descriptor, original in self._originals.items():
            os.dup2(original, descriptor)
            os.close(original)
        os.close(self._end)
        self._thread.join()
        os.close(self._reading)
        os.close(self._ending)
        if self._lost_lines:
            _log.warning(
                "%d lines that other code printed could not be shown (%r).", self._lost_lines, self._first_error
            )

    def _run(self) -> None:
        ended = False
        while not ended:
            ready, _, _ = select.select([self._reading, self._ending], [], [])
            # A child process may keep the write side open for ever, so the end has a pipe of its own.
            ended = not self._pass_on() or self._ending in ready
        if self._partial_line:
            self._show_lines([self._partial_line])

    def _pass_on(self) -> bool:
        """Pass on all lines that can be read now. Returns False when the write side is closed."""
        while True:
            try:
                data = os.read(self._reading, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            if len(self._partial_line) > MAX_LINE_BYTES:
                lines.append(self._partial_line)
                self._partial_line = b""
            if lines:
                self._show_lines(lines)

    def _show_lines(self, lines: list[bytes]) -> None:
        try:
            self._show([line.decode(errors="replace") for line in lines])
        except Exception as error:  # noqa: BLE001 - whatever it is, the pipe must be read
            self._lost_lines += len(lines)
            self._first_error = self._first_error or error


def _flush() -> None:
    """Write out what Python has buffered, so that it appears on the right side of the switch."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, failing, or absent
            stream.flush()
