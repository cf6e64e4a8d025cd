"""Where lines go: files and streams, whose failures stop nobody."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import TextIO
from urllib.parse import unquote

from lakehead.errors import Misconfigured

SINKS = "a path, or file: with one"

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")


def local_path(sink: str) -> Path | None:
    """The path that a sink names; None if it is not on this machine. A path with a colon is written ./a:b."""
    scheme = _SCHEME.match(sink)
    if scheme is None:
        return Path(sink)
    if scheme.group().lower() != "file":
        return None
    rest = sink[scheme.end() + 1 :]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in {"", "localhost"}:
            return None
        rest = slash + path
    return Path(unquote(rest)) if rest else None


def log_file(sink: str, run: str) -> Path:
    """The file in which a run's log is: the sink itself, or one of the run's own if the sink is a folder.

    A sink is a folder if it is one already, or ends with a slash. Raises `Misconfigured` for what is not on this
    machine; the message holds nothing of the sink but its scheme.
    """
    path = local_path(sink)
    if path is None:
        scheme = sink.partition(":")[0]
        raise Misconfigured(
            f"The log is written on this machine only, which {scheme}: is not. Name {SINKS}, in runtime.logging.sink, "
            "and ship the file from there."
        )
    if sink.endswith("/") or path.is_dir():
        return path / f"{_NO_NAME.sub('_', run)}.jsonl"
    return path


def on_standard_error(sentence: str) -> None:
    """Say something to whoever started the process, if anybody listens."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"lakehead: {sentence}\n")
        sys.stderr.flush()


class AppendedFile:
    """A file that lines are appended to, each at once and by one write. Several processes may share it.

    Raises `Misconfigured` if it cannot be opened. Its folders are made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            self._torn = self._ends_within_a_line()
        except OSError as error:
            raise Misconfigured(
                f"The log {path} cannot be written ({error.strerror}). Name another file or folder in "
                "runtime.logging.sink, or let this user write there."
            ) from error

    def write(self, line: str) -> None:
        """Append a line, which ends with a line break. After an OSError the next one begins on a line of its own."""
        whole = line.encode()
        rest = memoryview(b"\n" + whole if self._torn else whole)
        while rest:
            written = self._file.write(rest) or 0
            rest = rest[written:]
            self._torn = bool(rest)

    def close(self) -> None:
        """Close it. A line is never waiting."""
        self._file.close()

    def _ends_within_a_line(self) -> bool:
        """Whether a process that was killed, or a full disk, left half a line."""
        there = self.path.stat()
        if not S_ISREG(there.st_mode) or not there.st_size:
            return False
        try:
            with self.path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
        except PermissionError:  # a log that may only be written
            return False


class Tolerant:
    """An output that may fail without stopping anybody: what it does not take is counted, and told once.

    It has as much of a text stream as a console needs. Every write is flushed.
    """

    def __init__(self, what: str, write: Callable[[str], None], tell: Callable[[str], None], encoding: str) -> None:
        self.encoding = encoding
        self.dropped = 0
        self._what = what
        self._write = write
        self._tell = tell

    @classmethod
    def stream(cls, stream: TextIO, tell: Callable[[str], None], what: str = "The output") -> "Tolerant":
        """A stream. What its encoding has no letters for is written with backslashes."""
        encoding = getattr(stream, "encoding", None) or "utf-8"

        def write(text: str) -> None:
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()

        return cls(what, write, tell, encoding)

    @classmethod
    def file(cls, file: AppendedFile, tell: Callable[[str], None]) -> "Tolerant":
        """A file that lines are appended to."""
        return cls(f"The log {file.path}", file.write, tell, "utf-8")

    def write(self, text: str) -> int:
        """Write it now, or count it."""
        try:
            self._write(text)
        except (OSError, ValueError) as error:  # ValueError: somebody has closed it
            self.dropped += 1
            if self.dropped == 1:
                reason = (isinstance(error, OSError) and error.strerror) or error
                self._tell(f"{self._what} cannot be written ({reason}). The load goes on; lines are lost until it can.")
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""
