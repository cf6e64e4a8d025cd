"""Which object keys are valid: those that mean the same object in every store."""

from functools import lru_cache

from lakehead.errors import LakeheadError

MAX_KEY_BYTES = 896
"""S3 allows 1,024 bytes in all; the rest is left for the prefix of the store's URL."""

MAX_PREFIX_BYTES = 127

MAX_SEGMENT_BYTES = 255
"""The longest file name of common file systems, and of stores that are built on one."""

RESERVED = ".lakehead"
"""The folder that a store uses for its own files."""


class InvalidKey(LakeheadError):
    """Choose another key: this one is unsafe, or does not mean the same object in every store."""


def check_key(key: str) -> None:
    """Raise `InvalidKey` unless the key is valid in every store."""
    _check(key, "key", MAX_KEY_BYTES)


def is_valid_key(key: str) -> bool:
    """Return whether the key is valid in every store."""
    try:
        check_key(key)
    except InvalidKey:
        return False
    return True


def check_listing(folder: str, start_after: str) -> None:
    """Raise `InvalidKey` unless `Store.list` can be called with these arguments. Either may be empty."""
    if folder:
        _check(folder, "folder", MAX_KEY_BYTES)
    try:
        start_after.encode()
    except UnicodeEncodeError:
        raise InvalidKey(f"A listing cannot start after {start_after!r}: it is not valid Unicode text.") from None


def check_start(start: int) -> None:
    """Raise `InvalidKey` unless a range can start at this byte."""
    if start < 0:
        raise InvalidKey(f"A range cannot start at byte {start}. Start at 0 or later.")


def check_prefix(prefix: str) -> None:
    """Raise `InvalidKey` unless a store's URL can have this prefix. Empty means the whole bucket."""
    if prefix:
        _check(prefix, "prefix", MAX_PREFIX_BYTES)


def _check(path: str, kind: str, max_bytes: int) -> None:
    if problem := _problem(path, max_bytes):
        shown = path if len(path) <= 80 else path[:80] + "…"
        raise InvalidKey(f"The {kind} {shown!r} {problem}.")


@lru_cache(maxsize=4096)  # the same few manifests are read again and again
def _problem(path: str, max_bytes: int) -> str | None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode text"
    if size > max_bytes:
        return f"has {size} bytes; at most {max_bytes} are allowed"
    if not path.isprintable() and any(ord(character) < 32 or ord(character) == 127 for character in path):
        return "contains a control character"
    if "\\" in path:
        return "contains a backslash, which some stores turn into a slash"
    segments = path.split("/")
    if segments[0] == RESERVED:
        return f"is in {RESERVED}/, which is reserved for the store itself"
    for segment in segments:
        if not segment:
            return "has an empty segment: it must not start or end with a slash, nor have two in a row"
        if segment[-1] == ".":
            return "has a segment that ends in a dot"
        if size > MAX_SEGMENT_BYTES and len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"has a segment longer than {MAX_SEGMENT_BYTES} bytes"
    return None
