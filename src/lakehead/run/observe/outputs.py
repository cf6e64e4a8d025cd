"""Files and streams for log lines, whose failures do not stop a run."""

import fcntl
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Protocol, TextIO
from urllib.parse import unquote, urlsplit

from lakehead.errors import Misconfigured

SINKS = "a path, a file: URL, or s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or hdfs://host/folder"
REMOTE = ("s3", "gs", "az", "hdfs")
"""The schemes of sinks that are not on this machine: they get numbered objects."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?=:)")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")


def local_path(sink: str) -> Path | None:
    """Return the local path of a log sink; None if it is not on this machine. Write a path with a colon as ./a:b."""
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


def is_remote(sink: str) -> bool:
    """Whether a log sink is not on this machine."""
    return sink.partition("://")[0] in REMOTE and "://" in sink


def is_sink(sink: str) -> bool:
    """Whether a log can be written there: a local path, or a remote URL with a host and without a password."""
    if not is_remote(sink):
        return local_path(sink) is not None
    try:
        parts = urlsplit(sink)
    except ValueError:
        return False
    return bool(parts.hostname or parts.scheme == "hdfs") and parts.password is None


def log_file(sink: str, run: str) -> Path:
    """Return the log file of a run: the sink itself, or a file named after the run if the sink is a folder.

    A sink is a folder if it exists as one or ends with a slash. Raises `Misconfigured` if it is not on this machine;
    the message shows only its scheme, because the rest may hold a secret.
    """
    path = local_path(sink)
    if path is None:
        scheme = sink.partition(":")[0]
        raise Misconfigured(
            f"The log cannot be written to {scheme}:, only to a local file. Set runtime.logging.sink to {SINKS}, and "
            "ship the file from there."
        )
    if sink.endswith("/") or path.is_dir():
        return path / f"{_NO_NAME.sub('_', run)}.jsonl"
    return path


def warn_on_stderr(message: str) -> None:
    """Write a message to standard error; ignore it if that is closed."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"lakehead: {message}\n")
        sys.stderr.flush()


class AppendOnlyFile:
    """A file that lines are appended to, each unbuffered and in one write. Several processes may share it.

    Creates missing folders. Raises `Misconfigured` if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
            self._line_is_incomplete = self._ends_within_a_line()
        except OSError as error:
            raise Misconfigured(
                f"The log {path} cannot be written ({error.strerror}). Name another file or folder in "
                "runtime.logging.sink, or let this user write there."
            ) from error

    @property
    def name(self) -> str:
        """The file's path."""
        return str(self.path)

    def write(self, line: str) -> None:
        """Append a line, which ends with a line break. After an OSError the next line starts on a new line."""
        whole = line.encode()
        rest = memoryview(b"\n" + whole if self._line_is_incomplete else whole)
        while rest:
            written = self._file.write(rest) or 0
            rest = rest[written:]
            self._line_is_incomplete = bool(rest)

    def close(self) -> None:
        """Close the file. Lines are never buffered."""
        self._file.close()

    @property
    def size(self) -> int:
        """The bytes in the file, whoever has written them."""
        return os.fstat(self._file.fileno()).st_size

    def has_its_name(self) -> bool:
        """Whether the path still leads to this file. Unknown counts as yes."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False
        except OSError:
            return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from this, within the `with`. Does nothing where the file system has no locks."""
        with suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _ends_within_a_line(self) -> bool:
        """Whether a killed process or a full disk has left an incomplete line."""
        there = os.fstat(self._file.fileno())
        if not S_ISREG(there.st_mode) or not there.st_size:
            return False
        try:
            with self.path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                return file.read(1) != b"\n"
        except OSError:  # a write-only log, or one that another process has renamed meanwhile
            return False


class LineFile(Protocol):
    """Where log lines are kept."""

    @property
    def name(self) -> str:
        """The file for messages, without secrets."""
        ...

    def write(self, line: str, /) -> None:
        """Keep a line, which ends with a line break. Raises OSError or ValueError if that fails."""
        ...

    def close(self) -> None:
        """Write what waits, and close the file."""
        ...


class RotatedFile:
    """A log file that is renamed to FILE.1 when a line would make it too large; FILE.1 becomes FILE.2, and so on.

    Several processes may share it. If renaming fails, the file goes on growing.
    """

    def __init__(self, path: Path, rotate_bytes: int, keep_files: int) -> None:
        """Keeps at most so many renamed files. Raises `Misconfigured` if the file cannot be opened."""
        self._path = path
        self._rotate_bytes = rotate_bytes
        self._keep_files = keep_files
        self._file = AppendOnlyFile(path)

    @property
    def name(self) -> str:
        """The file's path."""
        return str(self._path)

    def write(self, line: str) -> None:
        """Append a line, to a new file if this one is full."""
        size = len(line.encode())
        if not self._file.has_its_name():
            self._open_again()  # another process has renamed it
        if self._file.size and self._file.size + size > self._rotate_bytes:
            self._rotate()
        self._file.write(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rotate(self) -> None:
        # Whoever holds the lock of the file that has the name renames it; the others find that it is done.
        with self._file.locked():
            if self._file.has_its_name():
                with suppress(OSError):
                    for number in range(self._keep_files - 1, 0, -1):
                        with suppress(FileNotFoundError):
                            self._numbered(number).replace(self._numbered(number + 1))
                    self._path.replace(self._numbered(1))
        self._open_again()

    def _open_again(self) -> None:
        with suppress(Misconfigured):
            opened = AppendOnlyFile(self._path)
            self._file.close()
            self._file = opened

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class BestEffortOutput:
    """An output that may fail without stopping the run: failed writes are counted, and the first one is reported.

    It has the part of the text stream interface that a rich console needs. Every write is flushed.
    """

    def __init__(self, name: str, write: Callable[[str], None], warn: Callable[[str], None], encoding: str) -> None:
        self.encoding = encoding
        self.dropped = 0
        self._name = name
        self._write = write
        self._warn = warn

    @classmethod
    def stream(cls, stream: TextIO, warn: Callable[[str], None], name: str = "The output") -> "BestEffortOutput":
        """Wrap a stream. Characters that its encoding lacks are written with backslashes."""
        encoding = getattr(stream, "encoding", None) or "utf-8"

        def write(text: str) -> None:
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()

        return cls(name, write, warn, encoding)

    @classmethod
    def file(cls, file: LineFile, warn: Callable[[str], None]) -> "BestEffortOutput":
        """Wrap a log file."""
        return cls(f"The log {file.name}", file.write, warn, "utf-8")

    def write(self, text: str) -> int:
        """Write now. Failures are counted in `dropped`."""
        try:
            self._write(text)
        except (OSError, ValueError) as error:  # ValueError: it is closed
            self.dropped += 1
            if self.dropped == 1:
                reason = (isinstance(error, OSError) and error.strerror) or error
                self._warn(
                    f"{self._name} cannot be written ({reason}). The run continues; lines are lost until it can."
                )
        return len(text)

    def flush(self) -> None:
        """Do nothing: writes are never buffered."""
