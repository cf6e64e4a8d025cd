"""A log outbox on an object store or HDFS: lines in numbered objects, because neither can append well."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from lakehead.clock import Clock
from lakehead.errors import LakeheadError

PART_BYTES = 1_048_576
PART_SECONDS = 10.0
"""When the lines so far become an object: at this size, or when the first of them is this old."""

MAX_WAITING_BYTES = 16 * PART_BYTES
"""How much is kept while the store is away; older lines are then dropped."""


class PartStore(Protocol):
    """Where the objects go."""

    def put(self, name: str, body: bytes, /) -> None:
        """Store an object. Raises a `LakeheadError` or OSError if that fails."""
        ...

    def close(self) -> None:
        """Release what is open."""
        ...


class ObjectOutbox:
    """Keeps lines and stores them as `NAME-00001.jsonl`, `NAME-00002.jsonl` and so on. A `LineFile`.

    `write` raises OSError for lines that are given up. Lines that wait for a store that is away are tried again, with
    the lines after them, `PART_SECONDS` later and at the end.
    """

    def __init__(self, name: str, parts: PartStore, clock: Clock, *, prefix: str) -> None:
        """`name` is for messages; objects are named after `prefix`."""
        self.name = name
        self._parts = parts
        self._clock = clock
        self._prefix = prefix
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._number = 0
        self._since = clock.monotonic()
        self._not_before = self._since
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        """Keep a line, and store what waits if it is due. Raises OSError if a line was dropped."""
        with self._lock:
            if not self._lines:
                self._since = self._clock.monotonic()
            self._lines.append(line.encode())
            self._size += len(self._lines[-1])
            now = self._clock.monotonic()
            due = self._size >= PART_BYTES or now - self._since >= PART_SECONDS
            reason = self._store() if due and now >= self._not_before else ""
            if self._size > MAX_WAITING_BYTES:
                self._size -= len(self._lines.popleft())
                raise OSError(reason or "the store is away, and too many lines wait for it")

    def close(self) -> None:
        """Store what waits. Raises OSError if it cannot be."""
        with self._lock:
            reason = self._store()
            waiting = len(self._lines)
        self._parts.close()
        if waiting:
            raise OSError(f"{reason}; {waiting:,} lines are lost")

    def _store(self) -> str:
        """Store all lines as one object. Returns why that failed; empty if it did not."""
        if not self._lines:
            return ""
        try:
            self._parts.put(f"{self._prefix}-{self._number + 1:05}.jsonl", b"".join(self._lines))
        except (LakeheadError, OSError) as error:
            self._not_before = self._clock.monotonic() + PART_SECONDS
            return str(error)
        self._number += 1
        self._lines.clear()
        self._size = 0
        return ""


class CalledParts:
    """A `PartStore` of two functions."""

    def __init__(self, put: Callable[[str, bytes], None], close: Callable[[], None] = lambda: None) -> None:
        self.put = put
        self.close = close
