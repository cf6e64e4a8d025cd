"""Landings that an operator cherry-picks with Spark: their units are in the table, and do not land again."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ports import HistoryBroken, SourceUnknown
from lakehead.maintain.expiry import expire
from lakehead.maintain.rebuild import Rebuilt, Said, rebuild
from lakehead.state.opening import open_state
from tests.integration.maintenance_support import Later, snapshots_of
from tests.lakehouse import Lakehouse
from tests.support.spark import shared_session

pytestmark = pytest.mark.timeout(300)  # the very first start fetches jars

UNITS = ("unit-a", "unit-b", "unit-c")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("cherrypicks")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


def rolled_back(house: Lakehouse, name: str, *, more: str = "") -> tuple[IcebergTable, list[int]]:
    """A table with three landings of which main has the first; and the three."""
    table = house.create(name, more=more)
    for unit in UNITS:
        house.land(table, unit)
    landings = snapshots_of(table)
    house.session.sql(f"CALL lake.system.rollback_to_snapshot('{table.name}', {landings[0]})")
    return table, landings


def pick(house: Lakehouse, table: IcebergTable, snapshot: int) -> int:
    """Cherry-pick a snapshot onto main; what main stands at then."""
    house.session.sql(f"CALL lake.system.cherrypick_snapshot('{table.name}', {snapshot})")
    at = table.load().metadata.current_snapshot_id
    assert at is not None
    return at


def rebuilt(house: Lakehouse, table: IcebergTable, said: Said | None = None) -> Rebuilt:
    return asyncio.run(rebuild(table, house.state, house.ledger, said=said))


def lose_state(house: Lakehouse, where: Path) -> None:
    house.state.close()
    house.state = open_state(f"sqlite:///{where}/state.sqlite", SystemClock(), RandomIds())


def expire_all_but_the_head(house: Lakehouse, table: IcebergTable) -> None:
    house.session.sql(
        f"CALL lake.system.expire_snapshots(table => '{table.name}', older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )


def forget_older_metadata(house: Lakehouse, table: IcebergTable) -> None:
    for number in range(2):
        house.session.sql(
            f"ALTER TABLE lake.{table.name} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1', "
            f"'write.metadata.delete-after-commit.enabled'='true', 'n'='{number}')"
        )


@pytest.mark.parametrize("rebuild_first", [True, False])
def test_a_landing_that_was_rolled_back_and_cherry_picked_does_not_land_again(
    house: Lakehouse,
    tmp_path: Path,
    rebuild_first: bool,  # noqa: FBT001 - a case
) -> None:
    table, (first, second, third) = rolled_back(house, f"picked_{rebuild_first}".lower())
    if rebuild_first:
        assert rebuilt(house, table).landings == 1
    picked = pick(house, table, third)
    assert picked not in (first, second, third)
    if not rebuild_first:
        with pytest.raises(HistoryBroken):
            house.land(table, "unit-d")
        told = rebuilt(house, table)
        assert (told.landings, told.pointer.last_landing, told.left) == (2, picked, (second, third))

    assert house.land(table, "unit-c") is None
    house.land(table, "unit-b")

    assert house.units_in(table) == dict.fromkeys(UNITS, 10)
    lose_state(house, tmp_path)
    told = rebuilt(house, table)
    assert (told.landings, told.units, set(told.left)) == (3, 3, {second, third})
    for unit in UNITS:
        assert house.land(table, unit) is None


def test_a_cherry_pick_that_is_the_very_snapshot_is_a_landing_as_before(house: Lakehouse) -> None:
    table, (_, second, third) = rolled_back(house, "fast_forward")
    assert rebuilt(house, table).landings == 1
    assert pick(house, table, second) == second, "nothing came between, so main moves to it"

    assert house.land(table, "unit-b") is None
    house.land(table, "unit-c")

    assert house.units_in(table) == dict.fromkeys(UNITS, 10)
    assert rebuilt(house, table).left == (third,)


def test_where_the_source_of_a_cherry_pick_has_expired_the_ledger_tells(house: Lakehouse) -> None:
    table, (_, _, third) = rolled_back(house, "expired_source")
    rebuilt(house, table)
    pick(house, table, third)
    expire_all_but_the_head(house, table)
    forget_older_metadata(house, table)
    assert third not in snapshots_of(table)

    assert house.land(table, "unit-c") is None
    assert house.units_in(table) == {"unit-a": 10, "unit-c": 10}


def test_a_cherry_pick_of_a_cherry_pick_is_followed_to_the_landing(house: Lakehouse) -> None:
    table, (first, _, third) = rolled_back(house, "picked_twice")
    rebuilt(house, table)
    picked = pick(house, table, third)
    house.session.sql(f"CALL lake.system.rollback_to_snapshot('{table.name}', {first})")
    house.land(table, "unit-d")
    again = pick(house, table, picked)

    assert house.land(table, "unit-c") is None
    assert again not in (picked, third)
    assert house.units_in(table) == {"unit-a": 10, "unit-d": 10, "unit-c": 10}


def test_what_others_write_first_and_publish_later_is_no_landing_also_when_it_has_expired(house: Lakehouse) -> None:
    table = house.create("audited", more="TBLPROPERTIES ('write.wap.enabled'='true')")
    house.land(table, "unit-a")
    theirs = house.session.newSession()
    theirs.conf.set("spark.wap.id", "their-audit")
    theirs.sql("INSERT INTO lake.t.audited VALUES ('theirs', 1)")
    staged = snapshots_of(table)[-1]
    house.land(table, "unit-b")
    pick(house, table, staged)
    expire_all_but_the_head(house, table)
    forget_older_metadata(house, table)
    assert staged not in snapshots_of(table)

    house.land(table, "unit-c")

    assert house.units_in(table) == {"theirs": 1} | dict.fromkeys(UNITS, 10)


def test_where_nothing_tells_what_was_cherry_picked_the_operator_decides(house: Lakehouse) -> None:
    table = house.create("untold")
    house.land(table, "unit-a")
    house.session.sql("ALTER TABLE lake.t.untold CREATE BRANCH theirs")
    house.session.sql("INSERT INTO lake.t.untold.branch_theirs VALUES ('theirs', 1)")
    source = table.load().metadata.refs["theirs"].snapshot_id
    house.land(table, "unit-b")
    landing = snapshots_of(table)[-1]
    picked = pick(house, table, source)
    house.session.sql("ALTER TABLE lake.t.untold DROP BRANCH theirs")
    expire_all_but_the_head(house, table)
    forget_older_metadata(house, table)

    with pytest.raises(SourceUnknown, match=f"{picked}.*cherry-picked from snapshot {source}.*--last-landing"):
        house.land(table, "unit-c")
    with pytest.raises(SourceUnknown):
        rebuilt(house, table)

    assert rebuilt(house, table, Said(landing)).landings == 2
    house.land(table, "unit-c")
    assert house.units_in(table) == {"theirs": 1} | dict.fromkeys(UNITS, 10)


@pytest.mark.parametrize("landed_on", [True, False])
def test_an_expiry_goes_past_cherry_picks_whose_source_nothing_tells_of_any_more(
    house: Lakehouse,
    landed_on: bool,  # noqa: FBT001 - a case
) -> None:
    """Landings were settled past them: a pick that was one is in the ledger, and the others are none."""
    name = f"beside_an_expiry_{landed_on}".lower()
    table = house.create(name)
    house.land(table, "unit-a")
    house.session.sql(f"ALTER TABLE lake.t.{name} CREATE BRANCH theirs")
    house.session.sql(f"INSERT INTO lake.t.{name}.branch_theirs VALUES ('theirs', 1)")  # noqa: S608 - ours
    source = table.load().metadata.refs["theirs"].snapshot_id
    house.land(table, "unit-b")
    picked = pick(house, table, source)
    if landed_on:
        house.land(table, "unit-c")
    else:
        asyncio.run(house.lander(table).fence())
    house.session.sql(f"ALTER TABLE lake.t.{name} DROP BRANCH theirs")
    house.session.sql(
        f"CALL lake.system.expire_snapshots(table => 't.{name}', older_than => TIMESTAMP '1970-01-01 00:00:00', "
        f"snapshot_ids => array({source}L))"
    )
    forget_older_metadata(house, table)

    later = Later(by=timedelta(days=10))
    done = asyncio.run(expire(table, house.progress("expiry"), house.ledger, later))

    assert len(done.snapshots) == (3 if landed_on else 1)
    assert (picked in snapshots_of(table)) is not landed_on
    house.land(table, "unit-c")
    assert house.units_in(table) == {"theirs": 1} | dict.fromkeys(UNITS, 10)
