"""Reading the audit trail: in the order of time, from a moment on, with what cannot be read."""

from lakehead.accept.audit import ListedAuditEntry, audit_entries
from lakehead.ids import RandomIds
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.audit_records import AuditEntry
from tests.support.async_tests import async_test
from tests.unit.accept.support import ScriptedStore

HOUR = 3_600_000_000_000
START = 500_000 * HOUR


def entry(at_unix_ns: int, action: str = "init") -> AuditEntry:
    return AuditEntry(action_id=RandomIds().uuid(), at_unix_ns=at_unix_ns, by="ann", action=action, subject="it")


async def listed(store: ScriptedStore, since: int = 0) -> list[ListedAuditEntry]:
    return [each async for each in audit_entries(store, since_unix_ns=since)]


@async_test
async def test_entries_are_read_in_the_order_of_time_over_pages_and_hours() -> None:
    store = ScriptedStore(page_size=3)
    entries = [entry(START + number * HOUR // 7) for number in range(40)]
    for each in reversed(entries):
        await store.create(each.key, each.encode())
    await store.create("audit/v1/notes.txt", b"not ours")

    assert [each.entry for each in await listed(store)] == entries


@async_test
async def test_entries_before_a_moment_are_neither_listed_nor_read() -> None:
    store = ScriptedStore()
    entries = [entry(START + offset) for offset in (-HOUR, -1, 0, 1, HOUR)]
    for each in entries:
        await store.create(each.key, each.encode())

    assert [each.entry for each in await listed(store, START)] == entries[2:]


@async_test
async def test_an_entry_that_cannot_be_read_is_listed_with_its_problem() -> None:
    store = ScriptedStore()
    key = keys.audit_entry(START, RandomIds().uuid())
    await store.create(key, b"{}")

    [found] = await listed(store)

    assert (found.key, found.at_unix_ns, found.entry) == (key, START, None)
    assert key in found.problem
