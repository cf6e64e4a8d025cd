"""`make bench-ops`: what it costs to operate tables. Parts: recon and telemetry; `python -m bench.ops recon` runs one.

`recon` compares 3,000,000 rows with their PostgreSQL source, in which three differences are planted, against `SELECT
count(*), sum(…)` on both sides in the same warm session. `telemetry` loads 20 small tables with every receiver and with
none, and counts the state's statements of 100 tables and of one.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.extract_lakehead import SECRET
from bench.extract_source import TABLE, Shop, shop
from bench.kept_results import KeptResults
from bench.ops_telemetry import telemetry
from lakehead.clock import SystemClock
from lakehead.extract.recon_report import ReconReport
from lakehead.ids import RandomIds, system_random
from lakehead.run.config.config_file import read_config
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.recon_tables import Reconciliation
from lakehead.run.run_command import select_tables
from lakehead.run.wiring import Wiring
from lakehead.spark.session import build_session, stop_session
from lakehead.telemetry.emitter import Emitter
from tests.pipeline import DAY, Pipeline
from tests.servers.postgres import PASSWORD, USER

ROWS = 3_000_000
TURNS = 3
PLANTED = (
    "DELETE FROM {t} WHERE id = 1000003",
    "INSERT INTO {t} SELECT * FROM {t} WHERE id = 1500001",
    "UPDATE {t} SET note = 'another' WHERE id = 2000001",
)
_SUMS = "SELECT count(*), sum(quantity), sum(price) FROM {t}"


def recon(results: KeptResults) -> None:
    """Compare 3,000,000 rows, and find a lost, a doubled and a changed one."""
    with tempfile.TemporaryDirectory() as place, shop(ROWS) as source:
        folder = Path(place)
        table: dict[str, Any] = {"schema": "public", "table": TABLE, "name": TABLE, "mode": "scd1"}
        table |= {"incremental_column": "updated_at", "primary_keys": ["id"]}
        origin = {"dialect": "postgresql", "url": source.plain_url, "user": USER, "password": {"env": SECRET}}
        pipeline = Pipeline(folder, folder / "lakehouse", origin, {**ENVIRONMENT, SECRET: PASSWORD}, tables=[table])
        wiring = Wiring(read_config(pipeline.config()), pipeline.environment)
        session = build_session(wiring.spark_settings)
        try:
            if pipeline.run(session).exit_code:
                raise OSError("The table could not be loaded.")
            target = f"lake.mirror.{TABLE}"
            for statement in PLANTED:
                session.sql(statement.format(t=target))
            turns, report = [], None
            for _ in range(TURNS + 1):
                counted = _seconds(lambda: _count(source, lambda: session.sql(_SUMS.format(t=target)).collect()))
                began = time.perf_counter()
                report = _compare(wiring, session)
                turns.append((counted, time.perf_counter() - began))
            turns = turns[1:]  # the first one warms up
            assert report is not None  # noqa: S101 - for the type checker
            found = sorted((each.kind.value, each.key) for each in report.keys)
            results.tell(
                f"{ROWS:,} rows: count and sums on both sides {statistics.median(one for one, _ in turns):.2f} s, "
                f"recon {statistics.median(two for _, two in turns):.2f} s; it found {found}"
            )
            results.judge("ops.recon_vs_count", statistics.median(two / one for one, two in turns), "<=", 3)
        finally:
            stop_session(session)


def _count(source: Shop, spark: Callable[[], object]) -> None:
    with source.connect() as connection:
        connection.execute(_SUMS.format(t=TABLE)).fetchall()
    spark()


def _compare(wiring: Wiring, session: SparkSession) -> ReconReport:
    clock, ids = SystemClock(), RandomIds()
    with wiring.open_state(clock, ids) as state:
        [report] = Reconciliation(
            wiring=wiring,
            session=session,
            state=state,
            emitter=Emitter(ids.uuid(), clock, ids),
            clock=clock,
            ids=ids,
            random=system_random(),
            today=DAY,
        ).run(select_tables(wiring.config, None), lambda _: None)
    return report


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


PARTS: dict[str, Callable[[KeptResults], None]] = {each.__name__: each for each in (recon, telemetry)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ops", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--keep", action="store_true", help="append machine, date, versions and figures to RESULTS.md")
    given = parser.parse_args()
    wanted = given.parts or [*PARTS]
    if unknown := set(wanted) - {*PARTS}:
        sys.exit(f"There is no part {unknown.pop()}. Parts: {', '.join(PARTS)}.")
    results = KeptResults("Operating tables", "`make bench-ops`.", ("pyspark", "pyarrow", "pyiceberg"))
    for name in wanted:
        PARTS[name](results)
    if given.keep:
        results.keep()


if __name__ == "__main__":
    main()
