"""`lakehead config`: check a configuration file, or print its JSON Schema."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Check a configuration file, or print its JSON Schema. Needs no Java.")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a configuration file, for editors: every key, its default, its unit and its meaning.

    Example: lakehead config schema > lakehead.schema.json
    """
    # Imported here: the models are slow to load, and other commands should not wait for them.
    from lakehead.run.config.pipeline_config import json_schema  # noqa: PLC0415 - see above

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration, JSON or TOML.", show_default=False)],
) -> None:
    """Check a configuration file without starting Spark or connecting to anything.

    Prints every problem with its place in the file and how to fix it, and exits with code 2 if there is one. Secrets
    are not looked up.

    Example: lakehead config check conf/shop.json
    """
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above

    config = read_config(file)
    parts = [_counted(len(config.sinks), "sink")]
    if config.gateway:
        parts = [_counted(1, "gateway"), *parts]
    if config.agent:
        parts = [_counted(1, "agent"), *parts]
    if config.pipelines:
        parts = [_counted(len(config.pipelines), "pipeline"), *parts]
    if config.tables:
        modes = Counter(table.mode for table in config.tables)
        kinds = ", ".join(f"{count} {mode}" for mode, count in sorted(modes.items()))
        parts = [f"{_counted(len(config.tables), 'table')} ({kinds})", _counted(len(config.sources), "source"), *parts]
    typer.echo(f"ok: {', '.join(parts)}")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
