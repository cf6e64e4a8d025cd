"""What the system says of a file or folder, as a sentence. Every command may need it, so it loads nothing."""

import errno

from lakehead.errors import DiskFull

_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_FOLDER = {errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP}


def file_sentence(error: OSError) -> str | None:
    """The sentence for a disk that is full, or a file or folder that cannot be written; None for any other error."""
    path = error.filename
    if full := DiskFull.of(error, path or "the working folder or the lakehouse"):
        return str(full)
    if error.errno in _NOT_ALLOWED:
        what = path or "a file or folder"
        return f"This user may not write {what} ({error.strerror}). Let it write there, or name another place."
    if error.errno in _NO_FOLDER and path:
        return f"{path} cannot be made or opened ({error.strerror}). Name another place."
    return None
