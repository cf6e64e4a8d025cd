"""`make bench-upkeep`: two thousand tiny landings with upkeep beside them, and what has grown after them.

`python -m bench.upkeep LANDINGS SHARE PER_SECOND` for others.
"""

import asyncio
import sys
import tempfile
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pyarrow as pa

from bench.figures import figure
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.lake.catalog import open_catalog
from lakehead.lake.iceberg_table import IcebergTable, summary_of
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.tables import create_table
from lakehead.maintain.upkeep import Upkeep, UpkeepReport
from lakehead.maintain.upkeep_schedule import UpkeepSettings
from lakehead.run.environment import spark_settings
from lakehead.spark.session import build_session, stop_session
from lakehead.spark.settings import EMBEDDED
from lakehead.storage.open_store import open_store
from tests.lakehouse import ROWS, Lakehouse, rows_of, whole
from tests.support.local_stager import LocalStager

SCHEMA = pa.schema([("unit", pa.string()), ("number", pa.int64())])
EACH = 100


def grown(table: IcebergTable) -> dict[str, int]:
    """What of a table grows with landings."""
    iceberg = table.load()
    snapshot = iceberg.current_snapshot()
    metadata = Path(urlsplit(iceberg.metadata_location).path)
    return {
        "snapshots": len(iceberg.metadata.snapshots),
        "snapshot log": len(iceberg.metadata.snapshot_log),
        "metadata bytes": metadata.stat().st_size,
        "manifests": len(snapshot.manifests(iceberg.io)) if snapshot else 0,
        "data files": int(summary_of(snapshot)["total-data-files"]),
        "files in metadata": sum(not file.name.endswith(".crc") for file in metadata.parent.iterdir()),
        "metadata files": len(list(metadata.parent.glob("*.json"))),
        "files in data": len(list((metadata.parent.parent / "data").glob("*.parquet"))),
    }


def told(report: UpkeepReport) -> str:
    """A step in one line."""
    if report.error:
        return f"{report.step.kind.value} failed after {report.seconds:.1f} s: {report.error}"
    if report.expired:
        gone = f"{len(report.expired.snapshots)} snapshots and {report.expired.files} files gone"
        return f"expire {report.seconds:.1f} s: {gone}, {report.expired.kept} kept"
    if report.compacted:
        done = report.compacted
        return f"compact {report.seconds:.1f} s: {done.data_files} files became {done.into}, {done.tries} tries"
    return f"{report.step.kind.value} {report.seconds:.1f} s: nothing to do"


def landed(house: Lakehouse, table: IcebergTable, stager: LocalStager, unit: str) -> float:
    """Land a unit. Returns how many seconds it took."""
    began = time.perf_counter()
    house.land(table, unit, stager=stager)
    return time.perf_counter() - began


def main() -> None:
    given = dict(enumerate(sys.argv))
    landings, share, per_second = int(given.get(1, 2_000)), float(given.get(2, 0.1)), float(given.get(3, 10))
    with tempfile.TemporaryDirectory(prefix="lakehead-bench-") as name:
        folder = Path(name)
        settings = replace(spark_settings(), lakehouse=folder / "lakehouse")
        session = build_session(settings, say=print)
        house = Lakehouse(folder, session, settings.all_catalogs)
        create_table(house.catalog(), "t.often", SCHEMA)
        table = house.table("often")
        stager = LocalStager(session=session, table=table, ids=RandomIds(), read=rows_of, split=whole)
        upkeep = Upkeep(
            catalog=open_catalog(EMBEDDED, settings.all_catalogs[EMBEDDED]),
            ledger=StoreLedger(open_store(f"file://{folder}/records")),
            state=house.state,
            session=session.newSession(),
            owner=RandomIds().uuid(),
            clock=SystemClock(),
            random=system_random(),
            settings=UpkeepSettings(share=share, keep_for=timedelta(0)),
        )
        times: list[float] = []
        snapshots: list[int] = []
        reports: list[UpkeepReport] = []
        began = time.perf_counter()
        with upkeep:
            for number in range(landings):
                times.append(landed(house, table, stager, f"unit-{number}"))
                if report := asyncio.run(upkeep.after_landing(table)):
                    reports.append(report)
                    print(f"  {number + 1}: {told(report)}", flush=True)
                if number % EACH == EACH - 1:
                    print(f"{number + 1}: {median(times[-EACH:]) * 1000:.0f} ms a landing,", end=" ")
                    print(f"{max(times[-EACH:]) * 1000:.0f} at most; {grown(table)}", flush=True)
                snapshots.append(len(table.seen().metadata.snapshots))
                # By the clock, so that a landing that took longer is made up for.
                time.sleep(max(0.0, began + (number + 1) / per_second - time.perf_counter()) if per_second else 0)
            if report := upkeep.close():
                reports.append(report)
        took = time.perf_counter() - began
        half = landings // 2
        print(f"{landings / took:.1f} landings a second; at most {max(snapshots)} snapshots")
        # What gathers without end has twice as many in the second half, or more.
        figure("upkeep.snapshot_growth", max(snapshots[half:]) / max(snapshots[:half]), "<=", 1.5)
        print(f"{len(reports)} steps, {sum(report.error is not None for report in reports)} of them failed")
        figure("upkeep.share", sum(report.seconds for report in reports) / took, "<=", share * 1.2)
        # In turns with a new table, because a machine is not as fast at the end of minutes as it was at first.
        create_table(house.catalog(), "t.young", SCHEMA)
        young = house.table("young")
        beside = replace(stager, table=young)
        turns = [
            (landed(house, table, stager, f"old-{turn}"), landed(house, young, beside, f"young-{turn}"))
            for turn in range(EACH)
        ]
        old, new = (median(each) for each in zip(*turns, strict=True))
        print(f"{old * 1000:.0f} ms a landing in the old table, {new * 1000:.0f} in a new one")
        figure("upkeep.age_growth", old / new, "<=", 2)
        if set(house.units_in(table).values()) != {ROWS} or len(house.units_in(table)) != landings + EACH:
            sys.exit("Rows were lost or doubled.")
        house.close()
        stop_session(session)


if __name__ == "__main__":
    main()
