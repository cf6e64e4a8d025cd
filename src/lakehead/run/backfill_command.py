"""`lakehead consume backfill`: land the files of a folder through a pipeline."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.errors import Misconfigured
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.select_pipelines import select_pipelines

if TYPE_CHECKING:
    from lakehead.run.config.consume_config import ConsumeConfig

TIMES = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S"]


def backfill(
    file: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration, JSON or TOML.", show_default=False)
    ],
    *,
    pipeline: Annotated[
        str, typer.Option(metavar="NAME", help="The pipeline whose tables the files land in.", show_default=False)
    ],
    prefix: Annotated[
        str,
        typer.Option(
            metavar="URL", help="The folder: a path, or a URL such as s3://bucket/prefix.", show_default=False
        ),
    ],
    modified_after: Annotated[
        datetime | None,
        typer.Option(formats=TIMES, help="Only files that were modified after this time, in UTC.", show_default="all"),
    ] = None,
) -> None:
    """Land the files of a folder through a pipeline. What has landed, however long ago, does not land again.

    The folder is listed, and its files go to the tables as if a message announced each of them. The pipeline itself
    may run meanwhile, here or elsewhere. It ends when everything has landed; after a crash, run it again. Exit codes:
    0 everything has landed, 1 some files could not be landed or it was stopped, 2 the configuration is wrong.

    Example: lakehead consume backfill conf/events.toml --pipeline clicks --prefix s3://events/2024
    """
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.resolved_config import ResolvedConfig  # noqa: PLC0415 - see above

    config = read_config(file)
    names = select_pipelines(config, [pipeline])
    check_identity(pipeline, config.pipelines[pipeline])
    resolved = ResolvedConfig(config, ENVIRONMENT)
    resolved.check()

    from lakehead.run.spark_startup import start_in_background  # noqa: PLC0415 - only for a valid configuration

    with start_in_background(resolved.spark_settings, lambda step: typer.echo(f"… {step}", err=True)) as session:
        # Imported while the JVM starts.
        from lakehead.run.consume_pipelines import run_pipelines  # noqa: PLC0415 - see above
        from lakehead.run.consume_wiring import Backfill  # noqa: PLC0415 - see above

        after = modified_after.replace(tzinfo=UTC) if modified_after else None
        code = run_pipelines(
            resolved,
            names,
            session,
            config_file=file,
            until_empty=True,
            backfill=Backfill(url=prefix, modified_after=after),
        )
    raise typer.Exit(code)


def check_identity(name: str, config: "ConsumeConfig") -> None:
    """Raise `Misconfigured` if the units of a pipeline have something in their ids that a listing does not tell."""
    if config.identity == "uri_and_version":
        raise Misconfigured(
            f"The pipeline {name} tells objects apart by their versions, which a listing does not have. A backfill "
            "needs identity uri or uri_and_etag."
        )
    if config.messages == "accepted":
        raise Misconfigured(
            f"The pipeline {name} lands accepted batches, which only their queue names: a listing of frames does not "
            "tell which of them were accepted. Let a gateway or the reconciler put them on the queue again."
        )
