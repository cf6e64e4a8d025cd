"""A gateway's copy of the quarantine: who is in it is refused, whatever else is damaged or released."""

import pytest

from lakehead.accept.quarantined_boots import QuarantinedBoots
from lakehead.errors import Unavailable
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire.conflict_records import QuarantinedIdentity
from tests.support.async_tests import async_test
from tests.support.simulation import World
from tests.unit.accept.support import FixedClock, ScriptedStore


async def put(store: MemoryStore, boot_id: str, state: str, agent_id: str = "agent-a") -> str:
    record = QuarantinedIdentity(
        agent_id=agent_id,
        boot_id=boot_id,
        state="quarantined" if state == "quarantined" else "released",
        changed_at_unix_ns=1,
        changed_by="ann",
        version=1,
    )
    await store.put(record.key, record.encode())
    return record.key


@async_test
async def test_boots_in_quarantine_are_known_and_released_ones_are_not() -> None:
    store = ScriptedStore(page_size=7)
    for number in range(40):
        await put(store, f"boot-{number}", "quarantined" if number % 2 else "released")
    boots = QuarantinedBoots(store, FixedClock())

    await boots.refresh()

    for number in range(40):
        assert boots.is_quarantined("agent-a", f"boot-{number}") == bool(number % 2)
        assert not boots.is_quarantined("agent-b", f"boot-{number}")


@async_test
async def test_without_any_record_nobody_is_in_quarantine() -> None:
    boots = QuarantinedBoots(ScriptedStore(), FixedClock())
    await boots.refresh()
    assert not boots.is_quarantined("agent-a", "boot-1")


@pytest.mark.parametrize("body", [b"", b"{", b'{"schema":"lightmetrics.quarantined_identity.v2"}'])
@async_test
async def test_a_record_that_cannot_be_read_refuses_its_own_boot_and_no_other(body: bytes) -> None:
    store = ScriptedStore()
    await store.put(await put(store, "damaged", "released"), body)
    await store.put("quarantined-identities/v1/notes.txt", b"not ours")
    boots = QuarantinedBoots(store, FixedClock())

    await boots.refresh()

    assert boots.is_quarantined("agent-a", "damaged")
    assert not boots.is_quarantined("agent-a", "other")


@async_test
async def test_an_outage_keeps_the_old_copy_until_it_is_too_old() -> None:
    store, clock = ScriptedStore(), FixedClock()
    await put(store, "boot-1", "quarantined")
    boots = QuarantinedBoots(store, clock)
    with pytest.raises(Unavailable, match="not read yet"):
        boots.is_quarantined("agent-a", "boot-1")
    await boots.refresh()

    store.is_down_for_reads = True
    clock.seconds += 300
    with pytest.raises(Unavailable):
        await boots.refresh()
    assert boots.is_quarantined("agent-a", "boot-1")
    assert not boots.is_quarantined("agent-a", "boot-2")

    clock.seconds += 1
    with pytest.raises(Unavailable, match="quarantined identities is 301 s old"):
        boots.is_quarantined("agent-a", "boot-2")


@async_test
async def test_its_memory_is_bounded() -> None:
    store = ScriptedStore()
    for number in range(4):
        await put(store, f"boot-{number}", "quarantined")
    await put(store, "boot-9", "released")

    await QuarantinedBoots(store, FixedClock(), most=4).refresh()
    with pytest.raises(Unavailable, match="More than 3 boots"):
        await QuarantinedBoots(store, FixedClock(), most=3).refresh()


def test_a_running_gateway_knows_of_a_quarantine_and_of_a_release_within_30_seconds() -> None:
    world = World(1)

    async def scenario() -> None:
        store = MemoryStore(clock=world.clock)
        boots = QuarantinedBoots(store, world.clock)
        running = world.loop.create_task(boots.run())
        await world.clock.sleep(1)
        assert not boots.is_quarantined("agent-a", "boot-1")
        await put(store, "boot-1", "quarantined")
        await world.clock.sleep(30)
        assert boots.is_quarantined("agent-a", "boot-1")
        await put(store, "boot-1", "released")
        await world.clock.sleep(30)
        assert not boots.is_quarantined("agent-a", "boot-1")
        running.cancel()

    world.loop.simulate(scenario())
