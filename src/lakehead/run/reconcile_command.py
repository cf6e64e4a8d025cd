"""`lakehead reconcile`: look after what gateways have accepted."""

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.errors import Misconfigured
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.gateway_command import ConfigFile
from lakehead.run.log_output import log_to_stderr
from lakehead.run.metrics_server import MetricsPort, serve_metrics
from lakehead.run.queue_options import AsJson
from lakehead.run.queue_output import print_table
from lakehead.wire.batch_identity import check_id
from lakehead.wire.errors import InvalidIdentity

if TYPE_CHECKING:
    from lakehead.maintain.reconcile_report import ReconcileReport
    from lakehead.maintain.reconciler import Reconciler
    from lakehead.run.reconcile_wiring import ReconcileWiring

SOME_WORK_FAILED = 1


def reconcile(
    file: ConfigFile,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Make one pass, and a scan of everything if one is due, and end.")
    ] = False,
    cold: Annotated[
        bool, typer.Option("--cold", help="Scan everything that was accepted now, also if that is not due.")
    ] = False,
    inventory: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Look at what an S3 Inventory report lists, by its manifest.json, and end."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Scan the batches of this agent alone, and end. Repeat it for others."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be written, write nothing, and end.")
    ] = False,
    as_json: AsJson = False,
    metrics_port: MetricsPort = None,
) -> None:
    """Look after what gateways have accepted: frames, derived indexes, and the queue of what is to be landed.

    Finds accepted batches again and again, checks their frames, writes index entries that are missing, and queues what
    nobody has queued. Runs until it is stopped; any number may run, on any machine. Start one before the gateways. Exit
    codes: 0 stopped or done, 1 a frame is missing or corrupt or something failed, 2 the configuration is wrong.

    Example: lakehead reconcile conf/gateway.toml --metrics-port 9109

    Example: lakehead reconcile conf/gateway.toml --once --cold --dry-run
    """
    wiring = open_reconciler(file)
    if inventory is not None and (agent or cold):
        raise Misconfigured("--inventory names what is looked at: leave out --cold and --agent.")
    for name in agent or ():
        try:
            check_id("agent_id", name)
        except InvalidIdentity as error:
            raise Misconfigured(f"--agent {name[:40]!r} is no name of an agent. {error}") from error
    is_single = once or dry_run or inventory is not None or bool(agent)
    with log_to_stderr():
        if not is_single:
            asyncio.run(_run(wiring, cold=cold, as_json=as_json, metrics_port=metrics_port))
            return
        if metrics_port is not None:
            raise Misconfigured("--metrics-port is for a reconciler that goes on running.")
        report = asyncio.run(_once(wiring, cold=cold, agents=agent or (), inventory=inventory, is_dry_run=dry_run))
    _print(report, as_json=as_json, is_dry_run=dry_run)
    if report.wrong:
        raise typer.Exit(SOME_WORK_FAILED)


def open_reconciler(file: Path) -> "ReconcileWiring":
    """Return the reconciler of a configuration. Raises `Misconfigured` if it has no gateway."""
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.reconcile_wiring import ReconcileWiring  # noqa: PLC0415 - see above

    wiring = ReconcileWiring(read_config(file), ENVIRONMENT)
    wiring.gateway  # noqa: B018 - raises if there is none
    return wiring


async def _once(
    wiring: "ReconcileWiring",
    *,
    cold: bool,
    agents: "list[str] | tuple[str, ...]",
    inventory: str | None,
    is_dry_run: bool,
) -> "ReconcileReport":
    from lakehead.maintain.reconcile_report import ReconcileReport  # noqa: PLC0415 - slow to load

    _tell_what_is_landed(wiring)
    report = ReconcileReport()
    async with wiring.opened(is_dry_run=is_dry_run) as reconciler, reconciler.signs_of_life():
        if inventory is not None:
            report.add(await reconciler.inventory_scan(await wiring.open_inventory(inventory)))
        elif agents:
            report.add(await reconciler.cold_scan(agents))
        else:
            report.add(newest := await reconciler.pass_once())
            if cold or await reconciler.is_cold_scan_due():
                report.add(everything := await reconciler.cold_scan())
                # The newest batches were seen by both.
                report.accepted = max(newest.accepted, everything.accepted)
                report.voids = max(newest.voids, everything.voids)
    return report


async def _run(wiring: "ReconcileWiring", *, cold: bool, as_json: bool, metrics_port: int | None) -> None:
    from lakehead.run.stop_signals import stop_signals  # noqa: PLC0415 - only this command needs it

    _tell_what_is_landed(wiring)
    stop = asyncio.Event()

    def ended_by(who: str) -> None:
        typer.echo(f"Stopped by {who}: what is under way is finished.", err=True)
        stop.set()

    def told(name: str, report: "ReconcileReport") -> None:
        if not report.done and not report.wrong and name != "cold":
            return
        if as_json:
            typer.echo(json.dumps({"pass": name, **_fields(report)}))
        else:
            typer.echo(f"{name}: {_summary(report)}")
            for problem in report.problems[:20]:
                typer.echo(f"  {problem.kind.value}  {problem.text}")

    with stop_signals(ended_by), ExitStack() as opened:
        async with wiring.opened(stop=stop) as reconciler, wiring.events() as events:
            reconciler.events = events
            if metrics_port is not None:
                _serve_metrics(reconciler, metrics_port, opened)
            typer.echo(f"Reconciler {wiring.reconciler_id} looks after {wiring.gateway.config.store}.", err=True)
            await reconciler.run(stop, told, cold_at_once=cold)


def _tell_what_is_landed(wiring: "ReconcileWiring") -> None:
    if not wiring.pipelines():
        typer.echo(
            'No pipeline of this configuration lands what the gateways accept (messages = "accepted", the gateway\'s '
            "store and queue): frames and indexes are looked after, and nothing is queued.",
            err=True,
        )


def _serve_metrics(reconciler: "Reconciler", port: int, opened: ExitStack) -> None:
    from lakehead.maintain.reconciler_metrics import ReconcilerMetrics  # noqa: PLC0415 - only with metrics

    url = opened.enter_context(serve_metrics(ReconcilerMetrics(reconciler), port))
    typer.echo(f"  metrics  {url}", err=True)


def _print(report: "ReconcileReport", *, as_json: bool, is_dry_run: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"dry_run": is_dry_run, **_fields(report)}, indent=2))
        return
    verb = "WOULD WRITE" if is_dry_run else "WRITTEN"
    print_table((verb, "KEY"), [(each.kind.value, each.key) for each in report.actions])
    print_table(("PROBLEM", "WHAT"), [(each.kind.value, each.text) for each in report.problems])
    typer.echo(_summary(report, is_dry_run=is_dry_run))


def _summary(report: "ReconcileReport", *, is_dry_run: bool = False) -> str:
    done = sum(report.done.values())
    would = "would be written" if is_dry_run else "written"
    return (
        f"{report.accepted:,} accepted, {report.voids:,} void, {report.quarantined:,} in quarantine; "
        f"{done:,} {would}; {sum(report.wrong.values()):,} problems"
    )


def _fields(report: "ReconcileReport") -> dict[str, object]:
    return {
        "accepted": report.accepted,
        "voids": report.voids,
        "quarantined": report.quarantined,
        "absent": report.absent,
        "waiting": report.waiting,
        "done": {kind.value: count for kind, count in sorted(report.done.items())},
        "wrong": {kind.value: count for kind, count in sorted(report.wrong.items())},
        "actions": [{"kind": each.kind.value, "key": each.key} for each in report.actions],
        "problems": [{"kind": each.kind.value, "key": each.key, "text": each.text} for each in report.problems],
    }
