"""`lakehead audit`: compare what was accepted with everything that should follow from it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.errors import Misconfigured
from lakehead.run.gateway_command import ConfigFile, open_authority
from lakehead.run.observe.event_text import counted
from lakehead.run.queue_options import AsJson
from lakehead.run.queue_output import duration, print_json, printable

if TYPE_CHECKING:
    from lakehead.clock import Clock
    from lakehead.maintain.acceptance_audit_report import AuditReport

FOUND_SOMETHING = 1
GRACE = 900.0
TOLD_EVERY = 5.0
"""Seconds between two lines about the progress."""

MOST_SHOWN = 20
"""Findings of one kind that are shown to people. All that are kept are in the JSON document."""


def audit(
    file: ConfigFile,
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read every frame, index entry, and the rows of the tables.")
    ] = False,
    agent: Annotated[
        list[str] | None, typer.Option("--agent", metavar="NAME", help="Only this agent. Repeat it for several.")
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", metavar="SECONDS", min=0, help="How long after acceptance index entries and landings may lack."
        ),
    ] = GRACE,
    as_json: AsJson = False,
) -> None:
    """Compare accepted batches with indexes, frames, landings and tables. Nothing is written.

    All keys of accepted/v1/ are read. Told are counts, ages, what is missing, doubled or damaged, and gaps in sequence
    numbers. Landings are compared if the configuration has pipelines that land what its gateway accepts. Exit codes: 0
    all is well, 1 something is missing, doubled or damaged, 2 the configuration is wrong.

    Example: lakehead audit conf/gateway.toml --deep --agent web-1
    """
    gateway = open_authority(file)
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.maintain.acceptance_audit import AuditSettings  # noqa: PLC0415 - see above
    from lakehead.run.audit_wiring import open_audit  # noqa: PLC0415 - see above
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.wire.batch_identity import check_id  # noqa: PLC0415 - see above
    from lakehead.wire.errors import InvalidIdentity  # noqa: PLC0415 - see above

    try:
        for name in agent or ():
            check_id("agent_id", name)
    except InvalidIdentity as error:
        raise Misconfigured(f"--agent: {error}") from error
    settings = AuditSettings(deep=deep, agents=tuple(agent or ()), grace_seconds=grace)
    with open_audit(read_config(file), gateway, settings, told_now_and_then(gateway.clock)) as opened:
        report = asyncio.run(opened.run())
    if as_json:
        print_json(report.document())
    else:
        print_report(report)
    if not report.is_well:
        raise typer.Exit(FOUND_SOMETHING)


def told_now_and_then(clock: "Clock") -> Callable[[str, "AuditReport"], None]:
    """Return what tells people how far an audit is, every few seconds, on standard error."""
    last = clock.monotonic()

    def tell(doing: str, report: "AuditReport") -> None:
        nonlocal last
        if (now := clock.monotonic()) - last >= TOLD_EVERY:
            last = now
            typer.echo(
                f"audit: at {doing}; {report.accepted:,} accepted batches, {report.index_entries:,} index entries, "
                f"problems so far: {report.errors:,}",
                err=True,
            )

    return tell


def print_report(report: "AuditReport") -> None:
    """Print a report for people."""
    from lakehead.maintain.acceptance_audit_report import FindingKind  # noqa: PLC0415 - loaded by now

    of_agents = f" of {', '.join(map(printable, report.agents))}" if report.agents else ""
    typer.echo(
        f"{counted(report.accepted, 'accepted batch', 'accepted batches')}{of_agents} "
        f"({report.accepted_bytes:,} bytes) of {counted(report.boots, 'boot')}; "
        f"void identities: {report.voids:,}, frames in quarantine: {report.quarantined:,}, "
        f"retired: {report.retired:,}, overlapping: {report.overlapping:,}"
    )
    if report.oldest_unix_ns is not None and report.newest_unix_ns is not None:
        oldest, newest = (
            duration((report.begun_at_unix_ns - at) / 1e9) for at in (report.oldest_unix_ns, report.newest_unix_ns)
        )
        typer.echo(f"The oldest was accepted {oldest} ago, the newest {newest} ago.")
    if report.pending:
        typer.echo(f"So young that indexes and landings need not have them yet: {report.pending:,}.")
    if report.rows:
        typer.echo(f"Rows of tables that were compared: {report.rows:,}.")
    for kind in sorted(FindingKind, key=lambda kind: not kind.is_error):
        if count := report.counts[kind]:
            typer.echo(f"\n{'PROBLEM' if kind.is_error else 'note'} {kind.value}: {count:,}. {kind.meaning}")
            shown = [each for each in report.findings if each.kind is kind][:MOST_SHOWN]
            for each in shown:
                typer.echo(f"  {printable(each.what)}{f' ({printable(each.detail)})' if each.detail else ''}")
            if count > len(shown):
                typer.echo(f"  and {count - len(shown):,} more")
    for reason in report.not_checked:
        typer.echo(f"\nnot checked: {reason}")
    found = "all is well" if report.is_well else counted(report.errors, "problem")
    typer.echo(f"\naudit: {found}, after {report.seconds:,.1f} s")
