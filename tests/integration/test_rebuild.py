"""A state that was lost, or a table changed behind Lakehead's back: nothing lands until it is known what has."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.lake.commits import LAST_LANDING
from lakehead.lake.dead_letters import DeadLetters
from lakehead.lake.documents import ledger_key
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Landing, NewWatermark, Numbers, Unit
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.ports import HistoryBroken
from lakehead.maintain.expiry import Expired, expire
from lakehead.maintain.rebuild import LandingUnknown, Rebuilt, Said, rebuild
from lakehead.state.model import Mark, ReadBy
from lakehead.state.opening import open_state
from lakehead.storage.open_store import open_store
from lakehead.wire.dead_letters import ClosedLetter, DeadLetterObject
from tests.lakehouse import Lakehouse
from tests.support.spark import shared_session

pytestmark = pytest.mark.timeout(300)  # the very first start fetches jars

UNITS = ("unit-a", "unit-b", "unit-c")
STREAM = "agent/boot"


class Later(SystemClock):
    """The machine's clock in ten days: all that is there has become old."""

    def now_ns(self) -> int:
        return super().now_ns() + int(timedelta(days=10).total_seconds() * 1e9)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("rebuild")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


def lose_state(house: Lakehouse, where: Path) -> None:
    """Go on with a database that knows nothing."""
    house.state.close()
    house.state = open_state(f"sqlite:///{where}/state.sqlite", SystemClock(), RandomIds())


def rebuilt(house: Lakehouse, table: IcebergTable, *, said: Said | None = None, dry_run: bool = False) -> Rebuilt:
    return asyncio.run(rebuild(table, house.state, house.ledger, said=said, dry_run=dry_run))


def expired(house: Lakehouse, table: IcebergTable) -> Expired:
    return asyncio.run(expire(table, house.progress("expiry"), house.ledger, Later()))


def snapshots_of(table: IcebergTable) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.load().metadata.snapshots]


def landed(house: Lakehouse, table: IcebergTable, *units: Unit, new_watermark: NewWatermark) -> Landing | None:
    ours = house.progress().take(table.uuid, units)
    numbers = {unit: unit for unit in units}
    staged = asyncio.run(house.lander(table).land([numbers[unit] for unit in ours], new_watermark=new_watermark))
    return staged.landing if staged else None


def expire_all_but_the_head(house: Lakehouse, table: IcebergTable) -> None:
    """What a nightly job that knows nothing of Lakehead does."""
    house.session.sql(
        f"CALL lake.system.expire_snapshots(table => '{table.name}', older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )


def compact(house: Lakehouse, table: IcebergTable) -> None:
    """A snapshot of somebody else's on top of main."""
    house.session.sql(
        f"CALL lake.system.rewrite_data_files(table => '{table.name}', options => map('rewrite-all', 'true'))"
    )


def known(house: Lakehouse, table: IcebergTable, *units: Unit) -> dict[str, object]:
    """What the state says of a table, but for moments and for who had it."""
    shards = [
        shard
        for generation in {unit.generation for unit in units}
        for shard in house.state.shards.read(table.uuid, [unit.id for unit in units], generation=generation)
    ]
    return {
        "shards": sorted((shard.unit, shard.generation, shard.state, shard.snapshot) for shard in shards),
        "watermark": house.state.progress.watermark(table.uuid, Mark.LANDED),
        "ranges": house.state.landings.ranges(table.uuid, [STREAM]),
        "pointer": house.state.landings.pointer(table.uuid),
    }


def test_rebuilt_shards_watermarks_numbers_and_pointer_equal_the_lost_ones(house: Lakehouse, tmp_path: Path) -> None:
    table = house.create("equal")
    units = [Unit("a", 0, Numbers(STREAM, 0, 10)), Unit("b", 0, Numbers(STREAM, 5, 20)), Unit("c", 1), Unit("d", 2)]
    landed(house, table, units[0], new_watermark=NewWatermark(watermark=1))
    landed(
        house, table, units[1], units[2], new_watermark=NewWatermark(watermark=2, slice=7, load_date=date(2026, 1, 2))
    )
    landed(house, table, units[3], new_watermark=NewWatermark(watermark=1, slice=8, read_by=ReadBy("at", "id > 1")))
    lost = known(house, table, *units)
    assert lost["watermark"] is not None
    assert lost["ranges"] == {STREAM: ((0, 20),)}

    lose_state(house, tmp_path)
    told = rebuilt(house, table)

    assert known(house, table, *units) == lost
    assert (told.landings, told.units, told.recorded, told.left) == (3, 4, (), ())
    assert landed(house, table, *units, new_watermark=NewWatermark(watermark=2)) is None
    assert sum(house.units_in(table).values()) == 40


def test_units_that_were_given_up_stay_so_when_the_state_is_lost(house: Lakehouse, tmp_path: Path) -> None:
    table, letters = house.create("given_up"), DeadLetters(house.ledger.store)
    house.land(table, "landed")
    at = house.state.now()
    for unit in ("open", "dropped", "replayed", "landed"):
        letter = DeadLetterObject(table=table.uuid, unit=unit, reason="no date", tries=5, first_at=at, last_at=at)
        asyncio.run(letters.write(letter))
        if unit == "dropped":
            asyncio.run(letters.close(letter, ClosedLetter("dropped", at)))
        if unit == "replayed":
            asyncio.run(letters.mark_replayed(letter, at))

    lose_state(house, tmp_path)
    assert rebuilt(house, table, dry_run=True).dead_letters == 2
    assert house.state.history.dead_letters(table.uuid) == []
    told = rebuilt(house, table)

    assert told.dead_letters == 2
    assert house.progress().take(table.uuid, [Unit("open"), Unit("dropped"), Unit("landed")]) == []
    assert house.land(table, "replayed") is not None
    assert sorted(house.units_in(table)) == ["landed", "replayed"]
    rows = house.state.history.letters_of(table.uuid, ["open", "dropped", "replayed"])
    assert {row.unit: (row.replayed_at, row.dropped_at) for row in rows} == {
        "open": (None, None),
        "dropped": (None, at),
        "replayed": (at, None),
    }


def test_expired_rebuilt_and_redelivered_nothing_lands_twice(house: Lakehouse, tmp_path: Path) -> None:
    table = house.create("redelivered")
    for unit in UNITS:
        house.land(table, unit)
    first, second, last = snapshots_of(table)

    assert expired(house, table).snapshots == (first, second)
    assert snapshots_of(table) == [last]
    lose_state(house, tmp_path)
    with pytest.raises(HistoryBroken, match=f"cut off before snapshot {second}.*lakehead state rebuild {table.name}"):
        house.land(table, *UNITS)
    told = rebuilt(house, table)

    assert (told.landings, told.pointer.snapshot, told.pointer.last_landing) == (3, last, last)
    for unit in UNITS:
        assert house.land(table, unit) is None
    house.land(table, "unit-d")
    assert house.units_in(table) == dict.fromkeys([*UNITS, "unit-d"], 10)


def test_after_a_rollback_and_a_rebuild_what_was_rolled_back_lands_again(house: Lakehouse) -> None:
    table = house.create("rolled_back")
    for unit in UNITS:
        house.land(table, unit)
    first, second, third = snapshots_of(table)
    house.session.sql(f"CALL lake.system.rollback_to_snapshot('{table.name}', {first})")

    with pytest.raises(HistoryBroken, match=f"rolled back or replaced.*{third}.*lakehead state rebuild {table.name}"):
        house.land(table, "unit-d")
    assert house.units_in(table) == {"unit-a": 10}
    told = rebuilt(house, table, dry_run=True)
    assert (told.landings, told.left) == (1, (second, third))
    with pytest.raises(HistoryBroken):
        house.land(table, "unit-d")  # a dry run has changed nothing

    assert rebuilt(house, table) == told
    for unit in (*UNITS, "unit-d"):
        house.land(table, unit)
    assert house.units_in(table) == dict.fromkeys([*UNITS, "unit-d"], 10)
    assert rebuilt(house, table).left == (second, third), (
        "the ledger keeps what was rolled back, and knows it from main's"
    )


@pytest.mark.parametrize("statement", ["AS SELECT 'theirs' AS unit, 1L AS number", "(unit string, number bigint)"])
def test_a_table_that_was_replaced_starts_again_only_after_a_rebuild(house: Lakehouse, statement: str) -> None:
    name = "replaced_by_rows" if "SELECT" in statement else "replaced_by_nothing"
    table = house.create(name)
    house.land(table, "unit-a")
    house.land(table, "unit-b")
    (_, settled) = snapshots_of(table)
    columns, rows = ("", statement) if "SELECT" in statement else (statement, "")
    house.session.sql(f"CREATE OR REPLACE TABLE lake.t.{name} {columns} USING iceberg {rows}")

    with pytest.raises(HistoryBroken, match=f"{settled}.*lakehead state rebuild {table.name}"):
        house.land(table, "unit-c")
    told = rebuilt(house, table)

    assert (told.landings, len(told.left)) == (0, 2)
    for unit in UNITS:
        house.land(table, unit)
    theirs = {"theirs": 1} if rows else {}
    assert house.units_in(table) == theirs | dict.fromkeys(UNITS, 10)


@pytest.mark.parametrize("first", ["a merge", "somebody else's rows"])
def test_a_table_that_was_replaced_and_rebuilt_has_no_history_before_its_first_snapshot(
    house: Lakehouse, first: str
) -> None:
    name = f"begun_again_by_{'merge' if first == 'a merge' else 'others'}"
    table = house.create(name)
    house.land(table, "unit-a")
    house.session.sql(f"CREATE OR REPLACE TABLE lake.t.{name} (unit string, number bigint) USING iceberg")
    assert rebuilt(house, table).landings == 0

    if first == "a merge":
        house.land(table, "unit-a", stager=house.merge_stager(table))
    else:
        house.session.sql(f"INSERT INTO lake.t.{name} VALUES ('theirs', 1)")  # noqa: S608 - ours
        house.land(table, "unit-a")

    assert house.units_in(table) == ({"unit-a": 1} if first == "a merge" else {"theirs": 1, "unit-a": 10})
    assert rebuilt(house, table).landings == 1


def test_a_table_that_was_dropped_and_made_again_is_another(house: Lakehouse) -> None:
    table = house.create("dropped")
    house.land(table, "unit-a")
    house.session.sql("DROP TABLE lake.t.dropped")

    with pytest.raises(HistoryBroken, match="was dropped while it was in use"):
        house.land(table, "unit-b")
    anew = house.create("dropped")
    with pytest.raises(HistoryBroken, match=f"it is {anew.uuid} now, and was {table.uuid}"):
        house.land(table, "unit-b")

    assert house.units_in(anew) == {}
    house.land(anew, "unit-a")
    assert house.units_in(anew) == {"unit-a": 10}


def test_an_expiry_of_which_no_metadata_file_tells_stops_landings_until_the_state_is_rebuilt(house: Lakehouse) -> None:
    table, (_, settled) = forgotten(house, "expired_by_others", "unit-a", "unit-b")

    with pytest.raises(HistoryBroken, match=f"Snapshots of table {table.name} were expired.*{settled}.*state rebuild"):
        house.land(table, "unit-c")
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10}
    told = rebuilt(house, table, said=Said(settled))

    assert (told.landings, told.pointer.last_landing) == (2, settled)
    for unit in UNITS:
        house.land(table, unit)
    assert house.units_in(table) == dict.fromkeys(UNITS, 10)


def test_after_a_rollback_and_somebody_elses_expiry_the_landing_that_main_has_is_the_last(house: Lakehouse) -> None:
    table = house.create("rolled_back_and_expired")
    house.land(table, "unit-a")
    house.land(table, "unit-b")
    first, second = snapshots_of(table)
    house.session.sql(f"CALL lake.system.rollback_to_snapshot('{table.name}', {first})")
    compact(house, table)
    compact(house, table)
    expire_all_but_the_head(house, table)

    told = rebuilt(house, table)

    assert (told.pointer.last_landing, told.left) == (first, (second,))
    assert LAST_LANDING not in table.load().metadata.refs, "its snapshot has expired"
    house.land(table, "unit-b")
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10}


def test_where_nothing_tells_the_last_landing_the_operator_decides(house: Lakehouse) -> None:
    table, (landing,) = forgotten(house, "forgotten", "unit-a")
    before = house.state.landings.pointer(table.uuid)

    with pytest.raises(LandingUnknown, match=f"--last-landing {landing}"):
        rebuilt(house, table)
    with pytest.raises(LandingUnknown):
        rebuilt(house, table, said=Said(17))
    assert house.state.landings.pointer(table.uuid) == before

    assert rebuilt(house, table, said=Said(landing)).landings == 1
    assert house.land(table, "unit-a") is None
    house.land(table, "unit-b")
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10}


def forgotten(house: Lakehouse, name: str, *units: str) -> tuple[IcebergTable, list[int]]:
    """A table whose landings have expired and of which no metadata file tells any more; and those landings.

    The tag that would have kept the last one was dropped by somebody.
    """
    forget = "'write.metadata.previous-versions-max'='1', 'write.metadata.delete-after-commit.enabled'='true'"
    table = house.create(name, more=f"TBLPROPERTIES ({forget})")
    for unit in units:
        house.land(table, unit)
    landings = snapshots_of(table)
    compact(house, table)
    compact(house, table)
    house.session.sql(f"ALTER TABLE lake.{table.name} DROP TAG `{LAST_LANDING}`")
    expire_all_but_the_head(house, table)
    house.session.sql(f"ALTER TABLE lake.{table.name} SET TBLPROPERTIES ('a'='b')")
    return table, landings


def another_ledger(folder: Path) -> StoreLedger:
    """What a mistyped address leads to: a store that knows nothing of the table."""
    return StoreLedger(open_store(f"file://{folder}/another"))


def test_an_empty_ledger_is_refused_where_the_state_knows_a_landing(house: Lakehouse, tmp_path: Path) -> None:
    table, (landing,) = forgotten(house, "known_by_state", "unit-a")
    before, empty = known(house, table, Unit("unit-a")), another_ledger(tmp_path)

    for said in (None, Said(None), Said(landing)):
        with pytest.raises(LandingUnknown, match=rf"no landing of the table.*lacks landing {landing}.*--ledger"):
            asyncio.run(rebuild(table, house.state, empty, said=said))

    assert known(house, table, Unit("unit-a")) == before
    assert asyncio.run(empty.sequences(table.uuid)) == {}


def test_an_empty_ledger_is_refused_where_a_snapshot_names_a_landing_before_it(
    house: Lakehouse, tmp_path: Path
) -> None:
    table = house.create("known_by_snapshot")
    house.land(table, "unit-a")
    house.land(table, "unit-b")
    first, second = snapshots_of(table)
    lose_state(house, tmp_path)

    with pytest.raises(LandingUnknown, match=f"lacks landing {first}, which landing {second} names"):
        asyncio.run(rebuild(table, house.state, another_ledger(tmp_path)))

    assert rebuilt(house, table).landings == 2, "the ledger of the landings has both"


def test_an_empty_ledger_is_refused_where_the_metadata_log_knows_landings_that_main_has_lost(
    house: Lakehouse, tmp_path: Path
) -> None:
    table = house.create("known_by_log")
    house.land(table, "unit-a")
    house.land(table, "unit-b")
    first, _ = snapshots_of(table)
    house.session.sql("CREATE OR REPLACE TABLE lake.t.known_by_log USING iceberg AS SELECT 'x' AS unit, 1L AS number")
    expire_all_but_the_head(house, table)
    lose_state(house, tmp_path)

    with pytest.raises(LandingUnknown, match=f"lacks landing {first}"):
        asyncio.run(rebuild(table, house.state, another_ledger(tmp_path)))

    told = rebuilt(house, table)
    assert (told.landings, len(told.left)) == (0, 2)


def test_a_history_whose_beginning_pyiceberg_took_is_not_one_in_which_nothing_landed(house: Lakehouse) -> None:
    forget = "'write.metadata.previous-versions-max'='1', 'write.metadata.delete-after-commit.enabled'='true'"
    table = house.create("no_beginning", more=f"TBLPROPERTIES ({forget})")
    house.land(table, "unit-a")
    (landing,) = snapshots_of(table)
    compact(house, table)
    house.session.sql(f"ALTER TABLE lake.{table.name} DROP TAG `{LAST_LANDING}`")
    table.load().maintenance.expire_snapshots().by_ids([landing]).commit()
    for number in range(2):
        house.session.sql(f"ALTER TABLE lake.{table.name} SET TBLPROPERTIES ('a'='{number}')")

    with pytest.raises(LandingUnknown, match=f"--last-landing {landing}"):
        rebuilt(house, table)

    assert rebuilt(house, table, said=Said(landing)).landings == 1
    assert house.land(table, "unit-a") is None


def test_a_history_cut_off_by_pyiceberg_is_not_taken_for_a_whole_one(house: Lakehouse, tmp_path: Path) -> None:
    table = house.create("cut_off")
    for unit in UNITS:
        house.land(table, unit)
    first, second, last = snapshots_of(table)
    table.load().maintenance.expire_snapshots().by_ids([first, second]).commit()
    assert table.load().metadata.snapshots[0].parent_snapshot_id is None
    lose_state(house, tmp_path)

    with pytest.raises(HistoryBroken, match=f"cut off before snapshot {last}"):
        house.land(table, "unit-a")
    assert rebuilt(house, table).landings == 3
    assert house.land(table, "unit-a") is None


def test_a_compaction_on_top_of_what_pyiceberg_cut_off_is_followed_through_older_metadata(house: Lakehouse) -> None:
    table = house.create("cut_off_and_compacted")
    house.land(table, "unit-a")
    house.land(table, "unit-b")
    first, second = snapshots_of(table)
    compact(house, table)
    house.session.sql(f"ALTER TABLE lake.{table.name} DROP TAG `{LAST_LANDING}`")
    table.load().maintenance.expire_snapshots().by_ids([first, second]).commit()

    told = rebuilt(house, table)

    assert (told.landings, told.pointer.last_landing) == (2, second)


def test_a_landing_that_is_nowhere_stops_a_rebuild(house: Lakehouse) -> None:
    table = house.create("nowhere")
    for unit in UNITS:
        house.land(table, unit)
    first, second, _ = table.load().metadata.snapshots
    expired(house, table)
    house.session.sql(f"ALTER TABLE lake.{table.name} SET TBLPROPERTIES ('write.metadata.previous-versions-max'='1')")
    lost = ledger_key(table.uuid, first.snapshot_id, first.sequence_number or 0)
    asyncio.run(house.ledger.store.delete(lost))
    before = house.state.landings.pointer(table.uuid)

    with pytest.raises(LandingUnknown, match=f"landing {first.snapshot_id}.*neither in a snapshot nor in the ledger"):
        rebuilt(house, table)

    assert house.state.landings.pointer(table.uuid) == before
    assert not {first.snapshot_id, second.snapshot_id} & set(snapshots_of(table))


def test_a_landing_that_nobody_settled_goes_to_the_ledger_before_the_state_is_past_it(house: Lakehouse) -> None:
    table = house.create("unsettled")
    house.land(table, "unit-a")
    house.land(table, "unit-b")
    second = table.load().metadata.snapshots[-1]
    key = ledger_key(table.uuid, second.snapshot_id, second.sequence_number or 0)
    asyncio.run(house.ledger.store.delete(key))

    assert rebuilt(house, table, dry_run=True).recorded == (second.snapshot_id,)
    assert asyncio.run(house.ledger.store.get(key)) is None
    assert rebuilt(house, table).recorded == (second.snapshot_id,)
    assert asyncio.run(house.ledger.store.get(key)) is not None


def test_a_table_with_a_history_of_its_own_can_be_adopted(house: Lakehouse) -> None:
    house.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.t")
    house.session.sql("CREATE TABLE lake.t.adopted USING iceberg AS SELECT 'theirs' AS unit, 1L AS number")
    house.session.sql("INSERT INTO lake.t.adopted VALUES ('theirs', 2)")
    table = house.table("adopted")
    expire_all_but_the_head(house, table)

    with pytest.raises(HistoryBroken, match="lakehead state rebuild"):
        house.land(table, "unit-a")
    assert rebuilt(house, table).landings == 0

    house.land(table, "unit-a")
    assert house.units_in(table) == {"theirs": 2, "unit-a": 10}


def test_a_backup_brought_back_is_put_right_by_a_rebuild(house: Lakehouse, tmp_path: Path) -> None:
    (tmp_path / "now").mkdir()
    lose_state(house, tmp_path / "now")  # the folder of an earlier test's state may be gone
    table = house.create("restored")
    house.land(table, "unit-a")
    database = house.state.database.engine.url.database or ""
    with closing(sqlite3.connect(database)) as now, closing(sqlite3.connect(tmp_path / "state.sqlite")) as kept:
        now.backup(kept)
    house.land(table, "unit-b")
    house.land(table, "unit-c")
    expired(house, table)
    lose_state(house, tmp_path)

    assert house.land(table, "unit-b") is None, "older metadata files tell what has landed since the backup"
    assert rebuilt(house, table).landings == 3
    assert house.land(table, "unit-c") is None
    assert house.units_in(table) == dict.fromkeys(UNITS, 10)
