"""The two steps that must be atomic, on a local disk, by system calls.

Hadoop's versions check first and act later, and its rename to an existing folder moves the source into it.
"""

import errno
from contextlib import suppress
from pathlib import Path

from lakehead.lake.filesink.port import Outcome


def rename_folder(folder: Path, target: Path) -> Outcome:
    """Give a folder a name that is free. The kernel refuses to put it in the place of a folder that holds anything."""
    try:
        folder.rename(target)
    except FileNotFoundError:
        return Outcome.ABSENT
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return Outcome.TAKEN
        raise
    return Outcome.DONE


def create_file(file: Path, body: bytes, *, temporary: str) -> Outcome:
    """Write a file that is not there yet, under a temporary name beside it first.

    A process that is killed in between can leave the temporary file behind.
    """
    written = file.with_name(temporary)
    try:
        with written.open("xb") as writer:
            writer.write(body)
        file.hardlink_to(written)
    except FileNotFoundError:
        return Outcome.ABSENT
    except FileExistsError:
        return Outcome.TAKEN
    finally:
        with suppress(OSError):  # it is hidden, and its folder may have been renamed since
            written.unlink()
    return Outcome.DONE
