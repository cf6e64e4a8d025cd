"""One maintenance run: opens the state, starts Spark if it is needed, maintains the tables, and prints JSON."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import typer
from pyspark.sql import SparkSession

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.run.config.table_config import TableConfig
from lakehead.run.maintenance_mode import Maintenance, MaintenanceMode
from lakehead.run.resolved_config import ResolvedConfig
from lakehead.run.wiring import Wiring
from lakehead.spark.session import build_session, stop_session
from lakehead.spark.settings import SparkSettings


def maintain_tables(
    resolved: ResolvedConfig, tables: Sequence[TableConfig], mode: MaintenanceMode, *, today: date, config_file: Path
) -> int:
    """Maintain the tables, and print the results as JSON on stdout. Returns the exit code."""
    clock, ids = SystemClock(), RandomIds()
    wiring = Wiring(resolved.config, resolved.environment)
    with wiring.open_state(clock, ids) as state, lazy_session(resolved.spark_settings, _print_step) as session:
        results, done = Maintenance(
            wiring=wiring,
            state=state,
            session=session,
            clock=clock,
            ids=ids,
            random=system_random(),
            today=today,
            run_id=ids.uuid(),
            config_file=config_file,
            waiting=_print_step,
        ).run(tables, mode)
    typer.echo(json.dumps(results, indent=2))
    return 0 if done else 1


@contextmanager
def lazy_session(settings: SparkSettings, say: Callable[[str], None]) -> Iterator[Callable[[], SparkSession]]:
    """A function that starts Spark when it is first called. The session is stopped at the end of the `with`."""
    started: list[SparkSession] = []

    def session() -> SparkSession:
        if not started:
            started.append(build_session(settings, say=say))
        return started[0]

    try:
        yield session
    finally:
        for each in started:
            stop_session(each)


def _print_step(step: str) -> None:
    typer.echo(f"… {step}", err=True)
