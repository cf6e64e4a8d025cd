"""Messages for errors of the file system. Every command imports this, so it imports nothing heavy."""

import errno

from lakehead.errors import DiskFull

_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NOT_A_FOLDER = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP}


def file_error_message(error: OSError) -> str | None:
    """Return the message for a full disk or a file or folder that cannot be written; None for other errors."""
    path = error.filename
    if full := DiskFull.of(error, path or "the working folder or the lakehouse"):
        return str(full)
    if error.errno in _NOT_ALLOWED:
        what = path or "a file or folder"
        return f"This user may not write {what} ({error.strerror}). Change its permissions, or choose another path."
    if error.errno in _NOT_A_FOLDER and path:
        return f"{path} cannot be created or opened ({error.strerror}). Choose another path."
    return None
