"""Sources of raw blobs find the same in every store, also in those that sort folders in their own way."""

import asyncio
from collections.abc import Coroutine
from hashlib import sha256

import pytest

from lakehead.maintain.blob_references import BlobSource, FullScan, TimeIndex
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.utc_hours import UtcHour
from tests.support.async_tests import async_test

HASHES = [sha256(f"{number}".encode()).hexdigest() for number in range(60)]
AGENTS = ("a", "a-b", "a.b", "é")
MIDNIGHT = 24 * 20_000


def identity(number: int) -> BatchIdentity:
    return BatchIdentity(AGENTS[number % 4], "boot", number, number)


async def found(source: BlobSource, store: Store, *, before: int = 0) -> dict[str, tuple[bool, bool]]:
    pages = source.blobs(store, before_ns=UtcHour(before).start_ns)
    return {
        each.sha256: (each.accepted is not None, each.is_quarantined)
        async for page in pages
        for each in page
        if each.sha256 is not None
    }


@async_test
async def test_a_scan_finds_the_references_of_each_blob(store: Store) -> None:
    writes: list[Coroutine[None, None, object]] = []
    for number, each in enumerate(HASHES):
        writes.append(store.put(keys.raw_blob(each), b""))
        if number % 3:
            writes.append(store.put(keys.accepted_by_blob(each, identity(number)), b""))
        if number % 5 == 0:
            writes.append(store.put(keys.quarantine_by_blob(each, identity(number)), b""))
    foreign = ("raw-blobs/v1/sha256/00.txt", "raw-blobs/v1/sha256/a-b/c", "accepted-by-blob/v1/sha256/a/b")
    await asyncio.gather(*writes, *(store.put(each, b"") for each in foreign))

    assert await found(FullScan(), store) == {
        each: (number % 3 != 0, number % 5 == 0) for number, each in enumerate(HASHES)
    }


@pytest.mark.parametrize("since", [MIDNIGHT - 2, MIDNIGHT, MIDNIGHT + 1])
@async_test
async def test_the_index_is_read_from_the_first_hour_that_is_asked_for(store: Store, since: int) -> None:
    hours = {each: MIDNIGHT - 4 + number // 6 for number, each in enumerate(HASHES)}
    await asyncio.gather(
        *(store.put(keys.raw_blob(each), b"") for each in HASHES),
        *(store.put(keys.raw_blob_by_time(UtcHour(hour), each), b"") for each, hour in hours.items()),
    )

    index = await found(TimeIndex(since=UtcHour(since)), store, before=MIDNIGHT + 4)

    assert index.keys() == {each for each, hour in hours.items() if since <= hour < MIDNIGHT + 4}
