"""`lakehead config`: what a configuration may say, and whether one is right."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True, help="Tell what a configuration file may say, and whether one is right. No Java is needed."
)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a configuration file, for editors: every key, its default, its unit and its meaning.

    Example: lakehead config schema > lakehead.schema.json
    """
    # Not at the top: the models take longer to load than the other commands should wait.
    from lakehead.run.config.config import json_schema  # noqa: PLC0415 - see above

    typer.echo(json.dumps(json_schema(), indent=2))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration, JSON or TOML.", show_default=False)],
) -> None:
    """Check a configuration whole, without Spark and without touching what it names.

    All that is wrong is told at once, each with its place in the file and what would be right, and the exit code is 2.
    Secrets are not looked up.

    Example: lakehead config check conf/shop.json
    """
    from lakehead.run.config.reading import read_config  # noqa: PLC0415 - see above

    config = read_config(file)
    modes = Counter(table.mode for table in config.tables)
    kinds = ", ".join(f"{count} {mode}" for mode, count in sorted(modes.items()))
    typer.echo(
        f"ok: {_counted(len(config.tables), 'table')} ({kinds}), {_counted(len(config.sources), 'source')}, "
        f"{_counted(len(config.sinks), 'sink')}"
    )


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
