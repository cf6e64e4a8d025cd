"""A Unix socket to listen at, for this user alone."""

import contextlib
import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lakehead.errors import Misconfigured

_CONNECT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """A socket and its file, which `close` removes unless it is another one's by now."""

    path: Path
    socket: socket.socket
    _inode: tuple[int, int]

    @classmethod
    def bind(cls, path: Path, *, backlog: int) -> Self:
        """Listen at a path. Raises `Misconfigured`, also if somebody listens there already.

        A socket at which nobody listens was left behind by an agent that was killed, and is replaced.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _remove_if_left_behind(path)
            before = os.umask(0o177)  # mode 0600 from the first moment on
            try:
                listener.bind(str(path))
            finally:
                os.umask(before)
            listener.listen(backlog)
            return cls(path, listener, _inode(path))
        except OSError as error:
            listener.close()
            raise Misconfigured(
                f"The agent cannot listen at the Unix socket {path} ({error}). Correct the path, or stop who has it."
            ) from error
        except Misconfigured:
            listener.close()
            raise

    def close(self) -> None:
        """Listen no more. It can be called again."""
        self.socket.close()
        with contextlib.suppress(FileNotFoundError):
            if _inode(self.path) == self._inode:
                self.path.unlink()


def _inode(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _remove_if_left_behind(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise Misconfigured(f"{path} is no socket. Give the Unix socket another path, or remove the file.")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        trial.settimeout(_CONNECT_SECONDS)
        try:
            trial.connect(str(path))
        except OSError as error:
            if error.errno != errno.ECONNREFUSED:  # a full backlog, for one, means that somebody is there
                raise
        else:
            raise Misconfigured(f"Somebody listens at the Unix socket {path} already. Stop it, or give another path.")
    path.unlink(missing_ok=True)
