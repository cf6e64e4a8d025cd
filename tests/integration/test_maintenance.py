"""Expiry and compaction of real tables: what goes is what nobody needs, and landings go on beside them."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import RandomIds, system_random
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Snapshot
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.ports import HistoryBroken
from lakehead.lake.staged_rows import Change
from lakehead.lake.table_leases import StateTableLeases
from lakehead.maintain.compaction import CompactionFailed, Compactor
from lakehead.maintain.expiry import Expired, ExpiryLimits, expire
from lakehead.maintain.rebuild import rebuild
from lakehead.maintain.references import References
from lakehead.retry import Backoff
from lakehead.storage.open_store import open_store
from tests.integration.maintenance_support import (
    CATALOGS,
    Later,
    files_of,
    make_old,
    opened,
    plant,
    snapshots_of,
    swept,
)
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed

pytestmark = pytest.mark.timeout(300)  # the very first start fetches jars


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, seaweed: Seaweed) -> Iterator[Lakehouse]:
    with opened(tmp_path_factory.mktemp("maintenance"), seaweed) as lakehouse:
        yield lakehouse


def expired(
    house: Lakehouse, table: IcebergTable, clock: SystemClock | None = None, *, keep: int = 1, dry_run: bool = False
) -> Expired:
    return asyncio.run(
        expire(
            table,
            house.progress("expiry"),
            house.ledger,
            clock or Later(by=timedelta(days=10)),
            limits=ExpiryLimits(min_snapshots=keep),
            dry_run=dry_run,
        )
    )


@pytest.mark.parametrize("catalog", CATALOGS)
def test_an_expiry_keeps_the_last_landing_and_all_after_it_and_removes_the_files_of_the_rest(
    house: Lakehouse, catalog: str
) -> None:
    # Spark's own expiry would take all but the head of such a table.
    table = house.create("expired", more="TBLPROPERTIES ('history.expire.max-snapshot-age-ms'='1')", catalog=catalog)
    replacing = house.arrow_stager(table, change=Change.REPLACE)
    house.land(table, "unit-a")
    house.land(table, "unit-b", stager=replacing)
    house.land(table, "unit-c")
    plant(table, "data/stray.parquet")
    swept(table, Later())  # an empty snapshot, with a tag
    first, second, landing, after = snapshots_of(table)
    before = files_of(table)

    assert expired(house, table, SystemClock()).snapshots == (), "what is young stays"
    told = expired(house, table, dry_run=True)
    assert (told.snapshots, told.kept, told.no_landing) == ((first, second), 2, False)
    assert (files_of(table), snapshots_of(table)) == (before, [first, second, landing, after])

    assert expired(house, table) == told
    assert snapshots_of(table) == [landing, after]
    assert len(before - files_of(table)) == told.files
    assert files_of(table) >= References().of(table.load())
    assert house.units_in(table) == {"unit-b": 10, "unit-c": 10}
    assert house.land(table, "unit-a") is None
    house.land(table, "unit-d")
    assert house.units_in(table) == {"unit-b": 10, "unit-c": 10, "unit-d": 10}
    assert expired(house, table).snapshots == (landing,), "what the tag holds stays, though it is no landing"


def test_what_a_reference_holds_and_the_newest_of_every_branch_are_not_expired(house: Lakehouse) -> None:
    table = house.create("held")
    for unit in "abcde":
        house.land(table, unit)
    first, second, third, fourth, fifth = snapshots_of(table)
    house.session.sql(f"ALTER TABLE lake.t.held CREATE TAG audit AS OF VERSION {first}")
    house.session.sql(f"ALTER TABLE lake.t.held CREATE BRANCH theirs AS OF VERSION {third}")

    assert expired(house, table, keep=2, dry_run=True).snapshots == ()
    assert expired(house, table, keep=1).snapshots == (second, fourth)
    assert sorted(snapshots_of(table)) == sorted([first, third, fifth])


def test_snapshots_that_no_branch_leads_to_are_expired_by_their_age(house: Lakehouse) -> None:
    table = house.create("astray")
    house.land(table, "unit-a")
    house.land(table, "unit-b")
    first, second = snapshots_of(table)
    house.session.sql(f"CALL lake.system.rollback_to_snapshot('t.astray', {first})")
    with pytest.raises(HistoryBroken):
        expired(house, table)
    asyncio.run(rebuild(table, house.state, house.ledger))

    assert expired(house, table).snapshots == (second,)
    assert snapshots_of(table) == [first]
    assert house.units_in(table) == {"unit-a": 10}
    assert house.land(table, "unit-b")


def test_a_history_without_a_landing_is_kept(house: Lakehouse) -> None:
    table = house.create("theirs")
    for number in range(3):
        house.session.sql(f"INSERT INTO lake.t.theirs SELECT 'theirs', {number}L")

    told = expired(house, table)

    assert (told.snapshots, told.kept, told.no_landing) == ((), 3, True)
    assert len(snapshots_of(table)) == 3


def test_nothing_is_expired_with_a_ledger_that_is_not_the_one_of_the_landings(house: Lakehouse, tmp_path: Path) -> None:
    table = house.create("other_ledger")
    for unit in "abc":
        house.land(table, unit)
    expired(house, table)
    for unit in "de":
        house.land(table, unit)
    before = snapshots_of(table)
    another = StoreLedger(open_store(f"file://{tmp_path}/another"))

    with pytest.raises(Misconfigured, match="Check that --ledger is the one that the landings use"):
        asyncio.run(expire(table, house.progress(), another, Later(by=timedelta(days=10))))

    assert snapshots_of(table) == before


def compactor(house: Lakehouse, **options: str) -> Compactor:
    table_leases = StateTableLeases(
        state=house.state,
        owner=RandomIds().uuid(),
        clock=SystemClock(),
        random=system_random(),
        patience=Backoff(attempts=3, first_seconds=0.01, cap_seconds=0.01),
    )
    return Compactor(
        session=house.session.newSession(),
        table_leases=table_leases,
        clock=SystemClock(),
        random=system_random(),
        options={key.replace("_", "-"): value for key, value in options.items()},
    )


def test_a_compaction_makes_one_file_of_many_and_changes_no_row(house: Lakehouse) -> None:
    table = house.create("compacted")
    for unit in "abcdef":
        house.land(table, unit)
    before = snapshots_of(table)

    told = asyncio.run(compactor(house).compact(table, dry_run=True))
    assert (told.data_files, told.into) == (6, 0)
    assert snapshots_of(table) == before
    done = asyncio.run(compactor(house).compact(table))

    assert (done.data_files, done.into, done.bytes, done.tries) == (6, 1, told.bytes, 1)
    assert house.units_in(table) == dict.fromkeys("abcdef", 10)
    assert house.state.leases.holder("table", table=table.uuid) is None, "the turn is given back"
    assert asyncio.run(compactor(house).compact(table, dry_run=True)).data_files == 0
    assert house.land(table, "a") is None
    house.land(table, "g")
    assert house.units_in(table) == dict.fromkeys("abcdefg", 10)


def test_a_compacted_file_is_sorted_as_the_table_is(house: Lakehouse) -> None:
    table = house.create("sorted")
    house.session.sql("ALTER TABLE lake.t.sorted WRITE LOCALLY ORDERED BY number DESC")
    for unit in "abc":
        house.land(table, unit)

    done = asyncio.run(compactor(house, rewrite_all="true").compact(table))

    assert (done.data_files, done.into) == (3, 1)
    numbers = table.load().scan().to_arrow()["number"].to_pylist()
    assert numbers == sorted(numbers, reverse=True)
    assert house.units_in(table) == dict.fromkeys("abc", 10)


def test_deletes_that_stand_beside_files_become_part_of_them(house: Lakehouse) -> None:
    modes = ", ".join(f"'write.{mode}.mode'='merge-on-read'" for mode in ("merge", "delete", "update"))
    table = house.create("deletes", more=f"TBLPROPERTIES ({modes})")
    house.land(table, "unit-a")
    house.session.sql("DELETE FROM lake.t.deletes WHERE number = 3")
    assert References().held(table.load(), table.load().metadata.snapshots[-1:])

    done = asyncio.run(compactor(house, rewrite_all="true").compact(table))

    assert (done.data_files, done.delete_files) == (1, 1)
    summary = table.load().metadata.snapshots[-1].summary
    assert summary is not None
    assert summary.additional_properties["total-delete-files"] == "0"
    assert house.units_in(table) == {"unit-a": 9}


def test_a_compaction_waits_for_its_turn_and_gives_up_where_it_is_not_given(house: Lakehouse) -> None:
    table = house.create("turns")
    house.land(table, "unit-a")
    until = house.state.now() + timedelta(hours=1)
    assert house.state.leases.take("table", "somebody", until, table=table.uuid)
    before = snapshots_of(table)

    with pytest.raises(Unavailable, match=rf"holds the lease on table t.turns \(expires {until:%Y-%m-%d %H:%M}"):
        asyncio.run(compactor(house, rewrite_all="true").compact(table))

    assert snapshots_of(table) == before


def test_a_table_whose_name_must_be_quoted_is_compacted_and_expired(house: Lakehouse) -> None:
    name = "it's an odd-náme"
    house.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.t")
    house.session.sql(f"CREATE TABLE lake.t.`{name}` (unit string, number bigint) USING iceberg")
    table = house.table(name)
    for unit in ("unit-a", "unit-b"):
        house.land(table, unit)
    house.land(table, "unit-c", stager=house.merge_stager(table))

    done = asyncio.run(compactor(house, rewrite_all="true").compact(table))
    house.land(table, "unit-d")

    assert done.data_files == 3
    assert expired(house, table).snapshots
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10, "unit-c": 1, "unit-d": 10}


def test_a_compaction_that_cannot_be_done_is_one_sentence(house: Lakehouse) -> None:
    table = house.create("wrong_option")
    house.land(table, "unit-a")

    with pytest.raises(CompactionFailed, match=r"rewrite_data_files: .*no-such-option"):
        asyncio.run(compactor(house, no_such_option="1").compact(table))
    assert house.state.leases.holder("table", table=table.uuid) is None


def test_landings_compactions_expiries_and_sweeps_side_by_side_lose_and_double_nothing(house: Lakehouse) -> None:
    table = house.create("together")
    house.land(table, "first")
    tokens = set()

    def land(owner: str) -> list[str]:
        units = [f"{owner}-{number}" for number in range(4)]
        for number, unit in enumerate(units):
            own = house.table("together")
            stager = house.merge_stager(own) if number == 2 else None
            landing = house.land(own, unit, stager=stager, owner=owner)
            assert landing is not None
            tokens.add(landing.token)
        return units

    def maintain() -> None:
        for number in range(2):  # each moves main twice: fewer times than a landing tries
            own = house.table("together")
            make_old(*plant(own, f"data/stray-{number}.parquet"))
            asyncio.run(compactor(house, rewrite_all="true").compact(own))
            expired(house, own)
            swept(own)

    with ThreadPoolExecutor(3) as threads:
        maintaining = threads.submit(maintain)
        landed = [unit for units in threads.map(land, ["x", "y"]) for unit in units]
        maintaining.result()

    merged = {"x-2", "y-2"}
    assert house.units_in(table) == {"first": 10} | {unit: 1 if unit in merged else 10 for unit in landed}
    assert files_of(table) >= References().of(table.load())
    kept = [landing.landing.token for landing in ledger_of(house, table) if landing.landing]
    assert tokens < set(kept)
    assert len(kept) == len(tokens) + 1
    assert asyncio.run(rebuild(table, house.state, house.ledger)).landings == len(kept)


def ledger_of(house: Lakehouse, table: IcebergTable) -> list[Snapshot]:
    async def read() -> list[Snapshot]:
        return [landing async for landing in house.ledger.landings(table.uuid)]

    return asyncio.run(read())
