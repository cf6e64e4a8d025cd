"""`lakehead consume`: land what queues announce."""

from pathlib import Path
from typing import Annotated

import typer

from lakehead.run.backfill_command import backfill
from lakehead.run.config_or_command import DEFAULT, ConfigOrCommand
from lakehead.run.consume_files import files_command
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.metrics_server import MetricsPort
from lakehead.run.open_consumed_tables import open_consumed_tables
from lakehead.run.select_pipelines import select_pipelines

app = typer.Typer(
    cls=ConfigOrCommand,
    no_args_is_help=True,
    help="Land what queues announce: `lakehead consume CONFIG` runs its pipelines.",
)
app.command()(backfill)
app.command("files")(files_command(open_consumed_tables))


@app.command(DEFAULT)
def run(
    file: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration, JSON or TOML.", show_default=False)
    ],
    *,
    pipeline: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Run only this pipeline; give it again for others.", show_default="all"),
    ] = None,
    until_empty: Annotated[
        bool,
        typer.Option("--until-empty", help="End when the queues are empty and everything has landed."),
    ] = False,
    metrics_port: MetricsPort = None,
) -> None:
    """Consume the queues of a configuration into Iceberg tables, each object exactly once.

    Runs until it is stopped. On Ctrl-C or SIGTERM a landing under way is given a few seconds, and what was received is
    given back at once. Any number of processes may consume the same queue. Exit codes: 0 stopped or done, 1 a pipeline
    has failed, or was stopped before its queue was empty with --until-empty, 2 the configuration is wrong.

    Example: lakehead consume conf/events.toml --pipeline clicks --metrics-port 9108
    """
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.resolved_config import ResolvedConfig  # noqa: PLC0415 - see above

    config = read_config(file)
    names = select_pipelines(config, pipeline)
    resolved = ResolvedConfig(config, ENVIRONMENT)
    resolved.check()

    from lakehead.run.spark_startup import start_in_background  # noqa: PLC0415 - only for a valid configuration

    with start_in_background(resolved.spark_settings, lambda step: typer.echo(f"… {step}", err=True)) as session:
        # Imported while the JVM starts.
        from lakehead.run.consume_pipelines import run_pipelines  # noqa: PLC0415 - see above

        code = run_pipelines(
            resolved, names, session, config_file=file, until_empty=until_empty, metrics_port=metrics_port
        )
    raise typer.Exit(code)
