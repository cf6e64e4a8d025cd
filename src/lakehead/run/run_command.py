"""`lakehead run`: load the tables of a configuration."""

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.stopping import told_who_stops_it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakehead.run.config.config import Config
    from lakehead.run.config.tables import Table


def run(
    file: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration, JSON or TOML.", show_default=False)
    ],
    *,
    only_tables: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Load only these tables, by their names, with commas between them."),
    ] = None,
    load_date: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"], help="The day that rows and day status belong to.", show_default="today in UTC"
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload", help="Load the tables anew from their beginning. Readers see the old rows until all are there."
        ),
    ] = False,
    wm_lag_seconds: Annotated[
        int, typer.Option(min=0, help="Watermark lag of all tables; the larger of it and a table's own counts.")
    ] = 0,
    heartbeat_seconds: Annotated[
        int | None,
        typer.Option(min=1, help="Seconds between two reports of how the run stands.", show_default="as configured"),
    ] = None,
) -> None:
    """Load the tables of a configuration into the lakehouse, each row exactly once.

    Tables run side by side; one that fails stops no other. A run that was killed is taken up by the next one where it
    was. Exit codes: 0 all tables are done, 1 some failed, 2 the configuration is wrong, 130 after Ctrl-C, 143 after
    SIGTERM.

    Example: lakehead run conf/shop.json --only-tables public.orders,public.cities
    """
    # Not at the top: what a run needs takes longer to load than the other commands should wait.
    from lakehead.run.config.reading import read_config  # noqa: PLC0415 - see above
    from lakehead.run.revealed import Revealed  # noqa: PLC0415 - see above

    config = read_config(file)
    tables = selected(config, only_tables)
    revealed = Revealed(config, ENVIRONMENT)
    revealed.check()

    from lakehead.run.starting import starting  # noqa: PLC0415 - only now that the configuration is known to be right

    with told_who_stops_it(_say_at_the_end), starting(revealed.spark_settings, _say) as session:
        # While the JVM starts.
        from lakehead.run.table_run import run_tables  # noqa: PLC0415 - see above

        code = run_tables(
            revealed,
            tables,
            session,
            load_date=load_date.date() if load_date else _today(),
            reload=reload,
            lag_seconds=wm_lag_seconds,
            heartbeat_seconds=heartbeat_seconds or config.runtime.heartbeat_seconds,
            config_file=file,
        )
    raise typer.Exit(code)


def _say(what: str) -> None:
    typer.echo(f"… {what}", err=True)


def _say_at_the_end(what: str) -> None:
    typer.echo(f"lakehead: {what}", err=True)


def selected(config: "Config", only: str | None) -> "Sequence[Table]":
    """The tables to load, in the configuration's order. Raises `Misconfigured` for a name that none of them has."""
    if only is None:
        return config.tables
    wanted = {name.strip() for name in only.split(",") if name.strip()}
    if unknown := sorted(wanted - {table.full_name for table in config.tables}):
        known = ", ".join(table.full_name for table in config.tables)
        raise Misconfigured(f"There is no table {', '.join(unknown)} in the configuration. It has: {known}.")
    if not wanted:
        raise Misconfigured("--only-tables names no table. Leave it out to load all.")
    return [table for table in config.tables if table.full_name in wanted]


def _today() -> date:
    return datetime.fromtimestamp(SystemClock().now_ns() / 1e9, UTC).date()
