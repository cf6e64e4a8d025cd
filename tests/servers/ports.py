"""Loopback ports that are this process's alone until it ends.

A port is reserved by a lock on a file that is named for it, so other test processes keep away from it between its
choice and the moment that a server listens on it. All lie below those that Linux (from 32768) and macOS (from 49152)
give to outgoing connections, so no client takes one either.
"""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import IO

PORTS = range(10_000, 32_000)

_reserved: list[IO[bytes]] = []


def free_ports(count: int, *, offsets: Collection[int] = (0,)) -> list[int]:
    """Ports that nobody listens on, all different; with each, those at the given distances are reserved too."""
    found: list[int] = []
    candidates = iter(random.sample(PORTS[: -max(offsets) or None], len(PORTS) - max(offsets)))
    while len(found) < count:
        port = next(candidates)
        locks = [_lock(port + offset) for offset in offsets]
        kept = [lock for lock in locks if lock is not None]
        if len(kept) == len(locks):
            _reserved.extend(kept)
            found.append(port)
        else:
            for lock in kept:
                lock.close()
    return found


def _lock(port: int) -> IO[bytes] | None:
    """The lock of a port that nobody has reserved and nobody listens on."""
    folder = Path(tempfile.gettempdir()) / f"lakehead-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    lock = (folder / str(port)).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            trial.bind(("127.0.0.1", port))
    except OSError:
        lock.close()
        return None
    return lock
