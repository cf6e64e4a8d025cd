"""`lakehead erase`: removes all rows of one key from a table of a configuration. Starts no JVM."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds, system_random
from lakehead.run.table_options import DryRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakehead.lake.iceberg_table import IcebergTable
    from lakehead.lake.ledger import StoreLedger
    from lakehead.maintain.erase import Held, Key
    from lakehead.run.configured_tables import ConfiguredTable
    from lakehead.run.wiring import Wiring


def erase(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table, as the configuration names it.")],
    *,
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The configuration of the runs.")],
    key: Annotated[
        list[str],
        typer.Option(metavar="COLUMN=VALUE", help="A column of the primary key and its value; repeat it for others."),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Erase all rows of one key from raw, then from the mirror or final table. After a crash run it again.

    Loads may run meanwhile; what they have staged is read again. Older snapshots keep the rows until they expire; this
    and what else cannot be reached is printed. Starts no Spark session.

    Example: lakehead erase public.orders --key id=7 --config shop.json --dry-run
    """
    given = _parsed(key)
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.lake.iceberg_table import IcebergTable  # noqa: PLC0415 - see above
    from lakehead.lake.retries import Retries  # noqa: PLC0415 - see above
    from lakehead.maintain.erase import held, key_of  # noqa: PLC0415 - see above
    from lakehead.run.configured_tables import iceberg_tables_of, named_table, wiring_of  # noqa: PLC0415 - see above

    wiring = wiring_of(config)
    _check_not_in_files(wiring, table)
    with ExitStack() as opened:
        chosen = named_table(opened.enter_context(iceberg_tables_of(wiring)), table)
        ledger = wiring.open_ledger()
        raw, out = (
            IcebergTable.find(chosen.catalog, place.name, ledger, Retries()) if place else None
            for place in (chosen.raw, chosen.out)
        )
        there = [each for each in (raw, out) if each is not None]
        if not there:
            raise Misconfigured(f"None of the tables of {table} exists. There is nothing to erase.")
        keys: dict[str, Key] = {
            each.name: key_of(each.seen().schema(), _columns(chosen, each, given), each.name) for each in there
        }
        found = {each.name: held(each.load(), keys[each.name]) for each in there}
        for name, holds in found.items():
            typer.echo(f"{name}: {_counted(holds)} {'would be' if dry_run else 'will be'} erased")
        if not dry_run:
            # Also if nothing was found: a merge that has read the key before it was erased from raw starts over then.
            if any(found.values()) and not yes:
                typer.confirm(f"Erase {', '.join(key)} from {table}? This cannot be undone.", abort=True)
            for name, holds in _erase(wiring, ledger, raw, out, keys):
                typer.echo(f"{name}: {_counted(holds)} erased")
        for line in _unreachable(wiring, chosen, there):
            typer.echo(f"not reached: {line}")


def _erase(
    wiring: "Wiring",
    ledger: "StoreLedger",
    raw: "IcebergTable | None",
    out: "IcebergTable | None",
    keys: "Mapping[str, Key]",
) -> "Iterator[tuple[str, Held]]":
    from lakehead.maintain.erase import held  # noqa: PLC0415 - see `erase`
    from lakehead.maintain.sweep import move_sweep_tag  # noqa: PLC0415 - see `erase`
    from lakehead.run.erase_landing import erase_as_landing  # noqa: PLC0415 - see `erase`

    clock, ids = SystemClock(), RandomIds()
    with wiring.open_state(clock, ids) as state:
        # Raw first: what merges into the mirror afterwards is read from a raw without the key.
        for table in (raw, out):
            if table is None:
                continue
            asyncio.run(move_sweep_tag(table))
            if table is raw and not (lacks := held(table.load(), keys[table.name])):
                yield table.name, lacks
                continue
            erased = erase_as_landing(
                table,
                keys[table.name],
                ledger=ledger,
                state=state,
                pipeline=wiring.config.runtime.pipeline,
                clock=clock,
                ids=ids,
                random=system_random(),
            )
            yield table.name, erased


def _parsed(key: "Sequence[str]") -> dict[str, str]:
    given: dict[str, str] = {}
    for pair in key:
        name, found, value = pair.partition("=")
        if not name or not found:
            raise Misconfigured(f"The key {pair!r} must be written as COLUMN=VALUE.")
        if name in given:
            raise Misconfigured(f"The key column {name!r} is given twice. One key is erased at a time.")
        given[name] = value
    return given


def _check_not_in_files(wiring: "Wiring", table: str) -> None:
    from lakehead.run.config.connections import FileSinkConfig  # noqa: PLC0415 - see `erase`

    for each in wiring.config.tables:
        if each.full_name == table and isinstance(wiring.config.sink_of(each), FileSinkConfig):
            folders = " and ".join(wiring.staging_roots([each]))
            raise Misconfigured(
                f"The table {table} is kept in a file sink, whose files are never rewritten. Delete the rows by hand, "
                f"in every directory below {folders}."
            )


def _columns(chosen: "ConfiguredTable", table: "IcebergTable", given: dict[str, str]) -> dict[str, str]:
    """The given columns as the table spells them. Raises `Misconfigured` unless they are the whole primary key."""
    wanted = {name.lower(): name for name in chosen.config.primary_keys}
    if wanted and {name.lower() for name in given} != set(wanted):
        raise Misconfigured(
            f"The primary key of {chosen.config.full_name} is {', '.join(chosen.config.primary_keys)}. Give a --key "
            "for each of these columns, and for no other."
        )
    spelled = {field.name.lower(): field.name for field in table.seen().schema().fields}
    return {spelled.get(name.lower(), name): value for name, value in given.items()}


def _counted(holds: "Held") -> str:
    hidden = f" and {holds.hidden} that delete files hide" if holds.hidden else ""
    return f"{holds.rows} rows{hidden} in {len(holds.files)} files"


def _unreachable(wiring: "Wiring", chosen: "ConfiguredTable", tables: "Sequence[IcebergTable]") -> "Iterator[str]":
    """What may still hold the key."""
    from lakehead.run.config.connections import FileSinkConfig  # noqa: PLC0415 - see `erase`

    for table in tables:
        metadata = table.load().metadata
        older = [each for each in metadata.snapshots if each.snapshot_id != metadata.current_snapshot_id]
        if older:
            yield (
                f"{len(older)} older snapshots of {table.name}, until they expire: lakehead maintain expire "
                f"{table.name} --older-than 0s --config FILE"
            )
        yield (
            f"files of {table.name} that nobody has published, as after a crash, until they are swept when no load "
            f"runs: lakehead maintain sweep {table.name} --older-than 0s --config FILE"
        )
        if others := sorted(name for name in metadata.refs if name != "main" and not name.startswith("lakehead-")):
            yield f"branches and tags of {table.name}, which keep snapshots: {', '.join(others)}"
    if any(isinstance(sink, FileSinkConfig) for sink in wiring.config.sinks.values()):
        yield "file sinks: delete the rows there by hand"
    yield f"the source of {chosen.config.full_name}: a load brings the key back while the source has it"
    if wiring.config.pipelines:
        yield "dead letters, queues and accepted batches of pipelines"
    yield "logs and the state's history, which may quote a value that could not be loaded"
    yield "backups and copies of the lakehouse"
