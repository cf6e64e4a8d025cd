"""The `lakehead` command."""

import os
import sys
from contextlib import suppress
from importlib.metadata import version
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from lakehead.errors import LakeheadError, Misconfigured
from lakehead.run import (
    agent_command,
    config_command,
    conflicts_command,
    consume_command,
    gateway_command,
    maintain_command,
    policy_command,
    queue,
    repairs_command,
    state_command,
    tables_command,
)
from lakehead.run.audit_command import audit
from lakehead.run.dead_letters_command import dead_letter_commands
from lakehead.run.demo import demo
from lakehead.run.doctor import doctor
from lakehead.run.erase_command import erase
from lakehead.run.file_errors import file_error_message
from lakehead.run.gc_command import gc
from lakehead.run.history_command import history
from lakehead.run.open_consumed_tables import open_consumed_tables
from lakehead.run.progress_command import progress
from lakehead.run.recon_command import recon
from lakehead.run.reconcile_command import reconcile
from lakehead.run.run_command import run
from lakehead.run.send_command import send
from lakehead.storage.object_keys import InvalidKey

SOME_WORK_FAILED = 1
INPUT_IS_WRONG = 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


def _print_version(requested: bool) -> None:  # noqa: FBT001 - typer's shape
    if requested:
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
app.command()(recon)
app.command()(demo)
app.command()(doctor)
app.command()(erase)
app.command()(reconcile)
app.command()(gc)
app.command()(send)
app.command()(audit)
app.command()(progress)
app.command()(history)
app.add_typer(agent_command.app, name="agent")
app.add_typer(config_command.app, name="config")
app.add_typer(conflicts_command.app, name="conflicts")
app.add_typer(consume_command.app, name="consume")
app.add_typer(dead_letter_commands(open_consumed_tables), name="dead-letters")
app.add_typer(gateway_command.app, name="gateway")
app.add_typer(maintain_command.app, name="maintain")
app.add_typer(policy_command.app, name="policy")
app.add_typer(queue.app, name="queue")
app.add_typer(repairs_command.app, name="repairs")
app.add_typer(state_command.app, name="state")
app.add_typer(tables_command.app, name="tables")


def command() -> NoReturn:
    """Entry point of the `lakehead` executable: runs the command line and ends the process."""
    code: object = 0
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, TextIOWrapper):  # names and errors may have characters that the encoding lacks
            output.reconfigure(errors="backslashreplace")
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the reader may be gone
            stream.flush()
    # Skips interpreter shutdown, in which threads of obstore may abort the process.
    os._exit(code if isinstance(code, int) else SOME_WORK_FAILED if code else 0)


def main() -> None:
    """Run the command line. A `LakeheadError` or a file system error is printed as one message, without a traceback."""
    try:
        app()
    except LakeheadError as error:
        typer.echo(f"lakehead: {error}", err=True)
        sys.exit(INPUT_IS_WRONG if isinstance(error, Misconfigured | InvalidKey) else SOME_WORK_FAILED)
    except OSError as error:
        message = file_error_message(error)
        if message is None:
            raise
        typer.echo(f"lakehead: {message}", err=True)
        sys.exit(SOME_WORK_FAILED)
