"""`lakehead run`: load the tables of a configuration."""

from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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


class PlanFormat(StrEnum):
    """How `--dump-orchestration-plan` writes the plan."""

    JSON = "json"
    AIRFLOW = "airflow"
    CRON = "cron"
    SYSTEMD = "systemd"


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
    dump_orchestration_plan: Annotated[
        bool,
        typer.Option(
            "--dump-orchestration-plan",
            help="Print a plan for external schedulers instead of loading: tables, order, commands, schedules. "
            "Nothing is started or connected to.",
        ),
    ] = False,
    plan_format: Annotated[
        PlanFormat, typer.Option(help="The format of the plan: systemd writes units into --plan-folder.")
    ] = PlanFormat.JSON,
    plan_folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The folder for systemd's units.", show_default=False)
    ] = None,
    maintenance_mode: Annotated[
        Literal["dry-run", "apply", "rebuild-from-raw"] | None,
        typer.Option(
            help="Maintain the tables instead of loading them, and print the results as JSON: show what would be done, "
            "do it, or rebuild mirrors from raw.",
        ),
    ] = None,
    log_level: LogLevel = None,
    metrics_port: MetricsPort = None,
    metrics_file: MetricsFile = None,
) -> None:
    """Load the tables of a configuration into the lakehouse, each row exactly once.

    Tables run in parallel, and a failed table does not stop the others. After a crash the next run continues where the
    last one stopped. Exit codes: 0 all tables are done, 1 some failed, 2 the configuration is wrong, 130 after Ctrl-C,
    143 after SIGTERM.

    With --maintenance-mode no table is loaded, and only JSON is printed on stdout.

    Example: lakehead run conf/shop.json --only-tables public.orders,public.cities

    Example: lakehead run conf/shop.json --dump-orchestration-plan --plan-format cron

    Example: lakehead run conf/shop.json --maintenance-mode dry-run
    """
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.resolved_config import ResolvedConfig  # noqa: PLC0415 - see above

    config = with_log_level(read_config(file), log_level)
    tables = select_tables(config, only_tables)
    if dump_orchestration_plan:
        from lakehead.run.orchestration_command import print_plan  # noqa: PLC0415 - only for a plan

        if reload or load_date is not None:
            raise Misconfigured("A plan is for every day: leave out --reload and --load-date.")
        if maintenance_mode is not None:
            raise Misconfigured("A plan is for loading tables: leave out --maintenance-mode.")
        if metrics_port is not None or metrics_file is not None:
            raise Misconfigured(
                "The commands of a plan may run at the same time, and cannot share a port or a file of metrics: leave "
                "out --metrics-port and --metrics-file."
            )
        options = [f"--wm-lag-seconds={wm_lag_seconds}"] if wm_lag_seconds else []
        options += [f"--heartbeat-seconds={heartbeat_seconds}"] if heartbeat_seconds else []
        options += [f"--log-level={log_level}"] if log_level else []
        print_plan(config, tables, file, options=options, form=plan_format, folder=plan_folder)
        return
    if plan_format is not PlanFormat.JSON or plan_folder is not None:
        raise Misconfigured("--plan-format and --plan-folder are for --dump-orchestration-plan. Add it.")
    resolved = ResolvedConfig(config, ENVIRONMENT)
    resolved.check()

    if maintenance_mode is not None:
        if reload:
            raise Misconfigured("--maintenance-mode loads nothing. Leave out --reload.")
        from lakehead.run.maintain_tables import maintain_tables  # noqa: PLC0415 - see above
        from lakehead.run.maintenance_mode import MaintenanceMode  # noqa: PLC0415 - see above

        today = load_date.date() if load_date else _today()
        mode = MaintenanceMode(maintenance_mode)
        with report_interrupts(_print_error):
            code = maintain_tables(resolved, tables, mode, today=today, config_file=file)
        raise typer.Exit(code)

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
