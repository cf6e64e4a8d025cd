"""Accepted batches as a scan of their keys finds them, a page at a time, in the order of their keys."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable

AT_ONCE = 32
"""Manifests that are read concurrently."""

PAGE = 1_000


@dataclass(frozen=True, slots=True)
class ScannedIdentity:
    """What stands at the key of an identity."""

    identity: BatchIdentity
    record: IdentityManifest | IdentityVoid | None
    """None if it is gone, which nothing may do, or cannot be read."""

    problem: str = ""
    """Why it cannot be read; empty if it can, or is gone."""


async def read_identities(
    identities: Iterable[BatchIdentity], store: Store, *, at_once: int = AT_ONCE
) -> Sequence[ScannedIdentity]:
    """Read what stands at the keys of identities, in their order. Raises `Unavailable`."""
    limit = asyncio.Semaphore(at_once)

    async def read(identity: BatchIdentity) -> ScannedIdentity:
        async with limit:
            return await read_identity(identity, store)

    return await asyncio.gather(*map(read, identities))


async def read_identity(identity: BatchIdentity, store: Store) -> ScannedIdentity:
    """Read what stands at the key of an identity. Raises `Unavailable`."""
    stored = await store.get(keys.accepted(identity), end=IdentityManifest.MAX_BYTES + 1)
    if stored is None:
        return ScannedIdentity(identity, None)
    try:
        return ScannedIdentity(identity, decode_at_identity(stored.body, identity))
    except Unreadable as error:
        return ScannedIdentity(identity, None, str(error))


async def scan_identities(
    store: Store, *, folder: str = keys.ACCEPTED, start_after: str = "", page: int = PAGE
) -> AsyncIterator[Sequence[BatchIdentity]]:
    """Yield the identities whose keys are below a folder of `accepted/v1/`, in pages of bounded size.

    What is created while it is listed may be missing. Keys that no identity has are left out. Raises `Unavailable`.
    """
    async for listed in store.list(folder, start_after=start_after):
        found = [identity for each in listed if (identity := keys.parse_accepted(each.key)) is not None]
        for first in range(0, len(found), page):
            yield found[first : first + page]
