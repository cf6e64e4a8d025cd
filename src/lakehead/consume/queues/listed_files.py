"""Files in listings of a store: their URIs, and which of them are not meant to be read."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import cast
from urllib.parse import quote, unquote, urlsplit

from lakehead.storage.object_keys import is_valid_key
from lakehead.storage.port import ListedObject, Store

FILE = "file://"
HEADS_AT_ONCE = 16
TEMPORARY_SUFFIXES = (".tmp", ".part")


def base_uri(store_url: str) -> str:
    """Return the URI of a store's folder, with a trailing slash and without escapes and settings; see `uri_of`."""
    parts = urlsplit(store_url)
    return f"{parts.scheme}://{parts.netloc}{unquote(parts.path).rstrip('/')}/"


def uri_of(base: str, key: str) -> str:
    """Return the normalised URI of an object: `s3://bucket/prefix/a key`, but `file:///folder/a%20file`."""
    return base + key if not base.startswith(FILE) else FILE + quote(base.removeprefix(FILE) + key)


def key_of(base: str, uri: str) -> str | None:
    """Return the key of an object's normalised URI; None if it is not in the folder."""
    plain = unquote(uri) if base.startswith(FILE) else uri
    return plain.removeprefix(base) if plain.startswith(base) else None


def is_temporary(key: str) -> bool:
    """Return whether a file or one of its folders is hidden or temporary by its name.

    As Spark sees it: a leading `.` or `_` hides, but not in the name of a partition, such as `_day=1`. A file that ends
    in `.tmp` or `.part` is still being written.
    """
    return key.lower().endswith(TEMPORARY_SUFFIXES) or any(
        name.startswith(".") or (name.startswith("_") and "=" not in name) for name in key.split("/")
    )


async def folder_markers(store: Store, base: str, files: Iterable[ListedObject]) -> frozenset[str]:
    """Return the keys of the files that are but empty objects by which consoles show a folder, `folder/`.

    Listings of buckets have them without their slashes, so nothing is where they say that it is.
    """
    at_once = asyncio.Semaphore(HEADS_AT_ONCE)

    async def is_missing(key: str) -> bool:
        async with at_once:
            return await store.head(key) is None

    is_bucket = not base.startswith(FILE)
    empty = [file.key for file in files if is_bucket and file.size == 0 and is_valid_key(file.key)]
    missing = await asyncio.gather(*map(is_missing, empty))
    return frozenset(key for key, is_marker in zip(empty, missing, strict=True) if is_marker)


def pages_after(store: Store, key: str) -> AsyncGenerator[Sequence[ListedObject], None]:
    """List a store from behind a key. Close it if it is not exhausted, or asyncio starts a task that does."""
    return cast("AsyncGenerator[Sequence[ListedObject], None]", store.list(start_after=key))  # so are all adapters
