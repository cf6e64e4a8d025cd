"""`lakehead agent`: take samples and log records of this machine's programs, and deliver them to gateways."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from lakehead.errors import Misconfigured
from lakehead.run.config_or_command import DEFAULT, ConfigOrCommand
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.log_output import log_to_stderr
from lakehead.run.observe.event_text import counted
from lakehead.run.queue_options import AsJson
from lakehead.run.queue_output import duration, print_json, print_table, printable

if TYPE_CHECKING:
    from lakehead.agent.agent import Agent
    from lakehead.agent.receive.http_server import ReceiverServer
    from lakehead.run.agent_control import AgentControl
    from lakehead.run.config.agent_config import AgentConfig

ConfigFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration, JSON or TOML.", show_default=False)
]
Numbers: TypeAlias = Annotated[
    list[int], typer.Argument(metavar="NUMBER…", help="The numbers, as the list shows them.", show_default=False)
]

app = typer.Typer(
    cls=ConfigOrCommand,
    no_args_is_help=True,
    help="Deliver samples and log records of this machine to gateways: `lakehead agent CONFIG` runs an agent.\n\n"
    "Example: lakehead agent conf/agent.toml",
)
parked_app = typer.Typer(
    no_args_is_help=True, help="List, retry and drop batches that gateways refused or that are conflicts."
)
app.add_typer(parked_app, name="parked")


def agent_config(file: Path) -> "AgentConfig":
    """Return the agent of a configuration. Raises `Misconfigured` if it has none."""
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above

    config = read_config(file).agent
    if config is None:
        raise Misconfigured(f"The configuration {file} has no agent. Add one under agent: see docs/agent.md.")
    return config


@app.command(DEFAULT)
def run(file: ConfigFile) -> None:
    """Take samples and log records, keep them on disk, and send them to gateways until they are accepted.

    Programs send them by OTLP/HTTP, Prometheus remote write or JSON lines: docs/agent.md. A request is answered when
    its records are on disk. Kill the agent at any moment and start it again: nothing is lost, and nothing is doubled.

    On Ctrl-C or SIGTERM requests under way are answered, and what was not accepted yet stays on disk for the next
    start. Exit codes: 0 stopped, 1 the disk failed, 2 the configuration is wrong.

    Example: lakehead agent conf/agent.toml
    """
    import uvloop  # noqa: PLC0415 - only this command needs it

    from lakehead.run.agent_wiring import AgentWiring  # noqa: PLC0415 - slow to load

    config = agent_config(file)
    wiring = AgentWiring(config, ENVIRONMENT)

    def ready(agent: "Agent", server: "ReceiverServer") -> None:
        where = [f"http://{config.listener.host}:{server.port}"] if server.port is not None else []
        where += [f"unix:{config.listener.unix_socket}"] if config.listener.unix_socket is not None else []
        waiting = agent.status().spool.entries
        left = f" There are {_batches(waiting)} of before." if waiting else ""
        typer.echo(
            f"Agent {printable(config.agent_id)} takes samples and log records, and keeps them in "
            f"{config.spool_folder} until they are accepted.{left}\n"
            f"  listens  {', '.join(where)}\n"
            f"  sends    {', '.join(config.gateways)}",
            err=True,
        )

    async def serve() -> None:
        from lakehead.run.stop_signals import stop_signals  # noqa: PLC0415 - only this command needs it

        stop = asyncio.Event()

        def ended_by(who: str) -> None:
            typer.echo(f"Stopped by {who}: what was not accepted yet stays on disk.", err=True)
            stop.set()

        with stop_signals(ended_by):
            await wiring.serve(stop, ready)

    with log_to_stderr():
        uvloop.run(serve())


@app.command()
def status(file: ConfigFile, *, as_json: AsJson = False) -> None:
    """Show what waits in the spool, what is parked and why, and how sending goes.

    While no agent runs, what is in the folder is shown. Exit codes: 0 all is well, 1 something needs an operator.

    Example: lakehead agent status conf/agent.toml
    """
    told, runs = _told(file)
    if as_json:
        print_json({"runs": runs, **told})
    else:
        _print_status(told, runs=runs)
    if told["spool"]["parked"] or told["spool"]["damaged"] or told.get("paused") or told["spool"].get("problem"):
        raise typer.Exit(1)


@parked_app.command("list")
def list_parked(file: ConfigFile, *, as_json: AsJson = False) -> None:
    """List the batches that gateways refused, or that are conflicts, with the reasons.

    They are offered again every hour, and when the agent starts. A conflict leaves by itself when an operator has
    decided about it at the gateway: lakehead conflicts accept-existing.

    Example: lakehead agent parked list conf/agent.toml
    """
    told, _ = _told(file)
    if as_json:
        print_json({"parked": told["parked"]})
        return
    _print_parked(told["parked"])
    typer.echo(f"{_batches(len(told['parked']))} parked")


@parked_app.command()
def retry(file: ConfigFile) -> None:
    """Offer all parked batches to gateways again now: after a limit was raised or a conflict decided, for example.

    Otherwise it is done every hour, and when the agent starts. The agent must run. What is accepted leaves the list.

    Example: lakehead agent parked retry conf/agent.toml
    """
    offered = _control(agent_config(file)).retry()
    typer.echo(f"{_batches(len(offered))} offered again. See what is left: lakehead agent parked list {file}")


@parked_app.command()
def drop(
    file: ConfigFile,
    numbers: Numbers,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Drop parked batches for good: their records are lost, unless a gateway has accepted them all the same.

    The agent must run. Prefer to decide at the gateway: lakehead conflicts accept-existing.

    Example: lakehead agent parked drop conf/agent.toml 17 18
    """
    control = _control(agent_config(file))
    there = {each["number"]: each for each in control.parked()}
    if unknown := sorted(set(numbers) - there.keys()):
        raise Misconfigured(f"There are no parked batches {', '.join(map(str, unknown))}. See the list.")
    _print_parked([there[number] for number in numbers])
    if not yes:
        typer.confirm("Drop them for good?", abort=True)
    for number in numbers:
        dropped = control.drop(number)
        typer.echo(f"Dropped {number}, sequence numbers {dropped['seq_start']} to {dropped['seq_end']}.")


@app.command()
def flush(
    file: ConfigFile,
    *,
    seconds: Annotated[float, typer.Option("--timeout", min=0, max=600, help="How long to wait, in seconds.")] = 60.0,
) -> None:
    """Wait until all that the agent was given is accepted: before a machine is taken away, for example.

    Exit codes: 0 all is accepted, 1 some of it waits, is parked or is damaged.

    Example: lakehead agent flush conf/agent.toml --timeout 120
    """
    told = _control(agent_config(file)).flush(seconds)
    if told["accepted"]:
        typer.echo("All that the agent was given is accepted.")
        return
    _print_parked(told["parked"])
    typer.echo(
        f"Not all is accepted: {_batches(told['waiting'])} waiting, {_batches(len(told['parked']))} parked, "
        f"{counted(told['damaged'], 'file')} damaged. See: lakehead agent status {file}",
        err=True,
    )
    raise typer.Exit(1)


def _batches(number: int) -> str:
    return counted(number, "batch", "batches")


def _control(config: "AgentConfig") -> "AgentControl":
    from lakehead.run.agent_control import AgentControl  # noqa: PLC0415 - slow to load

    return AgentControl(config.listener, config.agent_id)


def _told(file: Path) -> tuple[dict[str, Any], bool]:
    """Return what the agent tells, or else what its folder shows; and whether the agent runs."""
    from lakehead.run.agent_control import NoAgentRuns  # noqa: PLC0415 - slow to load
    from lakehead.run.agent_folder import AgentFolder  # noqa: PLC0415 - slow to load

    config = agent_config(file)
    try:
        return _control(config).status(), True
    except NoAgentRuns:
        return AgentFolder(Path(config.spool_folder)).status(), False


def _print_status(told: dict[str, Any], *, runs: bool) -> None:
    spool = told["spool"]
    typer.echo(f"agent      {printable(told['agent_id'])}, {'running' if runs else 'not running'}")
    typer.echo(f"authority  {printable(told['authority']) or 'none has answered yet'}")
    oldest = f", the oldest for {duration(spool['oldest_seconds'])}" if spool.get("oldest_seconds") else ""
    typer.echo(f"waiting    {_batches(spool['entries'])}, {spool['entry_bytes']:,} bytes{oldest}")
    typer.echo(f"parked     {_batches(spool['parked'])}, {spool['parked_bytes']:,} bytes")
    if spool["damaged"]:
        typer.echo(f"damaged    {counted(spool['damaged'], 'file')}: look at them in the folder damaged of the spool")
    if spool.get("problem"):
        typer.echo(f"problem    {printable(spool['problem'])}")
    if told.get("paused"):
        typer.echo(f"paused     {printable(told['paused'])}")
    for gateway in told.get("gateways", ()):
        how = gateway["last_error"] or ("in use" if gateway["is_used"] else "not in use")
        typer.echo(f"gateway    {printable(gateway['name'])}: {printable(how)}")
    for alert in told.get("alerts", ()):
        typer.echo(f"alert      {printable(alert['text'])}")
    _print_parked(told["parked"])


def _print_parked(parked: list[dict[str, Any]]) -> None:
    rows = [
        (
            str(each["number"]),
            each["kind"],
            each["boot_id"],
            "" if each["seq_start"] is None else f"{each['seq_start']}-{each['seq_end']}",
            f"{each['bytes']:,}",
            each["code"],
            each["reason"],
        )
        for each in parked
    ]
    print_table(("NUMBER", "KIND", "BOOT", "RECORDS", "BYTES", "CODE", "REASON"), rows)
