"""A cache shared by processes: entries are created under a file lock, and appear complete by one rename."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from lakehead.errors import Misconfigured


@contextmanager
def locked(target: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock for creating a target. Yields whether we hold it, which is always true with `wait`.

    The lock ends with its process. Raises `Misconfigured` if the cache cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = (target.parent / f".{target.name}.lock").open("w")
    except OSError as error:
        raise Misconfigured(
            f"The cache folder {target.parent} cannot be written ({error.strerror}). Make it writable, or set "
            "another cache folder."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def workshop(target: Path) -> Iterator[Path]:
    """An empty temporary folder next to the target, to create it in. Call it with the target's lock.

    Removes what killed processes left there.
    """
    start = f".{target.name}.making-"
    for left in target.parent.glob(f"{start}*"):
        shutil.rmtree(left, ignore_errors=True)
    folder = Path(mkdtemp(prefix=start, dir=target.parent))
    folder.chmod(0o755)  # a cache created while an image is built is read by other users who run it
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
