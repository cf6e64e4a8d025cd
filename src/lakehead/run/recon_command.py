"""`lakehead recon`: compare tables with their sources."""

import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.queue_options import AsJson
from lakehead.run.stopping import report_interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakehead.extract.recon_report import ReconReport

DIFFERENT = 1
MISCONFIGURED = 2


def recon(
    file: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration, JSON or TOML.", show_default=False)
    ],
    table: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TABLE]...", help="Names of tables. Default: all.", show_default=False),
    ] = None,
    *,
    max_keys: Annotated[int, typer.Option(min=0, help="How many differing keys of a table are listed.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Compare tables with their sources: counts, sums, and hashes of rows. Nothing is written to tables.

    The source is asked for the rows up to the table's watermark; rows written after it are no differences. Buckets of
    keys whose hashes differ are compared key by key. The table's reconciliation says what is compared. A table that
    cannot be compared does not stop the others. Exit codes: 0 all are equal, 1 something differs or could not be
    compared, 2 the configuration is wrong, 130 after Ctrl-C, 143 after SIGTERM.

    Example: lakehead recon conf/shop.json public.orders --json
    """
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.resolved_config import ResolvedConfig  # noqa: PLC0415 - see above
    from lakehead.run.run_command import select_tables  # noqa: PLC0415 - see above

    config = read_config(file)
    tables = select_tables(config, ",".join(table) if table else None)
    resolved = ResolvedConfig(config, ENVIRONMENT)
    resolved.check()

    from lakehead.run.spark_startup import start_in_background  # noqa: PLC0415 - only for a valid configuration

    with (
        report_interrupts(_tell),
        start_in_background(resolved.spark_settings, _tell) as session,
        ExitStack() as opened,
    ):
        # Imported while the JVM starts.
        from lakehead.extract.recon_report import Outcome  # noqa: PLC0415 - see above
        from lakehead.run.log_sinks import open_log  # noqa: PLC0415 - see above
        from lakehead.run.observe.state_events import StateEventSubscriber  # noqa: PLC0415 - see above
        from lakehead.run.observe.summary import delivery_warnings  # noqa: PLC0415 - see above
        from lakehead.run.recon_tables import Reconciliation, document  # noqa: PLC0415 - see above
        from lakehead.run.wiring import Wiring  # noqa: PLC0415 - see above
        from lakehead.state.buffered import BufferedState  # noqa: PLC0415 - see above
        from lakehead.telemetry.emitter import Emitter  # noqa: PLC0415 - see above

        clock, ids, logging = SystemClock(), RandomIds(), config.runtime.logging
        wiring, run = Wiring(config, ENVIRONMENT), ids.uuid()
        state = opened.enter_context(wiring.open_state(clock, ids))
        buffered = opened.enter_context(BufferedState(state, clock))
        log = opened.enter_context(open_log(logging, run, clock, ENVIRONMENT))
        today = datetime.fromtimestamp(clock.now_ns() / 1e9, UTC).date()
        emitter = Emitter(run, clock, ids, load_date=today)
        emitter.subscribe_slow(StateEventSubscriber(buffered), "the state")
        emitter.subscribe_slow(log, "the log")
        opened.enter_context(emitter)
        reports = Reconciliation(
            wiring=wiring,
            session=session(),
            state=state,
            emitter=emitter,
            clock=clock,
            ids=ids,
            random=system_random(),
            today=today,
            max_keys=max_keys,
            config_file=file,
        ).run(tables, _tell)
        if as_json:
            typer.echo(document(reports))
        else:
            print_reports(reports)
        emitter.close()
        for warning in delivery_warnings(emitter):
            typer.echo(f"lakehead: {warning}", err=True)
    if any(report.outcome is Outcome.MISCONFIGURED for report in reports):
        raise typer.Exit(MISCONFIGURED)
    if not all(report.is_equal for report in reports):
        raise typer.Exit(DIFFERENT)


def print_reports(reports: "Sequence[ReconReport]") -> None:
    """Print reports for people."""
    from rich.console import Console  # noqa: PLC0415 - only where it is printed
    from rich.table import Table  # noqa: PLC0415 - see above

    from lakehead.run.observe.event_text import one_line  # noqa: PLC0415 - see above

    width = None if sys.stdout.isatty() else 200
    console = Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False, soft_wrap=True)
    shown = Table("table", "outcome", "rows in source", "rows in target", "differences", "seconds")
    for report in reports:
        found = [f"{number:,} {kind}" for kind, number in report.differences.items()]
        found += [f"{each.what} of {each.column}" for each in report.numbers]
        rows = ["" if number is None else f"{number:,}" for number in (report.source_rows, report.target_rows)]
        shown.add_row(report.table, report.outcome.replace("_", " "), *rows, ", ".join(found), f"{report.seconds:,.1f}")
    console.print(shown)
    for report in reports:
        console.print(f"\n{report.table}: compared {report.point}" if report.point else f"\n{report.table}:")
        if report.pending:
            console.print(f"  {report.pending:,} rows were written in the source after that; they are no differences.")
        for each in report.keys:
            console.print(f"  {each.kind}: key {one_line(each.key)} (bucket {each.bucket})")
        if (more := sum(report.differences.values()) - len(report.keys)) > 0:
            console.print(f"  and {more:,} more keys")
        if report.not_opened:
            console.print(f"  {report.not_opened:,} more buckets differ and were not compared key by key")
        for number in report.numbers:
            console.print(f"  {number.what} of {number.column}: source {number.source}, target {number.target}")
        for column, reason in report.skipped.items():
            console.print(f"  column {one_line(column)} was not compared: {reason}")
        for note in report.notes:
            console.print(f"  {note}")


def _tell(message: str) -> None:
    typer.echo(f"… {message}", err=True)
