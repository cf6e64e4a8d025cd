"""Folders for tests that write much and for which a disk's slowness is not the point."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """An empty folder where waiting for the disk takes no time, on systems that have such a place."""
    with tempfile.TemporaryDirectory(prefix="lakehead-", dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None) as folder:
        yield Path(folder)
