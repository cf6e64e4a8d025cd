"""A table that is landed on without a pause, with upkeep beside it: it stays small, and no row is lost or doubled."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pyarrow as pa
import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.lake.catalog import open_catalog
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.tables import create_table
from lakehead.maintain.growth import growth_of
from lakehead.maintain.references import References
from lakehead.maintain.upkeep import Upkeep, UpkeepReport
from lakehead.maintain.upkeep_schedule import Figures, UpkeepKind, UpkeepSettings
from lakehead.spark.settings import EMBEDDED
from lakehead.storage.open_store import open_store
from tests.integration.maintenance_support import files_of
from tests.lakehouse import ROWS, Lakehouse, rows_of, whole
from tests.support.effort import effort
from tests.support.local_stager import LocalStager
from tests.support.spark import shared_session

pytestmark = pytest.mark.timeout(effort(300, soak=1800))

LANDINGS = effort(50, soak=2_000)
"""More than the limits below allow of snapshots, files, manifests and metadata files, if nothing were removed."""
KEEP, FILES = 20, 8
SNAPSHOT_BYTES = 1_500
SCHEMA = pa.schema([("unit", pa.string()), ("number", pa.int64())])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("upkeep")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    try:
        yield lakehouse
    finally:
        lakehouse.close()


def upkeep_of(house: Lakehouse) -> Upkeep:
    """Upkeep that may take all of the time: a test has less of it than a pipeline."""
    return Upkeep(
        catalog=open_catalog(EMBEDDED, house.catalogs[EMBEDDED]),
        ledger=StoreLedger(open_store(f"file://{house.folder}/records")),
        state=house.state,
        session=house.session.newSession(),
        owner=RandomIds().uuid(),
        clock=SystemClock(),
        random=system_random(),
        settings=UpkeepSettings(share=1, keep_snapshots=KEEP, keep_for=timedelta(0), small_files=FILES),
    )


def often(house: Lakehouse, name: str) -> tuple[IcebergTable, LocalStager]:
    create_table(house.catalog(), f"t.{name}", SCHEMA)
    table = house.table(name)
    return table, LocalStager(session=house.session, table=table, ids=RandomIds(), read=rows_of, split=whole)


def test_many_landings_leave_a_small_table_with_every_row_once(house: Lakehouse) -> None:
    table, stager = often(house, "often")
    landed, reports = 0, list[UpkeepReport]()
    with upkeep_of(house) as upkeep:
        while landed < LANDINGS or {report.step.kind for report in reports} != set(UpkeepKind):
            assert house.land(table, f"unit-{landed}", stager=stager)
            landed += 1
            assert landed < 5 * LANDINGS, "no step ends beside the landings"
            reports += [report] if (report := asyncio.run(upkeep.after_landing(table))) else []
        # What became due during the last step is done now.
        while (report := upkeep._collect()) is not None:
            reports.append(report)
            table.load()
            asyncio.run(upkeep.after_landing(table))

    assert [report.error for report in reports if report.error] == []
    assert house.units_in(table) == {f"unit-{number}": ROWS for number in range(landed)}
    figures, growth = Figures.of(table.load()), growth_of(table.load(), catalog=EMBEDDED)
    assert figures.data_files < FILES
    assert KEEP <= figures.snapshots < KEEP + KEEP // 2
    assert len(table.load().metadata.snapshot_log) <= figures.snapshots
    assert growth.metadata_bytes < SNAPSHOT_BYTES * (KEEP + KEEP // 2)
    assert growth.manifests <= 20
    assert growth.metadata_files <= 21
    assert files_of(table) >= References().of(table.load()), "nothing that is needed is gone"
    assert house.land(table, "unit-0", stager=stager) is None, "what has landed and expired is known to have landed"


def test_a_step_gives_way_to_whoever_holds_the_table(house: Lakehouse) -> None:
    table, stager = often(house, "held")
    until = house.state.now() + timedelta(hours=1)
    assert house.state.leases.take("table", "a merge", until, table=table.uuid)
    with upkeep_of(house) as upkeep:
        for number in range(FILES):
            house.land(table, f"unit-{number}", stager=stager)
        asyncio.run(upkeep.after_landing(table))
        report = upkeep.close()

    assert report is not None
    assert report.error is not None
    assert "Another process holds the lease on table t.held" in report.error
    assert Figures.of(table.load()) == Figures(FILES, FILES)
    assert house.state.leases.holder("table", table=table.uuid) == ("a merge", until)
