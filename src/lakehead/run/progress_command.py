"""`lakehead progress`: what the logs of runs say, live or as a summary."""

import sys
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.run.queue_options import AsJson

if TYPE_CHECKING:
    from lakehead.run.run_progress import Runs

INTERRUPTED = 130


def progress(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG…", help="Logs of runs (runtime.logging.sink): files, or folders of them.", show_default=False
        ),
    ],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show a live view, and follow the logs until Ctrl-C.")
    ] = False,
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done",
            help="With --follow: end when every run has ended or is silent; exit code 1 if not all is done.",
        ),
    ] = False,
    silent_after: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            metavar="SECONDS",
            help="Seconds without an event after which a run is taken for killed.",
            show_default="three heartbeats",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how far runs are, from the logs that they write, and which failures repeat.

    A run that has said nothing for three heartbeats is shown with "no heartbeat since". Failures are grouped by their
    stack hash: the same error at the same place. Logs may be rotated, cut off or still growing; lines that are no
    events are counted. Needs no Java, no configuration and no state.

    Exit codes: 0 shown, 1 with --until-done if a run has failed or is silent, 2 a log cannot be read, 130 after Ctrl-C.

    Example: lakehead progress logs/shop.jsonl --follow
    """
    if as_json and follow:
        raise Misconfigured("--json is for a summary. Leave out --follow.")
    if until_done and not follow:
        raise Misconfigured("--until-done is for --follow. Add it.")
    # Imported here: other commands should not wait for it.
    from lakehead.run.progress_follow import follow_logs, now_in_utc  # noqa: PLC0415 - see above
    from lakehead.run.progress_log import Logs  # noqa: PLC0415 - see above
    from lakehead.run.run_progress import Runs  # noqa: PLC0415 - see above

    silence = None if silent_after is None else timedelta(seconds=silent_after)
    runs, code = Runs(), 0
    with closing(Logs(logs)) as files:
        runs.add_all(files.read())
        if follow:
            try:
                follow_logs(files, runs, silence=silence, until_done=until_done, stream=sys.stdout)
            except KeyboardInterrupt:
                code = INTERRUPTED
        runs.add_all(files.read_rest())
    now = now_in_utc(SystemClock())
    _print(runs, now, garbage=files.garbage, silence=silence, as_json=as_json)
    if until_done and not code and any(run.state(now, silence) != "done" for run in runs.all()):
        code = 1
    raise typer.Exit(code)


def _print(runs: "Runs", now: datetime, *, garbage: int, silence: timedelta | None, as_json: bool) -> None:
    from lakehead.run.progress_view import summary_json, summary_lines  # noqa: PLC0415 - see above
    from lakehead.run.queue_output import print_json  # noqa: PLC0415 - see above

    if as_json:
        print_json(summary_json(runs, now, garbage=garbage, silence=silence))
        return
    for line in summary_lines(runs, now, colour=sys.stdout.isatty(), garbage=garbage, silence=silence):
        typer.echo(line)
