"""Sweeps of real tables: what goes is exactly what nobody refers to, on every warehouse and catalog."""

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from lakehead.errors import Misconfigured
from lakehead.lake.commits import LAST_LANDING, SWEEP
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import NO_WATERMARK, Head, Unit, UnitRemainder
from lakehead.lake.ports import Moved, Staged
from lakehead.lake.staged_rows import Branch
from lakehead.maintain.places import place
from lakehead.maintain.references import References
from lakehead.maintain.sweep import Swept, sweep
from lakehead.retry import TimedBackoff
from tests.integration.maintenance_support import CATALOGS, Later, files_of, make_old, opened, plant, swept
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed

pytestmark = pytest.mark.timeout(300)  # the very first start fetches jars


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, seaweed: Seaweed) -> Iterator[Lakehouse]:
    with opened(tmp_path_factory.mktemp("swept"), seaweed) as lakehouse:
        yield lakehouse


@pytest.mark.parametrize("catalog", CATALOGS)
def test_a_sweep_leaves_exactly_what_is_referred_to(house: Lakehouse, catalog: str) -> None:
    table = house.create("swept", catalog=catalog)
    house.land(table, "unit-a")
    house.land(table, "unit-b", stager=house.merge_stager(table))
    strays = plant(table, "data/stray.parquet", "data/deep/er/stray.parquet", "metadata/stray.avro")
    aside = plant(table, "elsewhere/file") if catalog != "rest" else []  # whose server takes no other folder
    house.session.sql(f"ALTER TABLE {catalog}.t.swept CREATE BRANCH lakehead_left")
    house.session.sql(f"ALTER TABLE {catalog}.t.swept CREATE BRANCH theirs")
    before = table.load()

    assert swept(table).files == ()
    assert table.load().metadata == before.metadata, "what is young stays, and then nothing is published"

    told = swept(table, Later(), dry_run=True)
    assert (list(told.files), told.branches, told.snapshot) == (strays, ("lakehead_left",), None)
    assert told.bytes == sum(len(b"nobody's") for _ in strays)
    assert table.load().metadata == before.metadata, "a dry run changes nothing"
    assert files_of(table) >= set(strays)

    done = swept(table, Later())
    assert (list(done.files), done.branches) == (strays, ("lakehead_left",))
    assert files_of(table) == References().of(table.load()) | set(aside)
    refs = table.load().metadata.refs
    assert refs.keys() == {"main", "theirs", LAST_LANDING, SWEEP}
    assert refs["main"].snapshot_id == refs[LAST_LANDING].snapshot_id == before.metadata.current_snapshot_id
    assert refs[SWEEP].snapshot_id == done.snapshot
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 1}

    house.land(table, "unit-c")
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 1, "unit-c": 10}


def test_only_files_that_are_old_enough_are_swept(house: Lakehouse) -> None:
    table = house.create("ages")
    house.land(table, "unit-a")
    old, young = plant(table, "data/old.parquet", "data/young.parquet")
    make_old(old)

    told = swept(table)

    assert (told.files, told.young) == ((old,), 1)
    assert young in files_of(table)


def test_the_files_of_every_snapshot_stay_also_of_those_that_main_has_left(house: Lakehouse) -> None:
    table = house.create("left")
    house.land(table, "unit-a")
    house.land(table, "unit-b")
    first, second = (snapshot.snapshot_id for snapshot in table.load().metadata.snapshots)
    house.session.sql(f"CALL lake.system.rollback_to_snapshot('t.left', {first})")
    before = files_of(table)

    assert swept(table, Later()).files == ()

    assert files_of(table) == before
    house.session.sql(f"CALL lake.system.set_current_snapshot('t.left', {second})")
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10}


def test_statistics_stay(house: Lakehouse) -> None:
    table = house.create("statistics", more="PARTITIONED BY (unit)")
    house.land(table, "unit-a")
    house.session.sql("CALL lake.system.compute_table_stats('t.statistics')")
    house.session.sql("CALL lake.system.compute_partition_stats('t.statistics')")
    metadata = table.load().metadata
    kept = {place(file.statistics_path) for file in (*metadata.statistics, *metadata.partition_statistics)}
    (stray,) = plant(table, "metadata/stray.stats")

    assert len(kept) == 2
    assert swept(table, Later()).files == (stray,)
    assert kept < files_of(table)


def test_what_is_published_while_a_sweep_lists_is_not_swept(house: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    table = house.create("race")
    house.land(table, "unit-a")
    (stray,) = plant(table, "data/stray.parquet")
    staged_only = Staging(house, table)
    staged_only.until_staged("unit-b")
    head = table.head

    async def published_first() -> Head:
        monkeypatch.setattr(table, "head", head)
        await staged_only.publish()
        return await head()

    monkeypatch.setattr(table, "head", published_first)

    assert swept(table, Later()).files == (stray,)
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10}


def test_what_is_staged_and_swept_can_never_be_published(house: Lakehouse) -> None:
    table = house.create("zombie")
    house.land(table, "unit-a")
    zombie = Staging(house, table)
    zombie.until_staged("unit-b")

    done = swept(table, Later())

    assert len(done.files) == 1
    with pytest.raises(Moved):
        asyncio.run(zombie.publish())
    assert house.units_in(table) == {"unit-a": 10}
    assert house.land(table, "unit-b"), "it is staged anew"
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 10}


def test_a_merge_whose_branch_is_swept_publishes_nothing_and_is_done_again(house: Lakehouse) -> None:
    table = house.create("merge_zombie")
    house.land(table, "unit-a")
    stager = house.merge_stager(table)
    sweeps: list[Swept] = []

    def merge_and_sweep(session: object, target: str, remainders: Sequence[UnitRemainder]) -> None:
        stager.merge(session, target, remainders)  # type: ignore[arg-type] # it is the session that it was given
        if not sweeps:
            with ThreadPoolExecutor(1) as another:
                sweeps.append(another.submit(swept, table, Later()).result())

    swept_during = type(stager)(session=stager.session, table=table, ids=stager.ids, merge=merge_and_sweep)
    with pytest.raises(Exception, match="was dropped during a merge"):
        house.land(table, "unit-b", stager=swept_during)

    assert len(sweeps[0].branches) == 1
    assert house.units_in(table) == {"unit-a": 10}
    house.land(table, "unit-b", stager=stager)
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 1}


def test_a_merge_whose_branch_somebody_dropped_before_it_was_published_is_done_again(house: Lakehouse) -> None:
    table = house.create("merge_dropped")
    house.land(table, "unit-a")
    dropped: list[str] = []

    def drop(staged: Staged[Branch]) -> None:
        if not dropped:
            dropped.append(staged.rows.name)
            house.session.sql(f"ALTER TABLE lake.t.merge_dropped DROP BRANCH {staged.rows.name}")

    ours = house.progress().take(table.uuid, [Unit("unit-b")])
    lander = house.lander(table, house.merge_stager(table), audits=[drop])
    asyncio.run(replace(lander, outage=TimedBackoff(seconds=1)).land(ours))

    assert len(dropped) == 1
    assert house.units_in(table) == {"unit-a": 10, "unit-b": 1}


def test_a_branch_that_was_just_made_at_an_old_head_is_young(house: Lakehouse) -> None:
    table = house.create("young_branch")
    house.land(table, "unit-a")
    branch = house.merge_stager(table).create(asyncio.run(table.head()))
    (stray,) = plant(table, "data/stray.parquet")
    make_old(stray)

    made_later = f"lakehead_{Later().now_ns() // 10**6}_abc"
    house.session.sql(f"ALTER TABLE lake.t.young_branch CREATE BRANCH {made_later}")

    done = swept(table, Later())

    assert done.branches == (branch,)
    assert made_later in table.load().metadata.refs


def test_a_table_without_a_snapshot_can_be_swept(house: Lakehouse) -> None:
    table = house.create("fresh")
    assert swept(table, Later()).snapshot is None
    (stray,) = plant(table, "data/stray.parquet")

    assert swept(table, Later()).files == (stray,)

    house.land(table, "unit-a")
    assert house.units_in(table) == {"unit-a": 10}


def test_a_folder_that_another_table_shares_is_not_swept_until_that_one_is_known_to_be_gone(house: Lakehouse) -> None:
    first = house.create("shared")
    house.land(first, "unit-a")
    house.session.sql("ALTER TABLE lake.t.shared RENAME TO t.renamed")
    second = house.create("shared")
    house.land(second, "unit-b")
    renamed = house.table("renamed")
    assert renamed.load().location() == second.load().location()
    before = files_of(second)

    for table in (second, renamed):
        with pytest.raises(Misconfigured, match="also holds metadata of the table") as told:
            swept(table, Later())
        assert ({first.uuid, second.uuid} - {table.uuid}).pop() in str(told.value)
    assert files_of(second) == before
    assert house.units_in(renamed) == {"unit-a": 10}

    house.session.sql("DROP TABLE lake.t.renamed")
    asyncio.run(sweep(second, Later(), dropped=[first.uuid]))
    assert files_of(second) == References().of(second.load())
    assert house.units_in(second) == {"unit-b": 10}


def test_nothing_is_swept_where_the_listing_does_not_show_the_tables_own_files(house: Lakehouse) -> None:
    table = house.create("unlisted")
    house.land(table, "unit-a")
    plant(table, "data/stray.parquet")
    location = Path(place(table.load().location()))
    shutil.move(location / "data", location / "moved")
    (location / "data").mkdir()
    (location / "data" / "stray.parquet").write_bytes(b"nobody's")

    with pytest.raises(Misconfigured, match="None of the 1 files"):
        swept(table, Later())

    assert (location / "data" / "stray.parquet").exists()


class Staging:
    """One landing in two steps: staged now, published later."""

    def __init__(self, house: Lakehouse, table: IcebergTable) -> None:
        self._house = house
        self._table = table

    def until_staged(self, unit: str) -> None:
        """Land the unit up to where it would be published."""
        table = self._table
        lander = self._house.lander(table)
        ours = self._house.progress().take(table.uuid, [Unit(unit)])

        async def stage() -> None:
            self._fence = await lander.fence()
            remainders = await lander.progress.plan(table.uuid, at=self._fence.head.snapshot, units=ours)
            assert remainders
            self._staged = await lander.stager.stage(
                remainders, token=f"token-{unit}", new_watermark=NO_WATERMARK, fence=self._fence
            )

        asyncio.run(stage())

    async def publish(self) -> None:
        """Publish it where it was fenced."""
        await self._table.publish(self._staged, self._fence.head)


def test_files_that_their_owner_keeps_from_removal_are_not_swept(house: Lakehouse) -> None:
    table = house.create("kept", more="TBLPROPERTIES ('gc.enabled'='false')")
    house.land(table, "unit-a")
    strays = plant(table, "data/stray.parquet")
    before = table.load().metadata

    for dry_run in (True, False):
        with pytest.raises(Misconfigured, match=r"t\.kept has gc\.enabled set to false"):
            swept(table, Later(), dry_run=dry_run)

    assert table.load().metadata == before
    assert files_of(table) >= set(strays)
