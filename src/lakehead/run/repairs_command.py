"""`lakehead repairs`: frames of accepted batches that are missing or corrupt, and what to do about each."""

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.errors import Misconfigured
from lakehead.run.gateway_command import ConfigFile, open_authority
from lakehead.run.queue_options import AsJson
from lakehead.run.queue_output import print_json, print_table, utc_time

if TYPE_CHECKING:
    from lakehead.accept.repairs import ListedRepair, Repairs, RepairState

app = typer.Typer(no_args_is_help=True, help="Show frames of accepted batches that are missing or corrupt.")


class StateOption(StrEnum):
    """Which repairs are listed."""

    OPEN = "open"
    HEALED = "healed"
    ALL = "all"


_STATES: "dict[StateOption, RepairState | None]" = {
    StateOption.OPEN: "open",
    StateOption.HEALED: "healed",
    StateOption.ALL: None,
}


@app.command("list")
def list_repairs(
    file: ConfigFile,
    *,
    agent: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this agent.", show_default="all")] = None,
    state: Annotated[StateOption, typer.Option(help="Only in this state.")] = StateOption.OPEN,
    as_json: AsJson = False,
) -> None:
    """List frames that the reconciler has found missing or corrupt. Exit code 1 if one is open.

    Example: lakehead repairs list conf/gateway.toml --agent web-1
    """
    found = asyncio.run(_all(open_authority(file).repairs, agent, _STATES[state]))
    if as_json:
        print_json({"repairs": [_fields(each) for each in found]})
    else:
        rows = [
            (
                _id_of(each),
                each.identity.agent_id,
                f"{each.identity.seq_start}-{each.identity.seq_end}",
                each.record.problem if each.record else "unreadable",
                each.record.state if each.record else each.problem,
                utc_time(each.record.found_at_unix_ns // 1_000_000) if each.record else "",
            )
            for each in found
        ]
        print_table(("ID", "AGENT", "SEQUENCE", "PROBLEM", "STATE", "FOUND"), rows)
        typer.echo(f"{len(found):,} {'repair' if len(found) == 1 else 'repairs'}")
    if any(_is_open(each) for each in found):
        if not as_json:
            typer.echo("What to do about one: lakehead repairs show CONFIG ID", err=True)
        raise typer.Exit(1)


@app.command()
def show(
    file: ConfigFile, repair: Annotated[str, typer.Argument(metavar="ID", help="The id, as the list shows it.")]
) -> None:
    """Show one repair with its keys as JSON, and what to do about it.

    Example: lakehead repairs show conf/gateway.toml ID
    """
    from lakehead.gateway.batch_ids import parse_batch_id  # noqa: PLC0415 - slow to load

    if (identity := parse_batch_id(repair)) is None:
        raise Misconfigured(f"{repair[:200]!r} is not the id of a repair. List them: lakehead repairs list CONFIG")
    print_json(_fields(asyncio.run(open_authority(file).repairs.show(identity))))


def advice(repair: "ListedRepair") -> str:
    """Return what to do about a repair."""
    record = repair.record
    if record is None:
        return "Delete the record if it is damaged: the reconciler writes it again if it is needed."
    if record.state == "healed":
        return (
            "Nothing: the frame is right again. If a pipeline had given the batch up, replay its dead letter: "
            "lakehead dead-letters list CONFIG"
        )
    versions = f"restore the version of {record.raw_blob_key} with {record.frame_bytes} bytes, if the bucket keeps any"
    return (
        f"Let the agent {record.agent_id} send the batch again, if it still has it: uploading the same frame heals it. "
        f"Else {versions}, or copy it from a backup; its SHA-256 is {record.frame_sha256}. Find out what has deleted "
        "or changed it: `lakehead doctor --config CONFIG`. The reconciler closes the repair when the frame is right."
    )


def _is_open(repair: "ListedRepair") -> bool:
    return repair.record is None or repair.record.state == "open"


async def _all(repairs: "Repairs", agent: str | None, state: "RepairState | None") -> "list[ListedRepair]":
    found, after = list["ListedRepair"](), ""
    while True:
        page = await repairs.list(agent_id=agent, state=state, after=after, limit=1_000)
        found += page.repairs
        if page.next_after is None:
            return found
        after = page.next_after


def _id_of(repair: "ListedRepair") -> str:
    from lakehead.gateway.batch_ids import batch_id  # noqa: PLC0415 - slow to load

    return batch_id(repair.identity)


def _fields(repair: "ListedRepair") -> object:
    from lakehead.gateway.repair_routes import ShownRepair  # noqa: PLC0415 - slow to load

    return {**ShownRepair.of(repair).model_dump(), "key": repair.key, "what_to_do": advice(repair)}
