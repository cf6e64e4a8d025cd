"""`lakehead gateway`: accept batches of agents over HTTP."""

import asyncio
import getpass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer

from lakehead.run.config_or_command import DEFAULT, ConfigOrCommand
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.log_output import log_to_stderr
from lakehead.run.queue_options import AsJson
from lakehead.run.queue_output import print_json, print_table, utc_time
from lakehead.wire.authority_records import AcceptanceMode, Role

if TYPE_CHECKING:
    from lakehead.accept.audit import ListedAuditEntry
    from lakehead.gateway.server import GatewayServer
    from lakehead.run.gateway_wiring import GatewayWiring

ConfigFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration, JSON or TOML.", show_default=False)
]

app = typer.Typer(
    cls=ConfigOrCommand,
    no_args_is_help=True,
    help="Accept batches of agents over HTTP: `lakehead gateway CONFIG` runs a gateway.",
)
token_app = typer.Typer(no_args_is_help=True, help="Add, list and revoke tokens of agents and operators.")
app.add_typer(token_app, name="token")


def open_gateway(file: Path) -> "GatewayWiring":
    """Return the gateway of a configuration. Raises `Misconfigured` if it has none."""
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.gateway_wiring import GatewayWiring, gateway_config  # noqa: PLC0415 - see above

    return GatewayWiring(gateway_config(read_config(file)), ENVIRONMENT)


def open_authority(file: Path) -> "GatewayWiring":
    """Return the gateway of a configuration whose store is an authority. Raises `Misconfigured` if it is none: else
    commands on a mistyped store would find nothing, or leave something there.
    """
    wiring = open_gateway(file)
    asyncio.run(wiring.authority.read())
    return wiring


def operator() -> str:
    """Return who runs this command, for the audit trail."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


@app.command(DEFAULT)
def run(file: ConfigFile) -> None:
    """Accept batches until it is stopped. Any number of gateways may share a store, behind any load balancer.

    On Ctrl-C or SIGTERM no new request is taken, and requests under way are answered. Exit codes: 0 stopped, 1 the
    store does not answer, 2 the configuration is wrong.

    Example: lakehead gateway conf/gateway.toml
    """
    import uvloop  # noqa: PLC0415 - only this command needs it

    wiring = open_gateway(file)

    def ready(server: "GatewayServer") -> None:
        from lakehead.run.gateway_wiring import listener_url  # noqa: PLC0415 - slow to load, and loaded by now

        config = wiring.config
        typer.echo(
            f"Gateway {wiring.collector_id} accepts batches for {config.store}.\n"
            f"  ingest   {listener_url(config.ingest_listener, server.ingest_port)}/ingest/v1/batch\n"
            f"  private  {listener_url(config.private_listener, server.private_port)}",
            err=True,
        )

    async def serve() -> None:
        from lakehead.run.stop_signals import stop_signals  # noqa: PLC0415 - only this command needs it

        stop = asyncio.Event()

        def ended_by(who: str) -> None:
            typer.echo(f"Stopped by {who}: requests under way are answered.", err=True)
            stop.set()

        with stop_signals(ended_by):
            await wiring.serve(stop, ready)

    with log_to_stderr():
        uvloop.run(serve())


@app.command()
def init(file: ConfigFile) -> None:
    """Make the store of a configuration an acceptance authority. Do it once, before the first gateway starts.

    A gateway that finds no authority, or one of another bucket or prefix, does not start: so a mistyped store is
    noticed before anything is accepted there. Running it again changes nothing.

    Example: lakehead gateway init conf/gateway.toml
    """
    wiring = open_gateway(file)

    async def initialise() -> tuple[str, bool]:
        await wiring.store.ensure_probed()
        found = await wiring.authority.init(wiring.config.ingest.acceptance, by=operator())
        return found.record.authority_id, found.is_new

    authority_id, is_new = asyncio.run(initialise())
    what = "is the acceptance authority from now on" if is_new else "is the acceptance authority already"
    typer.echo(f"{wiring.config.store} {what}: {authority_id}")
    if is_new:
        typer.echo(f"Next: lakehead gateway token add {file} --agent NAME", err=True)


@app.command()
def drain(
    file: ConfigFile,
    *,
    lost: Annotated[
        str | None,
        typer.Option(
            metavar="SPOOL",
            help="Close this spool of another gateway, whose disk is gone for good: what it held is lost.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Land everything that is in the spool of a gateway with local_spool, and close the spool. Stop the gateway first.

    Then the authority no longer waits for this spool: the mode can be changed, or the gateway taken away. Starting the
    gateway opens it again. Exit codes: 0 drained, 1 the store does not answer, 2 there is something to look after.

    Example: lakehead gateway drain conf/gateway.toml

    Example: lakehead gateway drain conf/gateway.toml --lost 0b8c1f6e-2f0c-4d6c-a1b2-7f5d7d5a0c11
    """
    wiring = open_authority(file)
    if lost is not None:
        given_up = asyncio.run(wiring.authority.give_up_spool(lost, by=operator()))
        typer.echo(f"Closed the spool {lost} of {given_up.collector_id}: what it held is not waited for any more.")
        return
    from lakehead.run.spool_wiring import drain as drain_spool  # noqa: PLC0415 - slow to load

    landed = asyncio.run(drain_spool(wiring, by=operator()))
    if landed is None:
        typer.echo(f"The gateways of {wiring.config.store} do not use spools: there is nothing to drain.")
    else:
        typer.echo(f"Landed {landed:,} {'batch' if landed == 1 else 'batches'}. The spool is empty and closed.")


@app.command("set-mode")
def set_mode(
    file: ConfigFile,
    mode: Annotated[AcceptanceMode, typer.Argument(help="When batches are accepted from now on.")],
) -> None:
    """Change when all gateways of an authority accept batches. Every spool must be drained before.

    Gateways that run in the other mode answer 503 within 30 seconds. Then set ingest.acceptance, and start them again.

    Example: lakehead gateway set-mode conf/gateway.toml s3_manifest
    """
    wiring = open_authority(file)
    record = asyncio.run(wiring.authority.set_mode(mode, by=operator()))
    typer.echo(f"{wiring.config.store} accepts by {record.mode}, in epoch {record.epoch}.")
    typer.echo(f'Next: set ingest.acceptance = "{record.mode}" for every gateway, and start it again.', err=True)


@app.command()
def audit(
    file: ConfigFile,
    *,
    since: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only what was done within this time: 90m, 12h, 3d.", show_default="all"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show who did what to an authority: the audit trail of its operators and gateways, the oldest entry first.

    Each entry is written before the action, so that none is missing; an action may have failed after its entry. JSON
    also has what the changed record said before, and what it was to say.

    Example: lakehead gateway audit conf/gateway.toml --since 7d
    """
    from lakehead.run.table_options import parse_age  # noqa: PLC0415 - slow to load

    age = None if since is None else parse_age(since)
    found = asyncio.run(_audit_entries(open_authority(file), age))
    if as_json:
        print_json({"entries": [_audit_fields(each) for each in found]})
        return
    rows = [
        (utc_time(each.at_unix_ns // 1_000_000), one.by, one.action, one.subject, one.because_of)
        if (one := each.entry)
        else (utc_time(each.at_unix_ns // 1_000_000), "", "unreadable", each.key, each.problem)
        for each in found
    ]
    print_table(("TIME", "BY", "ACTION", "SUBJECT", "BECAUSE OF"), rows)
    typer.echo(f"{len(found):,} {'entry' if len(found) == 1 else 'entries'}")


async def _audit_entries(wiring: "GatewayWiring", age: timedelta | None) -> "list[ListedAuditEntry]":
    from lakehead.accept.audit import audit_entries  # noqa: PLC0415 - slow to load

    since = 0 if age is None else max(0, wiring.clock.now_ns() - age // timedelta(microseconds=1) * 1_000)
    return [each async for each in audit_entries(wiring.store, since_unix_ns=since)]


def _audit_fields(listed: "ListedAuditEntry") -> dict[str, object]:
    told = {} if listed.entry is None else msgspec.structs.asdict(listed.entry)
    return {
        "key": listed.key,
        "at": utc_time(listed.at_unix_ns // 1_000_000),
        "at_unix_ns": listed.at_unix_ns,
        **{name: told.get(name) for name in ("by", "action", "subject", "because_of", "before", "after")},
        "problem": listed.problem,
    }


@token_app.command()
def add(
    file: ConfigFile,
    *,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="The agent that may upload with it.", show_default=False)
    ] = None,
    role: Annotated[
        Role | None, typer.Option(help="What it may do on the private listener.", show_default=False)
    ] = None,
) -> None:
    """Add a token for an agent, or one with a role, and print it. It is shown this once: only its hash is stored.

    Gateways take it within 30 seconds. An agent may have two, so that one can replace the other without a pause.

    Example: lakehead gateway token add conf/gateway.toml --agent web-1 > web-1.token
    """
    wiring = open_authority(file)
    added = asyncio.run(wiring.tokens.add(by=operator(), agent_id=agent, role=role))
    typer.echo(added.token)
    typer.echo(f"Its id is {added.entry.token_id}: gateways take it within 30 s.", err=True)


@token_app.command("list")
def list_tokens(file: ConfigFile, *, as_json: AsJson = False) -> None:
    """List the live tokens by their ids, without the secrets.

    Example: lakehead gateway token list conf/gateway.toml
    """
    found = asyncio.run(open_authority(file).tokens.list())
    if as_json:
        tokens = [
            {"id": each.token_id, "agent": each.agent_id, "role": each.role, "created_by": each.created_by}
            | {"created_at": utc_time(each.created_at_unix_ns // 1_000_000)}
            for each in found
        ]
        print_json({"tokens": tokens})
        return
    rows = [
        (
            each.token_id,
            each.agent_id or "",
            each.role or "",
            utc_time(each.created_at_unix_ns // 1_000_000),
            each.created_by,
        )
        for each in found
    ]
    print_table(("ID", "AGENT", "ROLE", "CREATED", "BY"), rows)
    typer.echo(f"{len(found):,} {'token' if len(found) == 1 else 'tokens'}")


@token_app.command()
def revoke(
    file: ConfigFile, token_id: Annotated[str, typer.Argument(metavar="ID", help="The id, as the list shows it.")]
) -> None:
    """Revoke a token. Gateways refuse it within 30 seconds, and after 5 minutes at the latest.

    Example: lakehead gateway token revoke conf/gateway.toml 0b8c…
    """
    revoked = asyncio.run(open_authority(file).tokens.revoke(token_id, by=operator()))
    whose = f"the agent {revoked.agent_id}" if revoked.agent_id is not None else f"a {revoked.role}"
    typer.echo(f"Revoked a token of {whose}: gateways refuse it within 30 s.")
