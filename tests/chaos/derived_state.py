"""What is derived from identity manifests and quarantine manifests: read, deleted, and compared."""

import asyncio
from collections.abc import Collection, Mapping

from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys

AT_ONCE = 16

DERIVED = (keys.ACCEPTED_BY_TIME, keys.ACCEPTED_BY_BLOB, keys.RAW_BLOBS_BY_TIME, keys.QUARANTINE_BY_BLOB)
"""Folders of which everything is derived from identity manifests and quarantine manifests."""


async def derived_state(store: Store) -> dict[str, bytes]:
    """Everything that is derived, by its key."""
    places = asyncio.Semaphore(AT_ONCE)

    async def body_of(key: str) -> bytes:
        async with places:
            stored = await store.get(key)
        assert stored is not None, f"{key} is listed, and not there"
        return stored.body

    found = [each.key for folder in DERIVED async for page in store.list(folder) for each in page]
    return dict(zip(found, await asyncio.gather(*map(body_of, found)), strict=True))


async def delete_all(store: Store, found: Collection[str]) -> None:
    """Delete objects by their keys."""
    places = asyncio.Semaphore(AT_ONCE)

    async def delete(key: str) -> None:
        async with places:
            await store.delete(key)

    await asyncio.gather(*map(delete, found))


def frames_by_time(derived: Mapping[str, bytes]) -> dict[str, bytes]:
    """The entries of `raw-blobs-by-time/v1/` by the hashes of their frames.

    The hour is that in which an attempt began. One that crossed an hour has its entry in the hour before that of the
    acceptance, several attempts may have several: a scan knows the hour of the acceptance alone. What they say is the
    same.
    """
    hashes = {key: found[1] for key in derived if (found := keys.parse_raw_blob_by_time(key))}
    return {hash_: derived[key] for key, hash_ in hashes.items()}


def lacking(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """Keys of derived state that was deleted and is not there again with the same bytes, or was not there before.

    Frames that were uploaded and never accepted are left aside: no identity manifest names them. Garbage collection
    finds them by their own keys.
    """
    accepted = {found[0] for key in before if (found := keys.parse_accepted_by_blob(key))}

    def compared(derived: Mapping[str, bytes]) -> dict[str, bytes]:
        exact = {key: body for key, body in derived.items() if keys.parse_raw_blob_by_time(key) is None}
        return exact | {hash_: body for hash_, body in frames_by_time(derived).items() if hash_ in accepted}

    then, now = compared(before), compared(after)
    return sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
