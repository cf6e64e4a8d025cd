"""`lakehead conflicts`: frames that came under an identity accepted with another hash, and what is decided."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer

from lakehead.errors import Misconfigured
from lakehead.run.gateway_command import ConfigFile, open_authority, operator
from lakehead.run.queue_options import AsJson
from lakehead.run.queue_output import print_json, print_table

if TYPE_CHECKING:
    from lakehead.accept.accepted_overlaps import AcceptedOverlaps
    from lakehead.accept.conflicts import Conflicts, ListedConflict
    from lakehead.gateway.overlap_routes import ShownOverlap
    from lakehead.wire.batch_identity import BatchIdentity

ConflictId: TypeAlias = Annotated[str, typer.Argument(metavar="ID", help="The id, as the list shows it.")]
Note: TypeAlias = Annotated[str, typer.Option("--note", help="Why, for the audit trail.")]

app = typer.Typer(no_args_is_help=True, help="Show conflicts of batches, and decide about them.")


@app.command("list")
def list_conflicts(
    file: ConfigFile,
    *,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this agent.", show_default="all")] = None,
    as_json: AsJson = False,
) -> None:
    """List conflicts and overlaps: under which identity, which hashes, and what was decided.

    Example: lakehead conflicts list conf/gateway.toml --agent web-1
    """
    found = asyncio.run(_all(open_authority(file).conflicts, agent))
    if as_json:
        print_json({"conflicts": [_fields(each) for each in found]})
        return
    rows = [
        (
            _id_of(each),
            each.kind,
            each.identity.agent_id,
            f"{each.identity.seq_start}-{each.identity.seq_end}",
            each.resolution.resolution if each.resolution else each.problem or "open",
        )
        for each in found
    ]
    print_table(("ID", "KIND", "AGENT", "SEQUENCE", "STATE"), rows)
    typer.echo(f"{len(found):,} {'conflict' if len(found) == 1 else 'conflicts'}")


@app.command()
def overlaps(
    file: ConfigFile,
    *,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this agent.", show_default="all")] = None,
    as_json: AsJson = False,
) -> None:
    """List accepted batches with common sequence numbers, whether their common records are equal or not.

    Records that differ are in quarantine as soon as a pipeline has landed the others, and have an id: see them with
    show. It lists the keys of all accepted batches, of all agents unless one is given, which may take long.

    Example: lakehead conflicts overlaps conf/gateway.toml --agent web-1
    """
    found = asyncio.run(_all_overlaps(open_authority(file).overlaps, agent))
    if as_json:
        print_json({"overlaps": [each.model_dump() for each in found]})
        return
    rows = [
        (
            each.agent_id,
            each.boot_id,
            *(f"{batch.seq_start}-{batch.seq_end}" for batch in each.batches),
            f"{each.common[0]}-{each.common[1]}",
            " ".join(batch.conflict_id for batch in each.batches if batch.conflict_id) or "no difference is known",
        )
        for each in found
    ]
    print_table(("AGENT", "BOOT", "BATCH", "AND", "COMMON", "CONFLICT"), rows)
    typer.echo(f"{len(found):,} {'overlap' if len(found) == 1 else 'overlaps'}")


@app.command()
def show(file: ConfigFile, conflict: ConflictId) -> None:
    """Show one conflict with both hashes and object keys, and what was decided, as JSON.

    Example: lakehead conflicts show conf/gateway.toml ID
    """
    identity, submitted = _parsed(conflict)
    print_json(_fields(asyncio.run(open_authority(file).conflicts.show(identity, submitted))))


@app.command("accept-existing")
def accept_existing(file: ConfigFile, conflict: ConflictId, *, note: Note = "") -> None:
    """Decide that the accepted batch counts, and that the agent may drop the submitted one. Nothing accepted changes.

    Example: lakehead conflicts accept-existing conf/gateway.toml ID --note "cloned machine"
    """
    identity, submitted = _parsed(conflict)
    decisions = open_authority(file).decisions
    asyncio.run(decisions.accept_existing(identity, submitted, by=operator(), note=note))
    typer.echo("The accepted batch counts. The agent drops the submitted one when it offers it again, within an hour.")


@app.command()
def quarantine(file: ConfigFile, conflict: ConflictId, *, note: Note = "") -> None:
    """Accept nothing more under the boot of the agent, until it is released. What was accepted lands all the same.

    Example: lakehead conflicts quarantine conf/gateway.toml ID
    """
    identity, submitted = _parsed(conflict)
    asyncio.run(open_authority(file).decisions.quarantine_identity(identity, submitted, by=operator(), note=note))
    typer.echo(f"The boot {identity.boot_id} of {identity.agent_id} is in quarantine: gateways refuse it within 30 s.")


@app.command()
def release(file: ConfigFile, conflict: ConflictId, *, note: Note = "") -> None:
    """Accept batches under the boot of the agent again.

    Example: lakehead conflicts release conf/gateway.toml ID
    """
    identity, submitted = _parsed(conflict)
    asyncio.run(open_authority(file).decisions.release(identity, submitted, by=operator(), note=note))
    typer.echo(f"The boot {identity.boot_id} of {identity.agent_id} is released: gateways take it within 30 s.")


async def _all(conflicts: "Conflicts", agent: str | None) -> Sequence["ListedConflict"]:
    found, after = list["ListedConflict"](), ""
    while True:
        page = await conflicts.list(agent_id=agent, after=after, limit=1_000)
        found += page.conflicts
        if page.next_after is None:
            return found
        after = page.next_after


async def _all_overlaps(overlaps: "AcceptedOverlaps", agent: str | None) -> Sequence["ShownOverlap"]:
    from lakehead.gateway.overlap_routes import ShownOverlap  # noqa: PLC0415 - slow to load

    found, after = list["ShownOverlap"](), ""
    while True:
        page = await overlaps.list(agent_id=agent, after=after, limit=1_000)
        found += map(ShownOverlap.of, page.overlaps)
        if page.next_after is None:
            return found
        after = page.next_after


def _id_of(conflict: "ListedConflict") -> str:
    from lakehead.gateway.conflict_ids import conflict_id  # noqa: PLC0415 - slow to load

    return conflict_id(conflict.identity, conflict.submitted_sha256)


def _parsed(text: str) -> "tuple[BatchIdentity, str]":
    from lakehead.gateway.conflict_ids import parse_conflict_id  # noqa: PLC0415 - slow to load

    if (found := parse_conflict_id(text)) is None:
        raise Misconfigured(f"{text[:200]!r} is not the id of a conflict. List them: lakehead conflicts list CONFIG")
    return found


def _fields(conflict: "ListedConflict") -> object:
    return msgspec.to_builtins(
        {
            "id": _id_of(conflict),
            "key": conflict.key,
            "kind": conflict.kind,
            "manifest": conflict.manifest,
            "resolution": conflict.resolution,
            "problem": conflict.problem,
        }
    )
