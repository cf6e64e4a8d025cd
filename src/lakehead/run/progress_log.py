"""Reads the JSON lines that runs write: whole files, or files that still grow, are rotated or are cut off."""

import heapq
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

from lakehead.errors import Misconfigured
from lakehead.telemetry import events
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import Event

MOST_LINE_BYTES = 16 * 1024 * 1024
"""A longer line is no event."""

CHUNK_BYTES = 1024 * 1024
IN_FOLDER = "*.jsonl*"

KINDS: dict[str, type[Event]] = {
    each.kind: each
    for each in vars(events).values()
    if isinstance(each, type) and issubclass(each, Event) and each is not Event
}


class NotAnEvent(ValueError):
    """A line that no run has written."""


def parse_line(line: bytes) -> EventEnvelope | None:
    """Return the event of a line; None for an empty line, or for a kind of event that this version does not know.

    Raises `NotAnEvent` for anything else.
    """
    if not line.strip():
        return None
    try:
        found = json.loads(line)
        at, run, table, kind = datetime.fromisoformat(found["at"]), found["run"], found["table"], found["kind"]
        if not isinstance(run, str) or not isinstance(kind, str) or not isinstance(table, str | None):
            raise NotAnEvent
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
        event = event_of(kind, found["payload"])
    except (ValueError, TypeError, KeyError, RecursionError, msgspec.ValidationError) as error:
        raise NotAnEvent from error
    if event is None:
        return None
    return EventEnvelope(id="", at=at, run=run, table=table, event=event)


def event_of(kind: str, payload: object) -> Event | None:
    """Return the event of a payload; None for an unknown kind. Raises `msgspec.ValidationError` for a wrong payload."""
    known = KINDS.get(kind)
    return None if known is None else msgspec.convert(payload, type=known, strict=False)


class LogFile:
    """A log that is read from its beginning. `read` returns what was added since the last call.

    A file that was replaced (rotated) is read to its end before the new one is begun. One that has become shorter was
    cut off, and is read again from its beginning. A last line without its end waits until it is complete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.garbage = 0
        """Lines that are no events."""
        self._file: IO[bytes] | None = None
        self._rest = b""
        self.read_inodes: set[tuple[int, int]] = set()
        """The files that had this name, by device and inode."""

    def read(self) -> Iterator[EventEnvelope]:
        """Yield the events that were added. A file that is missing has none."""
        while True:
            if self._file is None and not self._open():
                return
            yield from self._complete_lines()
            if not self._was_replaced():
                return
            self._finish()

    def read_rest(self) -> Iterator[EventEnvelope]:
        """Yield the event of a last line without a line break, if it is whole. A torn line is counted as garbage."""
        rest, self._rest = self._rest, b""
        yield from self._parsed(rest)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            self._file = self.path.open("rb")
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Misconfigured(f"The log {self.path} cannot be read: {error.strerror}.") from None
        there = os.fstat(self._file.fileno())
        self.read_inodes.add((there.st_dev, there.st_ino))
        return True

    def _complete_lines(self) -> Iterator[EventEnvelope]:
        assert self._file is not None  # noqa: S101 - opened by the caller
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._rest = b""
        while chunk := self._chunk():
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                yield from self._parsed(line)
            if len(self._rest) > MOST_LINE_BYTES:
                self._rest = b"\0"  # the rest of the line makes one line of garbage

    def _chunk(self) -> bytes:
        assert self._file is not None  # noqa: S101 - opened by the caller
        try:
            return self._file.read(CHUNK_BYTES)
        except OSError as error:
            raise Misconfigured(f"The log {self.path} cannot be read: {error}.") from None

    def _parsed(self, line: bytes) -> Iterator[EventEnvelope]:
        try:
            event = parse_line(line)
        except NotAnEvent:
            self.garbage += 1
        else:
            if event is not None:
                yield event

    def _was_replaced(self) -> bool:
        """Whether another file has this name now."""
        assert self._file is not None  # noqa: S101 - opened by the caller
        try:
            there = self.path.stat()
        except OSError:
            return False  # moved away, and the new one is not there yet
        own = os.fstat(self._file.fileno())
        return (own.st_dev, own.st_ino) != (there.st_dev, there.st_ino)

    def _finish(self) -> None:
        self.garbage += bool(self._rest.strip())
        self._rest = b""
        self.close()


class Logs:
    """Logs that are read together. New files of a folder are found when it is read again."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises `Misconfigured` if a path is missing, or a folder has no logs."""
        self._paths = paths
        self._files = {path: LogFile(path) for path in log_files(paths)}

    @property
    def garbage(self) -> int:
        """Lines that are no events."""
        return sum(file.garbage for file in self._files.values())

    def read(self) -> Iterator[EventEnvelope]:
        """Yield the events that were added, in the order of their times."""
        self._find_new()
        yield from heapq.merge(*(file.read() for file in self._files.values()), key=lambda each: each.at)

    def read_rest(self) -> Iterator[EventEnvelope]:
        """Yield the events of last lines without a line break."""
        for file in self._files.values():
            yield from file.read_rest()

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()

    def _find_new(self) -> None:
        known = set().union(*(file.read_inodes for file in self._files.values()))
        for folder in (path for path in self._paths if path.is_dir()):
            for path in sorted(folder.glob(IN_FOLDER)):
                with suppress(OSError):
                    there = path.stat()
                    if path not in self._files and (there.st_dev, there.st_ino) not in known:  # a rotated one is known
                        self._files[path] = LogFile(path)


def log_files(paths: Sequence[Path]) -> list[Path]:
    """Return the log files: of a folder all that end in .jsonl. Raises `Misconfigured` if one is missing."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob(IN_FOLDER))
            if not inside:
                raise Misconfigured(
                    f"The folder {path} has no logs (*.jsonl). Name the file or folder of runtime.logging.sink."
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise Misconfigured(f"There is no log {path}. Name the file or folder of runtime.logging.sink.")
    return found
