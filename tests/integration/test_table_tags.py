"""Somebody else's Spark procedures beside landings: what our tags keep, and what they must not keep."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.table.refs import MAIN_BRANCH

from lakehead.lake.commits import LAST_LANDING, SWEEP
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import NO_WATERMARK, Unit
from lakehead.lake.ports import HistoryBroken
from lakehead.maintain.expiry import Expired, expire
from lakehead.maintain.rebuild import rebuild
from tests.integration.maintenance_support import Later, files_of, plant, snapshots_of, swept
from tests.lakehouse import Lakehouse
from tests.support.spark import shared_session

pytestmark = pytest.mark.timeout(300)  # the very first start fetches jars

LONG_FROM_NOW = "TIMESTAMP '2100-01-01 00:00:00'"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("tags")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


def expire_all_but_one(house: Lakehouse, table: IcebergTable) -> None:
    """What a managed catalog does at night."""
    house.session.sql(
        f"CALL lake.system.expire_snapshots(table => '{table.name}', older_than => {LONG_FROM_NOW}, retain_last => 1)"
    )


def compact(house: Lakehouse, table: IcebergTable) -> None:
    house.session.sql(
        f"CALL lake.system.rewrite_data_files(table => '{table.name}', options => map('rewrite-all', 'true'))"
    )


def expired(house: Lakehouse, table: IcebergTable, *, dry_run: bool = False) -> Expired:
    """Our own expiry, when all that is there has become old."""
    later = Later(by=timedelta(days=10))
    return asyncio.run(expire(table, house.progress("expiry"), house.ledger, later, dry_run=dry_run))


def refs_of(table: IcebergTable) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in table.load().metadata.refs.items()}


@pytest.mark.parametrize("commits", [0, pytest.param(1, marks=pytest.mark.soak), 3])
def test_landings_go_on_after_somebody_elses_expiry_that_retains_one_snapshot(house: Lakehouse, commits: int) -> None:
    table = house.create(f"expired_by_others_{commits}")
    house.land(table, "unit-a")
    house.land(table, "unit-b", stager=house.merge_stager(table))
    landing = snapshots_of(table)[-1]
    for _ in range(commits):
        compact(house, table)
    expire_all_but_one(house, table)
    assert set(snapshots_of(table)) == {landing, refs_of(table)[MAIN_BRANCH]}, "the tag has kept the last landing"

    assert house.land(table, "unit-a", "unit-b") is None
    house.land(table, "unit-c")
    house.land(table, "unit-d", stager=house.merge_stager(table))

    assert house.units_in(table) == {"unit-a": 10, "unit-b": 1, "unit-c": 10, "unit-d": 1}
    assert refs_of(table).keys() == {MAIN_BRANCH, LAST_LANDING}
    assert refs_of(table)[LAST_LANDING] == refs_of(table)[MAIN_BRANCH]


def test_a_landing_that_nobody_settled_is_found_after_somebody_elses_commits_and_expiry(house: Lakehouse) -> None:
    table = house.create("unsettled")
    house.land(table, "unit-a")
    publish_and_die(house, table, "unit-b")
    compact(house, table)
    compact(house, table)
    expire_all_but_one(house, table)

    assert house.land(table, "unit-b") is None

    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10}
    assert asyncio.run(rebuild(table, house.state, house.ledger)).landings == 2


def publish_and_die(house: Lakehouse, table: IcebergTable, unit: str) -> None:
    """Land a unit up to where it is published, and do not settle it."""
    lander = house.lander(table)
    ours = house.progress().take(table.uuid, [Unit(unit)])

    async def publish() -> None:
        fenced = await lander.fence()
        remainders = await lander.progress.plan(table.uuid, at=fenced.head.snapshot, units=ours)
        assert remainders
        staged = await lander.stager.stage(remainders, token=f"token-{unit}", new_watermark=NO_WATERMARK, fence=fenced)
        await table.publish(staged, fenced.head)

    asyncio.run(publish())


def test_a_rollback_that_an_expiry_hides_is_still_noticed_and_a_rebuild_moves_the_tag(house: Lakehouse) -> None:
    table = house.create("rolled_back")
    house.land(table, "unit-a")
    house.land(table, "unit-b")
    first, second = snapshots_of(table)
    house.session.sql(f"CALL lake.system.rollback_to_snapshot('{table.name}', {first})")
    compact(house, table)
    expire_all_but_one(house, table)
    assert refs_of(table)[LAST_LANDING] == second, "the tag is on what main has lost"

    with pytest.raises(HistoryBroken, match=f"{second}.*lakehead state rebuild"):
        house.land(table, "unit-c")
    told = asyncio.run(rebuild(table, house.state, house.ledger))

    assert (told.pointer.last_landing, told.left) == (first, (second,))
    assert LAST_LANDING not in refs_of(table), "main's last landing has expired, and no other is kept in its place"
    for unit in ("unit-a", "unit-b", "unit-c"):
        house.land(table, unit)
    assert house.units_in(table) == dict.fromkeys(("unit-a", "unit-b", "unit-c"), 10)
    assert refs_of(table)[LAST_LANDING] == refs_of(table)[MAIN_BRANCH]


def test_our_expiry_keeps_the_last_landing_where_somebody_elses_has_cut_main_off_from_it(house: Lakehouse) -> None:
    table = house.create("cut_off")
    house.land(table, "unit-a")
    (landing,) = snapshots_of(table)
    for _ in range(3):
        compact(house, table)
    expire_all_but_one(house, table)

    dry = expired(house, table, dry_run=True)
    done = expired(house, table)

    assert (dry.snapshots, done.snapshots, done.no_landing) == ((), (), True)
    assert refs_of(table)[LAST_LANDING] == landing
    house.land(table, "unit-b")
    assert landing in expired(house, table).snapshots, "there is a newer one now"
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10}


@pytest.mark.parametrize("whose", ["ours", "theirs"])
def test_rows_that_were_deleted_after_a_sweep_are_gone_after_an_expiry(house: Lakehouse, whose: str) -> None:
    table = house.create(f"erased_{whose}")
    house.land(table, "unit-a")
    (stray,) = plant(table, "data/stray.parquet")
    assert swept(table, Later()).files == (stray,)
    with_rows = {path for path in files_of(table) if path.endswith(".parquet")}
    house.session.sql(f"DELETE FROM lake.{table.name} WHERE number < 5")  # noqa: S608 - a table of this test
    house.land(table, "unit-b")

    if whose == "ours":
        expired(house, table)
    else:
        expire_all_but_one(house, table)

    assert with_rows
    assert not with_rows & files_of(table)
    assert refs_of(table).keys() == {MAIN_BRANCH, LAST_LANDING, SWEEP}
    assert house.units_in(table) == {"unit-a": 5, "unit-b": 10}


def test_readers_meet_the_tag_of_a_sweep_as_an_empty_table(house: Lakehouse) -> None:
    table = house.create("read")
    house.land(table, "unit-a")
    plant(table, "data/stray.parquet")
    swept(table, Later())

    def counted(what: str) -> Any:
        return house.session.sql(f"SELECT count(*) AS n FROM {what}").collect()[0].n  # noqa: S608 - ours

    assert counted("lake.t.read") == 10
    assert counted(f"lake.t.read VERSION AS OF '{SWEEP}'") == 0
    assert counted(f"lake.t.read VERSION AS OF '{LAST_LANDING}'") == 10
    assert counted("lake.t.read.snapshots") == 2
    assert counted("lake.t.read.history") == 1, "main's history does not tell of it"
    assert counted("lake.t.read.all_data_files") == 1
    house.session.sql("INSERT INTO lake.t.read VALUES ('theirs', 1)")
    house.session.sql("CALL lake.system.rewrite_manifests('t.read')")
    assert house.units_in(table) == {"unit-a": 10, "theirs": 1}
    house.land(table, "unit-b")
    assert house.units_in(table) == {"unit-a": 10, "theirs": 1, "unit-b": 10}


def test_retention_that_was_set_by_sql_is_there_after_landings_merges_and_sweeps(house: Lakehouse) -> None:
    table = house.create("retained")
    house.land(table, "unit-a")
    house.session.sql(
        f"ALTER TABLE lake.{table.name} REPLACE BRANCH main AS OF VERSION {refs_of(table)[MAIN_BRANCH]} "
        "WITH SNAPSHOT RETENTION 3 SNAPSHOTS 2 DAYS"
    )

    house.land(table, "unit-b")
    house.land(table, "unit-c", stager=house.merge_stager(table))
    plant(table, "data/stray.parquet")
    swept(table, Later())

    main = table.load().metadata.refs[MAIN_BRANCH]
    assert (main.min_snapshots_to_keep, main.max_snapshot_age_ms) == (3, 2 * 86_400_000)
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10, "unit-c": 1}
