"""`lakehead run`: load the tables of a configuration."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.log_level import LogLevel, with_log_level
from lakehead.run.metrics_server import MetricsFile, MetricsPort
from lakehead.run.stopping import report_interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakehead.run.config.pipeline_config import PipelineConfig
    from lakehead.run.config.table_config import TableConfig


def run(  # noqa: PLR0913 - typer's shape: one argument for each option
    file: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration, JSON or TOML.", show_default=False)
    ],
    *,
    only_tables: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Load only these tables: names separated by commas."),
    ] = None,
    load_date: Annotated[
        datetime | None,
        typer.Option(formats=["%Y-%m-%d"], help="The load date of rows and state.", show_default="today in UTC"),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="Load the tables again from the beginning. Readers see the old rows until the reload is complete.",
        ),
    ] = False,
    wm_lag_seconds: Annotated[
        int,
        typer.Option(
            min=0, help="Watermark lag of all tables; the larger of this and the table's own lag_seconds is used."
        ),
    ] = 0,
    heartbeat_seconds: Annotated[
        int | None,
        typer.Option(min=1, help="Seconds between two progress reports.", show_default="as configured"),
    ] = None,
    log_level: LogLevel = None,
    metrics_port: MetricsPort = None,
    metrics_file: MetricsFile = None,
) -> None:
    """Load the tables of a configuration into the lakehouse, each row exactly once.

    Tables run in parallel, and a failed table does not stop the others. After a crash the next run continues where the
    last one stopped. Exit codes: 0 all tables are done, 1 some failed, 2 the configuration is wrong, 130 after Ctrl-C,
    143 after SIGTERM.

    Example: lakehead run conf/shop.json --only-tables public.orders,public.cities
    """
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.resolved_config import ResolvedConfig  # noqa: PLC0415 - see above

    config = with_log_level(read_config(file), log_level)
    tables = select_tables(config, only_tables)
    resolved = ResolvedConfig(config, ENVIRONMENT)
    resolved.check()

    from lakehead.run.spark_startup import start_in_background  # noqa: PLC0415 - only for a valid configuration

    with report_interrupts(_print_error), start_in_background(resolved.spark_settings, _print_step) as session:
        # Imported while the JVM starts.
        from lakehead.run.run_tables import run_tables  # noqa: PLC0415 - see above

        code = run_tables(
            resolved,
            tables,
            session,
            load_date=load_date.date() if load_date else _today(),
            reload=reload,
            lag_seconds=wm_lag_seconds,
            heartbeat_seconds=heartbeat_seconds or config.runtime.heartbeat_seconds,
            config_file=file,
            metrics_port=metrics_port,
            metrics_file=metrics_file,
        )
    raise typer.Exit(code)


def _print_step(step: str) -> None:
    typer.echo(f"… {step}", err=True)


def _print_error(message: str) -> None:
    typer.echo(f"lakehead: {message}", err=True)


def select_tables(config: "PipelineConfig", only: str | None) -> "Sequence[TableConfig]":
    """Return the tables to load, in the configuration's order.

    Raises `Misconfigured` for an unknown name, or if there are none.
    """
    if not config.tables:
        raise Misconfigured(
            "The configuration has no tables to load. Add them under tables, or run its pipelines: "
            "lakehead consume CONFIG"
        )
    if only is None:
        return config.tables
    names = {name.strip() for name in only.split(",") if name.strip()}
    if unknown := sorted(names - {table.full_name for table in config.tables}):
        known = ", ".join(table.full_name for table in config.tables)
        raise Misconfigured(f"The configuration has no table {', '.join(unknown)}. It has: {known}.")
    if not names:
        raise Misconfigured("--only-tables names no table. Leave it out to load all.")
    return [table for table in config.tables if table.full_name in names]


def _today() -> date:
    return datetime.fromtimestamp(SystemClock().now_ns() / 1e9, UTC).date()
