"""Which keys are legal: those that mean the same object in every store."""

from functools import lru_cache

from lakehead.errors import LakeheadError

MAX_KEY_BYTES = 896
"""S3 takes 1,024 bytes in all; the rest is left for the prefix a store is opened with."""

MAX_PREFIX_BYTES = 127

MAX_SEGMENT_BYTES = 255
"""The longest file name of the usual file systems, and of stores that are built on one."""

RESERVED = ".lakehead"
"""The folder in which a store keeps things of its own."""


class InvalidKey(LakeheadError):
    """Choose another key: this one is not safe, or does not mean the same in every store."""


def check_key(key: str) -> None:
    """Raise `InvalidKey` unless the key is legal everywhere."""
    _check(key, "key", MAX_KEY_BYTES)


def is_legal(key: str) -> bool:
    """Whether the key is legal everywhere."""
    try:
        check_key(key)
    except InvalidKey:
        return False
    return True


def check_listing(folder: str, start_after: str) -> None:
    """Raise `InvalidKey` unless keys can lie below the folder and after the other. Empty means from the beginning."""
    if folder:
        _check(folder, "folder", MAX_KEY_BYTES)
    try:
        start_after.encode()
    except UnicodeEncodeError:
        raise InvalidKey(f"A listing cannot start after {start_after!r}, which is not valid Unicode text.") from None


def check_start(start: int) -> None:
    """Raise `InvalidKey` unless a range can start there."""
    if start < 0:
        raise InvalidKey(f"A range of an object cannot start at {start}. It counts from 0, at the object's beginning.")


def check_prefix(prefix: str) -> None:
    """Raise `InvalidKey` unless a store can be opened below the prefix. The empty prefix is the whole bucket."""
    if prefix:
        _check(prefix, "prefix", MAX_PREFIX_BYTES)


def _check(path: str, what: str, limit: int) -> None:
    if fault := _fault(path, limit):
        shown = path if len(path) <= 80 else path[:80] + "…"
        raise InvalidKey(f"The {what} {shown!r} {fault}.")


@lru_cache(maxsize=4096)  # the same few manifests are asked for again and again
def _fault(path: str, limit: int) -> str | None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode text"
    if size > limit:
        return f"has {size} bytes, more than the {limit} that every store takes"
    if not path.isprintable() and any(ord(character) < 32 or ord(character) == 127 for character in path):
        return "has a control character in it"
    if "\\" in path:
        return "has a backslash in it, which some stores turn into a slash"
    segments = path.split("/")
    if segments[0] == RESERVED:
        return f"lies in {RESERVED}/, which belongs to the store itself"
    for segment in segments:
        if not segment:
            return "has an empty segment: it must not start or end with a slash, nor have two in a row"
        if segment[-1] == ".":
            return "has a segment that ends in a dot"
        if size > MAX_SEGMENT_BYTES and len(segment.encode()) > MAX_SEGMENT_BYTES:
            return f"has a segment longer than {MAX_SEGMENT_BYTES} bytes"
    return None
