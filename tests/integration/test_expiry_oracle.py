"""Our expiry beside Spark's own: on histories that Spark has written, both remove the same files."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType

from lakehead.lake.iceberg_table import SOURCE, IcebergTable, summary_of
from lakehead.maintain.places import place
from lakehead.maintain.remove_snapshots import ancestors, remove_snapshots
from lakehead.maintain.snapshot_files import SnapshotFiles
from tests.integration.maintenance_support import files_of, snapshots_of
from tests.lakehouse import Lakehouse
from tests.support.effort import effort
from tests.support.spark import shared_session

pytestmark = pytest.mark.timeout(effort(300, soak=1800))

HISTORIES = effort(1, soak=12)
STEPS = 16
MODES = ", ".join(f"'write.{verb}.mode'='merge-on-read'" for verb in ("delete", "update", "merge"))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("expiry-oracle")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    try:
        yield lakehouse
    finally:
        lakehouse.close()


def write(house: Lakehouse, table: IcebergTable, random: Random, number: int) -> None:
    """One thing that Spark does to a table, on main or on a branch."""
    name, sql = f"lake.{table.name}", house.session.sql
    refs = table.load().metadata.refs
    others = [one for one, ref in refs.items() if ref.snapshot_ref_type is SnapshotRefType.BRANCH if one != MAIN_BRANCH]
    target = f"{name}.branch_{random.choice(others)}" if others and random.random() < 0.25 else name
    some = random.choice(snapshots_of(table))
    rows = f"SELECT 'u{number}', id FROM range({number}, {number + 20})"  # noqa: S608 - ours
    match random.choice(
        ["insert"] * 3 + ["delete", "delete whole", "compact", "manifests", "branch", "tag", "stage", "pick", "back"]
    ):
        case "delete":
            sql(f"DELETE FROM {target} WHERE number % 7 = {random.randrange(7)}")  # noqa: S608 - ours
        case "delete whole":
            sql(f"DELETE FROM {target} WHERE unit = 'u{random.randrange(number)}'")  # noqa: S608 - ours
        case "compact":
            sql(f"CALL lake.system.rewrite_data_files(table => '{table.name}', options => map('rewrite-all', 'true'))")
        case "manifests":
            sql(f"CALL lake.system.rewrite_manifests('{table.name}')")
        case "branch":
            sql(f"ALTER TABLE {name} CREATE BRANCH b{number} AS OF VERSION {some}")
        case "tag":
            sql(f"ALTER TABLE {name} CREATE TAG t{number} AS OF VERSION {some}")
        case "stage":
            staging = house.session.newSession()
            staging.conf.set("spark.wap.id", f"wap-{number}")
            staging.sql(f"INSERT INTO {name} {rows}")
        case "pick":
            here = {one.snapshot_id for one in ancestors(table.load().metadata, MAIN_BRANCH)}
            picked = {summary_of(one).get(SOURCE) for one in table.load().metadata.snapshots}
            for one in table.load().metadata.snapshots:
                staged = "wap.id" in summary_of(one)
                if staged and one.snapshot_id not in here and str(one.snapshot_id) not in picked:
                    sql(f"CALL lake.system.cherrypick_snapshot('{table.name}', {one.snapshot_id})")
                    break
        case "back":
            chain = [one.snapshot_id for one in ancestors(table.load().metadata, MAIN_BRANCH)]
            sql(f"CALL lake.system.rollback_to_snapshot('{table.name}', {random.choice(chain[:2])})")
        case _:
            sql(f"INSERT INTO {target} {rows}")


def expire_and_compare(house: Lakehouse, table: IcebergTable, random: Random, *, by_spark: bool) -> None:
    """Expire any snapshots that no reference points at, and compare what Spark removes with what we would."""
    iceberg = table.load()
    referenced = {ref.snapshot_id for ref in iceberg.metadata.refs.values()}
    free = [one for one in snapshots_of(table) if one not in referenced]
    going = random.sample(free, random.randint(1, len(free))) if free else []
    ours, before = {place(uri) for uri in SnapshotFiles().only_of(iceberg, going)}, files_of(table)
    stay = [one for one in snapshots_of(table) if one not in going]
    counts = {one: iceberg.scan(snapshot_id=one).count() for one in stay}
    if by_spark and going:
        ids = ", ".join(f"{one}L" for one in going)
        house.session.sql(
            f"CALL lake.system.expire_snapshots(table => '{table.name}', older_than => TIMESTAMP '1970-01-01', "
            f"snapshot_ids => array({ids}))"
        ).collect()
    elif going:
        head = iceberg.current_snapshot()
        remove_snapshots(table, going, SnapshotFiles(), head.snapshot_id if head else None)
    assert snapshots_of(table) == stay
    assert {file for file in before - files_of(table) if not file.endswith(".metadata.json")} == ours
    for one in stay:
        rows = house.session.sql(f"SELECT count(number) FROM lake.{table.name} VERSION AS OF {one}").collect()[0][0]  # noqa: S608 - ours
        assert rows == counts[one], "every snapshot that stays can be read whole"


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_of_any_history_our_expiry_removes_the_files_that_sparks_does(house: Lakehouse, seed: int) -> None:
    table = house.create(f"oracle_{seed}", more=f"TBLPROPERTIES ({MODES}, 'write.wap.enabled'='true')")
    house.session.sql(f"INSERT INTO lake.{table.name} SELECT 'u0', id FROM range(20)")  # noqa: S608 - ours
    random, turns = Random(seed), 0
    for number in range(1, STEPS):
        write(house, table, random, number)
        if number % 4 == 3:
            expire_and_compare(house, table, random, by_spark=turns % 2 == 0)
            turns += 1
    assert not [crc for crc in Path(place(table.load().location())).rglob(".*.avro.crc") if not _beside(crc).exists()]


def _beside(crc: Path) -> Path:
    return crc.with_name(crc.name[1:-4])
