"""`lakehead history`: what the state remembers of runs and tables."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.queue_options import AsJson

if TYPE_CHECKING:
    from lakehead.run.config.pipeline_config import PipelineConfig
    from lakehead.run.run_history import Load
    from lakehead.run.run_progress import Runs
    from lakehead.state.state import State

SQLITE = "sqlite:///"

EARLIER_RUNS = 20
"""So many runs before the shown ones are read too, to compare with."""


def history(
    file: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration, JSON or TOML.", show_default=False)
    ],
    *,
    table: Annotated[str | None, typer.Option(metavar="NAME", help="Only this table, one line for each load.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only runs since then: a date (UTC), or an age such as 12h or 7d."),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only runs and loads that failed or did not finish.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many runs, the newest ones.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the runs of a configuration's tables from its state: rows, durations, watermarks, growth, repeated failures.

    Growth compares the rows of a load with the median of the ten before it. Failures are grouped by their stack hash. A
    run without an end is running, or was killed. Needs no Java. Exit codes: 0 shown, 1 the state cannot be reached, 2
    the configuration or an option is wrong.

    Example: lakehead history conf/shop.json --table public.orders --since 7d
    """
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.run_history import KINDS, loads_of, runs_of  # noqa: PLC0415 - see above

    begin = None if since is None else _time_of(since)
    config = read_config(file)
    with _open_state(config) as state:
        shown = state.history.newest_runs(since=begin, limit=limit)
        compared = [*state.history.newest_runs(limit=limit + EARLIER_RUNS), *shown]
        records = state.history.events_of_runs(compared if shown else (), KINDS)
    loads = [load for load in loads_of(runs_of(records).all()) if load.run in shown]
    runs = runs_of(record for record in records if record.run in shown)
    if table is not None:
        loads = [load for load in loads if load.table == table]
        if not loads and table not in {each.full_name for each in config.tables}:
            raise Misconfigured(f"Neither the configuration nor these runs have a table {table}. Check its name.")
    if failed:
        loads = [load for load in loads if load.outcome in {"failed", "not finished"}]
    _print(runs, loads, table=table, failed=failed, as_json=as_json)


def _print(runs: "Runs", loads: "list[Load]", *, table: str | None, failed: bool, as_json: bool) -> None:
    from lakehead.run.history_view import history_json, history_lines  # noqa: PLC0415 - loads rich
    from lakehead.run.queue_output import print_json  # noqa: PLC0415 - see above

    if as_json:
        print_json(history_json(runs, loads, table=table, failed=failed))
        return
    for line in history_lines(runs, loads, table=table, failed=failed, colour=sys.stdout.isatty()):
        typer.echo(line)


def _open_state(config: "PipelineConfig") -> "State":
    """Open the state. Raises `Misconfigured` for a SQLite file that is missing: looking at it must not create it."""
    from lakehead.run.resolved_config import ResolvedConfig  # noqa: PLC0415 - slow to load
    from lakehead.state.opening import StateSettings, open_state  # noqa: PLC0415 - slow to load

    url = config.runtime.state.url
    if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).exists():
        raise Misconfigured(f"There is no state {url} yet. The first run creates it: lakehead run CONFIG")
    settings = StateSettings(password=ResolvedConfig(config, ENVIRONMENT).state_password)
    return open_state(url, SystemClock(), RandomIds(), settings=settings)


def _time_of(text: str) -> datetime:
    from lakehead.run.table_options import parse_age  # noqa: PLC0415 - loads much

    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        now = datetime.fromtimestamp(SystemClock().now_ns() / 1e9, UTC)
        try:
            return now - parse_age(text)
        except OverflowError:
            return datetime(1970, 1, 1, tzinfo=UTC)
        except typer.BadParameter:
            raise Misconfigured("--since must be a date such as 2026-01-31, or an age such as 12h or 7d.") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at
