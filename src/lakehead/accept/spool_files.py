"""The folder of a spool: locked for one process, and opened as a store whose files are on disk when a call returns."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random
from lakehead.storage.local_files import fsync_path
from lakehead.storage.local_store import LocalStore
from lakehead.storage.port import Store
from lakehead.wire.spool_records import BATCHES, BOOTS, SPOOL, SpoolRecord

LOCK = "lock"


class SpoolLocked(Misconfigured):
    """Stop the other process first: it has the spool open."""


class _NoJitter(Random):
    """The time of a file is when its batch was accepted, and not a moment later."""

    def getrandbits(self, k: int, /) -> int:
        """Return 0."""
        return 0 & k


@contextmanager
def open_spool_folder(folder: Path, *, clock: Clock, ids: Ids) -> Iterator[Store]:
    """Open a spool's folder, and hold its lock until the end. It is made if it is missing; its parent must exist.

    Raises `SpoolLocked` if another process has it open, and `Misconfigured` if it cannot be used.
    """
    try:
        folder.mkdir(exist_ok=True)
        fsync_path(folder.parent)  # else the whole spool could be gone after the power was lost
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Misconfigured(
            f"The folder {folder} cannot be a spool ({error.strerror}). Its parent must exist, and this user must be "
            "able to write there: correct ingest.spool_folder, or the folder."
        ) from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SpoolLocked(
                f"Another process has the spool {folder} open. Stop that gateway, or choose another folder."
            ) from error
        except OSError as error:
            raise Misconfigured(
                f"The spool {folder} cannot be locked ({error.strerror}). Put it on a local disk."
            ) from error
        try:
            _flush_folders(folder / BOOTS)
        except OSError as error:
            raise Misconfigured(f"The spool {folder} cannot be flushed ({error.strerror}). Check its disk.") from error
        _remove_empty_folders(folder / BATCHES)
        yield LocalStore(folder, clock=clock, ids=ids, random=_NoJitter())
    finally:
        os.close(lock)


async def read_spool_record(disk: Store) -> SpoolRecord | None:
    """Return whose spool a folder is; None if it is new. Raises `Unreadable`."""
    found = await disk.get(SPOOL)
    return None if found is None else SpoolRecord.decode(found.body, SPOOL)


async def spool_record(disk: Store, *, authority_id: str, clock: Clock, ids: Ids) -> SpoolRecord:
    """Return whose spool a folder is, and make it this authority's if it is new.

    Raises `Misconfigured` if it is another authority's.
    """
    new = SpoolRecord(spool_id=ids.uuid(), authority_id=authority_id, created_at_unix_ns=clock.now_ns())
    await disk.create(SPOOL, new.encode())
    record = await read_spool_record(disk) or new
    if record.authority_id != authority_id:
        raise Misconfigured(
            f"The spool {record.spool_id} holds batches of the authority {record.authority_id}, and the store is "
            f"{authority_id}. Correct the store, or choose another ingest.spool_folder."
        )
    return record


def _flush_folders(folder: Path) -> None:
    """Flush what a killed process has removed and not flushed: else it would be there again after the power was lost,
    and what is known of a boot would be what was known long ago.
    """
    for path, _, _ in os.walk(folder):
        fsync_path(Path(path))


def _remove_empty_folders(folder: Path) -> None:
    """Remove the folders of boots whose batches have left the spool."""
    for path, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(path).rmdir()
