"""What the parts of the demo share: commands that it runs, and what it prints."""

import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError
from lakehead.run.environment import without_archive

START_SECONDS = 60.0
FAILED = "The demo has failed: see the error of the command above."


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a `lakehead` command in the demo's folder, whose standard output can be read."""
    return subprocess.Popen(_command(arguments), cwd=folder, env=without_archive(), stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command


def lakehead(folder: Path, *arguments: str) -> None:
    """Run a `lakehead` command in the demo's folder. Raises `LakeheadError` if it fails."""
    if subprocess.run(_command(arguments), cwd=folder, env=without_archive(), check=False).returncode:  # noqa: S603 - our own command
        raise LakeheadError(FAILED)


def lakehead_output(folder: Path, *arguments: str) -> str:
    """Run a `lakehead` command in the demo's folder, and return what it prints. Raises `LakeheadError` if it fails."""
    done = subprocess.run(  # noqa: S603 - our own command
        _command(arguments), cwd=folder, env=without_archive(), stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise LakeheadError(FAILED)
    return done.stdout.strip()


@contextmanager
def serving(folder: Path, log: str, *arguments: str, until: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a `lakehead` command in the demo's folder beside others, from when its log has some words to the end.

    Raises `LakeheadError` if it ends before that, or does not say them within a minute.
    """
    file = folder / log
    with file.open("wb") as output:
        process = subprocess.Popen(_command(arguments), cwd=folder, env=without_archive(), stdout=output, stderr=output)  # noqa: S603 - our own command
    try:
        clock = SystemClock()
        ends = clock.monotonic() + START_SECONDS
        while until not in file.read_text(encoding="utf-8", errors="replace"):
            if process.poll() is not None or clock.monotonic() > ends:
                raise LakeheadError(f"The demo has failed: see {file}.")
            threading.Event().wait(0.05)
        yield process
    finally:
        process.terminate()
        process.wait()


def _command(arguments: Sequence[str]) -> list[str]:
    """Print a `lakehead` command, and return how to start it.

    None of them creates a class-data archive: a few runs would not gain what it costs.
    """
    say(f"$ lakehead {' '.join(arguments)}")
    return [sys.executable, "-c", "from lakehead.run.main import command; command()", *arguments]


def show_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    from lakehead.run.text_table import table_lines  # noqa: PLC0415 - loads rich, which other commands do not need

    for line in table_lines(headers, [tuple(map(str, row)) for row in rows]):
        say(f"   {line}")


def say(line: str) -> None:
    """Print a line."""
    typer.echo(line)
