"""The `lakehead` command."""

import os
import sys
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from lakehead.errors import LakeheadError, Misconfigured
from lakehead.run import config_command, maintain, queue, state
from lakehead.run.demo import demo
from lakehead.run.doctor import doctor
from lakehead.run.file_errors import file_sentence
from lakehead.run.run_command import run
from lakehead.storage.keys import InvalidKey

SOME_WORK_FAILED = 1
INPUT_IS_WRONG = 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer's shape
    if wanted:
        typer.echo(f"lakehead {version('lakehead')}")
        raise typer.Exit


@app.callback()
def lakehead(
    *,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Land data in an Iceberg lakehouse exactly once.

    Exit codes: 0 done, 1 some work failed, 2 the input or the configuration is wrong.
    """


app.command()(run)
app.command()(demo)
app.command()(doctor)
app.add_typer(config_command.app, name="config")
app.add_typer(maintain.app, name="maintain")
app.add_typer(queue.app, name="queue")
app.add_typer(state.app, name="state")


def command() -> NoReturn:
    """The command as a process of its own: when all is done, it ends."""
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # whoever read it may be gone
            stream.flush()
    # Not by Python's own way out: threads of obstore that have just answered may abort the process on it.
    os._exit(code if isinstance(code, int) else SOME_WORK_FAILED if code else 0)


def main() -> None:
    """Run the command line; an error of ours, or of a disk or folder, is one sentence, never a traceback."""
    try:
        app()
    except LakeheadError as error:
        typer.echo(f"lakehead: {error}", err=True)
        sys.exit(INPUT_IS_WRONG if isinstance(error, Misconfigured | InvalidKey) else SOME_WORK_FAILED)
    except OSError as error:
        sentence = file_sentence(error)
        if sentence is None:
            raise
        typer.echo(f"lakehead: {sentence}", err=True)
        sys.exit(SOME_WORK_FAILED)
