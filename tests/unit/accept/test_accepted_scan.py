"""A scan finds every accepted batch once, in order, and what cannot be read does not hide the others."""

from lakehead.accept.accepted_scan import ScannedIdentity, read_identities, scan_identities
from lakehead.clock import SystemClock
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import async_test

HASH = "ab" * 32


def manifest(identity: BatchIdentity) -> IdentityManifest:
    return IdentityManifest(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=HASH,
        frame_bytes=1,
        raw_blob_key=keys.raw_blob(HASH),
        accepted_at_unix_ns=1,
        collector_id="gateway",
        wire_version=1,
        frame_version=1,
    )


@async_test
async def test_identities_are_scanned_in_order_in_pages_and_from_a_key_on() -> None:
    store = MemoryStore(clock=SystemClock())
    identities = [BatchIdentity(agent, "b", number, number) for agent in ("a", "b") for number in range(5)]
    for identity in reversed(identities):
        await store.create(keys.accepted(identity), b"x")
    await store.create(f"{keys.ACCEPTED}/agent=61/boot=62/odd.json", b"x")

    pages = [page async for page in scan_identities(store, page=3)]
    rest = [page async for page in scan_identities(store, start_after=keys.accepted(identities[6]))]
    of_boot = [page async for page in scan_identities(store, folder=keys.accepted_folder("b", "b"))]

    assert [identity for page in pages for identity in page] == identities
    assert max(map(len, pages)) == 3
    assert [identity for page in rest for identity in page] == identities[7:]
    assert [identity for page in of_boot for identity in page] == identities[5:]


@async_test
async def test_what_stands_at_an_identity_is_told_apart() -> None:
    store = MemoryStore(clock=SystemClock())
    accepted, void, damaged, gone = (BatchIdentity("a", "b", number, number) for number in range(4))
    voided = IdentityVoid(
        agent_id="a", boot_id="b", seq_start=1, seq_end=1, frame_sha256=HASH, voided_at_unix_ns=1, voided_by="gc"
    )
    await store.create(keys.accepted(accepted), manifest(accepted).encode())
    await store.create(keys.accepted(void), voided.encode())
    await store.create(keys.accepted(damaged), b"{")

    found = await read_identities([accepted, void, damaged, gone], store)

    assert found[:2] == [ScannedIdentity(accepted, manifest(accepted)), ScannedIdentity(void, voided)]
    assert (found[2].record, keys.accepted(damaged) in found[2].problem) == (None, True)
    assert found[3] == ScannedIdentity(gone, None)
