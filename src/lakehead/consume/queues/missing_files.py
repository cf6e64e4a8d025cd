"""Which files of a folder are gone. Said only where it is certain: whoever forgets a file lands it again."""

import asyncio
import os
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path

from lakehead.consume.queues.listed_files import FILE, HEADS_AT_ONCE, is_temporary, key_of, uri_of
from lakehead.storage.object_keys import InvalidKey, is_valid_key
from lakehead.storage.port import Store


async def missing_files(store: Store, base: str, uris: Collection[str], *, files_stay: bool) -> frozenset[str]:
    """Return which of the files with these URIs are gone, according to a complete listing that begins now.

    A file that the listing lacks is looked for once more: one that is replaced during a listing may be missing. A
    volume that is not mounted looks like an empty folder. So no file is known to be gone if the listing has none but
    hidden ones, nor, if `files_stay` when they have landed, a file whose folder on this machine is there and empty.
    """
    left, is_empty = set(uris), True
    async for page in store.list():
        left.difference_update(uri_of(base, file.key) for file in page)
        is_empty = is_empty and all(is_temporary(file.key) for file in page)
    if is_empty:
        return frozenset()
    at_once = asyncio.Semaphore(HEADS_AT_ONCE)

    async def is_gone(key: str) -> bool:
        async with at_once:
            try:
                return await store.head(key) is None
            except InvalidKey:  # its folder has become a symbolic link, which is not followed
                return False

    # A key that our stores do not take can be listed in a bucket, but not looked up.
    keys = {uri: key for uri in sorted(left) if (key := key_of(base, uri)) is not None and is_valid_key(key)}
    gone = [
        uri
        for uri, is_absent in zip(keys, await asyncio.gather(*map(is_gone, keys.values())), strict=True)
        if is_absent
    ]
    if files_stay and base.startswith(FILE):
        root = Path(base.removeprefix(FILE))
        empty = await asyncio.to_thread(_in_empty_folders, root, {keys[uri] for uri in gone})
        gone = [uri for uri in gone if keys[uri] not in empty]
    return frozenset(gone)


def _in_empty_folders(root: Path, keys: Iterable[str]) -> set[str]:
    """Those of the files of which the nearest folder that exists is empty."""

    @cache
    def is_empty(folder: Path) -> bool:
        try:
            with os.scandir(folder) as entries:
                return all(is_temporary(entry.name) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return folder == root or is_empty(folder.parent)
        except OSError:
            return True  # it cannot be looked into

    return {key for key in keys if is_empty((root / key).parent)}
