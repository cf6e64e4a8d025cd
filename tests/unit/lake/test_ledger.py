"""The ledger over a store: what was recorded is there for good, once, in order."""

import asyncio
from dataclasses import replace

import pytest

from lakehead import Unreadable  # as users import it
from lakehead.clock import SystemClock
from lakehead.lake.documents import LONGEST_UNITS, Kept, encode_units, ledger_key
from lakehead.lake.landing import Landing, Snapshot, Unit, UnitRemainder
from lakehead.lake.ledger import StoreLedger
from lakehead.storage.memory_store import MemoryStore

TABLE = "table-uuid"
MANY = tuple(UnitRemainder(Unit(f"unit-{number:06}")) for number in range(1_000))


def landed(number: int, *units: str) -> Snapshot:
    before = number - 1 if number > 1 else None
    landing = Landing(
        f"token-{number}", tuple(UnitRemainder(Unit(unit)) for unit in units), before, counts={"units": len(units)}
    )
    return Snapshot(number, before, number, landing)


def a_ledger(*, page_size: int = 1000) -> StoreLedger:
    return StoreLedger(MemoryStore(clock=SystemClock(), page_size=page_size))


def all_keys(ledger: StoreLedger) -> list[str]:
    async def keys() -> list[str]:
        return [entry.key async for page in ledger.store.list() for entry in page]

    return asyncio.run(keys())


def all_landings(ledger: StoreLedger, table: str = TABLE) -> list[Snapshot]:
    async def landings() -> list[Snapshot]:
        return [snapshot async for snapshot in ledger.landings(table)]

    return asyncio.run(landings())


def test_landings_are_listed_oldest_first_whoever_recorded_them_when() -> None:
    ledger = a_ledger(page_size=3)
    wanted = [landed(number, f"unit-{number}") for number in range(1, 12)]

    for snapshot in reversed(wanted):
        asyncio.run(ledger.record(TABLE, snapshot))

    assert all_landings(ledger) == wanted


def test_the_landings_from_a_sequence_number_on_are_found_without_listing_those_before() -> None:
    ledger = a_ledger(page_size=2)
    for number in range(1, 12):
        asyncio.run(ledger.record(TABLE, landed(number, f"unit-{number}")))

    assert asyncio.run(ledger.sequences(TABLE, start=9)) == {9: 9, 10: 10, 11: 11}
    assert list(asyncio.run(ledger.sequences(TABLE))) == list(range(1, 12))
    assert asyncio.run(ledger.sequences(TABLE, start=12)) == {}


def test_each_table_has_a_ledger_of_its_own() -> None:
    ledger = a_ledger()
    asyncio.run(ledger.record(TABLE, landed(1, "a")))
    asyncio.run(ledger.record(f"{TABLE}-2", landed(2, "b")))

    assert all_landings(ledger) == [landed(1, "a")]
    assert all_landings(ledger, f"{TABLE}-2") == [landed(2, "b")]


def test_recording_a_landing_again_changes_nothing() -> None:
    ledger, key = a_ledger(), ledger_key(TABLE, 1, 1)
    asyncio.run(ledger.record(TABLE, landed(1, "a")))
    first = asyncio.run(ledger.store.get(key))

    asyncio.run(ledger.record(TABLE, landed(1, "a")))

    assert asyncio.run(ledger.store.get(key)) == first


def test_a_snapshot_without_a_landing_is_not_recorded() -> None:
    ledger = a_ledger()

    asyncio.run(ledger.record(TABLE, replace(landed(1), landing=None)))

    assert all_keys(ledger) == []


def test_one_landing_is_read_by_its_snapshot() -> None:
    ledger = a_ledger()
    asyncio.run(ledger.record(TABLE, landed(7, "a")))

    assert asyncio.run(ledger.read(TABLE, 7, 7)) == landed(7, "a")
    assert asyncio.run(ledger.read(TABLE, 8, 8)) is None


def test_an_object_that_is_no_landing_stops_the_reading_of_the_ledger() -> None:
    ledger = a_ledger()
    asyncio.run(ledger.record(TABLE, landed(1, "a")))
    asyncio.run(ledger.store.put(ledger_key(TABLE, 2, 2), b"{}"))

    with pytest.raises(Unreadable, match=r"00000000000000000002-2\.json"):
        all_landings(ledger)


def test_a_landing_that_is_deleted_while_the_ledger_is_read_is_missed_aloud() -> None:
    ledger = a_ledger()
    for number in (1, 2):
        asyncio.run(ledger.record(TABLE, landed(number, "a")))

    async def read_and_delete() -> None:
        async for snapshot in ledger.landings(TABLE):
            assert snapshot.id == 1
            await ledger.store.delete(ledger_key(TABLE, 2, 2))

    with pytest.raises(Unreadable, match="was deleted while the ledger was read"):
        asyncio.run(read_and_delete())


def test_a_short_unit_list_is_kept_nowhere_but_in_the_summary() -> None:
    ledger, remainders = a_ledger(), (UnitRemainder(Unit("u" * (LONGEST_UNITS - len('[{"id":""}]')))),)

    kept = asyncio.run(ledger.keep_units(TABLE, remainders))

    assert kept == encode_units(remainders)
    assert all_keys(ledger) == []


def test_a_list_one_byte_longer_is_kept_under_its_hash() -> None:
    ledger, remainders = a_ledger(), (UnitRemainder(Unit("u" * (LONGEST_UNITS - len('[{"id":""}]') + 1))),)

    kept = asyncio.run(ledger.keep_units(TABLE, remainders))

    assert isinstance(kept, Kept)
    assert all_keys(ledger) == [f"progress/v1/table={TABLE}/{kept.sha256}.json"]
    assert asyncio.run(ledger.kept_units(kept)) == remainders


def test_a_landing_of_fifty_units_does_not_make_the_tables_metadata_grow_by_them() -> None:
    remainders = tuple(UnitRemainder(Unit(f"unit-{number}")) for number in range(50))

    kept = asyncio.run(a_ledger().keep_units(TABLE, remainders))

    assert isinstance(kept, Kept)


def test_a_long_list_that_is_kept_twice_is_one_object() -> None:
    ledger = a_ledger()

    assert asyncio.run(ledger.keep_units(TABLE, MANY)) == asyncio.run(ledger.keep_units(TABLE, MANY))
    assert len(all_keys(ledger)) == 1


def test_a_progress_object_that_is_missing_or_changed_is_never_taken_for_a_list() -> None:
    ledger = a_ledger()
    kept = asyncio.run(ledger.keep_units(TABLE, MANY))
    assert isinstance(kept, Kept)

    asyncio.run(ledger.store.put(kept.key, encode_units(MANY[:-1])))
    with pytest.raises(Unreadable, match="its hash is another"):
        asyncio.run(ledger.kept_units(kept))

    asyncio.run(ledger.store.delete(kept.key))
    assert asyncio.run(ledger.kept_units(kept)) is None
