"""Drivers whose clocks differ by minutes: whatever they commit, Spark reads the table and commits to it."""

import asyncio
from collections.abc import Iterator

import pytest

from lakehead.errors import Misconfigured
from lakehead.lake.catalog import open_catalog
from lakehead.lake.iceberg_table import IcebergTable
from tests.lakehouse import ROWS, Lakehouse, commit_a_branch
from tests.servers.seaweed import Seaweed
from tests.support.clocks import Shifted
from tests.support.spark import shared_session

pytestmark = pytest.mark.timeout(300)  # the very first start fetches jars and prepares quicker ones


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory, seaweed: Seaweed) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("times")
    settings = Lakehouse.settings(folder, {"rest": seaweed.rest_catalog()})
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


def behind(lakehouse: Lakehouse, table: IcebergTable, catalog: str) -> IcebergTable:
    """The table as a driver has it whose clock is five minutes behind."""
    return IcebergTable(open_catalog(catalog, lakehouse.catalogs[catalog], Shifted(-5)), table.name, lakehouse.ledger)


@pytest.mark.parametrize("catalog", ["lake", "rest"])
def test_spark_reads_and_writes_a_table_after_a_driver_whose_clock_is_minutes_behind(
    lakehouse: Lakehouse, catalog: str
) -> None:
    table = lakehouse.create("skewed", catalog=catalog)
    lakehouse.land(table, "on time")
    late = behind(lakehouse, table, catalog)

    lakehouse.land(late, "late")
    lakehouse.land(late, "late again")
    commit_a_branch(late)

    name = f"{catalog}.t.skewed"
    assert lakehouse.session.table(name).count() == 3 * ROWS
    times = [row.made_current_at for row in lakehouse.session.table(f"{name}.history").collect()]
    assert times == sorted(times)
    lakehouse.session.sql(f"INSERT INTO {name} VALUES ('by Spark', 1)")  # noqa: S608 - ours
    assert lakehouse.units_in(table) == {"on time": ROWS, "late": ROWS, "late again": ROWS, "by Spark": 1}
    late.catalog.close()


def test_a_merge_by_a_driver_whose_clock_is_minutes_behind_is_refused_before_it_begins(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("merged_late")
    lakehouse.land(table, "on time")
    late = behind(lakehouse, table, "lake")
    stager = lakehouse.merge_stager(late, clock=Shifted(-5))
    before = table.load().metadata

    with pytest.raises(Misconfigured, match=r"clock of this machine is \d+ s behind the last commit of table t.merged"):
        lakehouse.land(late, "late", stager=stager)

    assert asyncio.run(table.head()).snapshot == before.current_snapshot_id
    assert table.load().metadata.refs == before.refs
    late.catalog.close()
