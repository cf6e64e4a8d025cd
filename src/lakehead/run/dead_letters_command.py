"""`lakehead dead-letters`: list, show, replay and drop the messages that a pipeline has given up."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer

from lakehead.errors import Misconfigured
from lakehead.run.consumed_tables import (
    ConfigArgument,
    ConsumedTables,
    OpenConsumedTables,
    PipelineOption,
    TableOption,
)
from lakehead.run.observe.event_text import counted
from lakehead.run.queue_options import AsJson, exit_with_errors
from lakehead.run.queue_output import print_json, print_table, printable
from lakehead.wire.dead_letters import NO_TABLE, DeadLetterObject, letter_id
from lakehead.wire.errors import Unreadable

if TYPE_CHECKING:
    from lakehead.lake.dead_letters import DeadLetters

SHORTEST_ID = 6
ID_SHOWN = 12
"""Characters of an id that are shown."""

LetterIds: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="ID…", help="The ids of dead letters, or their beginnings, as list shows them; or their units."
    ),
]
Closed: TypeAlias = Annotated[bool, typer.Option("--closed", help="Also show those that have landed or were dropped.")]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")]
Yes: TypeAlias = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


_Act: TypeAlias = Callable[[DeadLetterObject, ConsumedTables, "DeadLetters"], Awaitable[str]]
"""Changes a letter, and returns its state."""


def dead_letter_commands(open_tables: OpenConsumedTables) -> typer.Typer:
    """The commands, for pipelines that `open_tables` opens."""
    app = typer.Typer(no_args_is_help=True, help="List, show, replay and drop the messages that a pipeline gave up.")

    @app.callback()
    def dead_letters() -> None:
        """List, show, replay and drop dead letters: messages that a pipeline gave up, with the reasons."""

    @app.command("list")
    def list_(
        config: ConfigArgument,
        *,
        pipeline: PipelineOption = None,
        table: TableOption = None,
        closed: Closed = False,
        limit: Limit = 1000,
        as_json: AsJson = False,
    ) -> None:
        """Show dead letters: what was given up, when, after how many tries, and why. Nothing is written.

        Messages that could not be understood have no table. The exit code is 1 if a letter cannot be read; the others
        are shown.

        Example: lakehead dead-letters list files.json --table raw.files
        """
        with open_tables(config, pipeline) as tables:
            found, errors = asyncio.run(listed(tables, table, closed=closed, limit=limit))
        _print_list(found, {uuid: name for name, uuid in tables.tables.items()}, as_json=as_json)
        exit_with_errors([str(error) for error in errors])

    @app.command()
    def show(
        config: ConfigArgument,
        ids: LetterIds,
        *,
        pipeline: PipelineOption = None,
        table: TableOption = None,
        as_json: AsJson = False,
    ) -> None:
        """Show dead letters with everything that is known of them, and their messages. Nothing is written.

        Example: lakehead dead-letters show files.json 5f2c8a90b1d4
        """
        with open_tables(config, pipeline) as tables:
            found = asyncio.run(chosen(tables, table, ids))
        _print_fields(found, as_json=as_json)

    @app.command()
    def replay(
        config: ConfigArgument,
        ids: LetterIds,
        *,
        pipeline: PipelineOption = None,
        table: TableOption = None,
        as_json: AsJson = False,
    ) -> None:
        """Send the messages of dead letters again, for example after their files or a decoder were repaired.

        A letter stays open until its file has landed, so a replay that fails loses nothing. A file of a watched folder
        has no message: consumers of the folder try it again within seconds. One of a backfill is tried again by the
        next backfill.

        Example: lakehead dead-letters replay files.json 5f2c8a90b1d4 --pipeline uploads
        """
        from lakehead.run.dead_letter_changes import replay_letter  # noqa: PLC0415 - loads SQLAlchemy

        async def act(letter: DeadLetterObject, tables: ConsumedTables, letters: "DeadLetters") -> str:
            if letter.body is not None and len(tables.pipelines) > 1:
                raise Misconfigured(
                    f"The message of {letter.unit} came from the queue {letter.queue}, and the configuration has "
                    f"several pipelines. Say which one with --pipeline: {', '.join(tables.pipelines)}."
                )
            await replay_letter(
                letter, letters=letters, state=tables.state, queue=tables.queue, accepted=tables.accepted
            )
            return "replayed"

        with open_tables(config, pipeline) as tables:
            _change(tables, table, ids, act, as_json=as_json)

    @app.command()
    def drop(
        config: ConfigArgument,
        ids: LetterIds,
        *,
        pipeline: PipelineOption = None,
        table: TableOption = None,
        yes: Yes = False,
        as_json: AsJson = False,
    ) -> None:
        """Drop dead letters: their files are never landed, even if their messages come again. It cannot be undone.

        A letter whose file has landed meanwhile is closed as landed. An accepted batch is discarded where it was
        accepted, in discarded/v1/: it lands in this table never, also if the state is lost.

        Example: lakehead dead-letters drop files.json 5f2c8a90b1d4 --yes
        """
        from lakehead.run.dead_letter_changes import drop_letter  # noqa: PLC0415 - loads SQLAlchemy

        async def act(letter: DeadLetterObject, tables: ConsumedTables, letters: "DeadLetters") -> str:
            dropped = await drop_letter(letter, letters=letters, state=tables.state, accepted=tables.accepted)
            return letter_state(dropped)

        if not yes:
            typer.confirm(f"Drop {counted(len(set(ids)), 'dead letter')} for good?", abort=True)
        with open_tables(config, pipeline) as tables:
            _change(tables, table, ids, act, as_json=as_json)

    return app


def _print_list(found: Sequence[DeadLetterObject], names: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json({"dead_letters": [as_document(letter) for letter in found]})
        return
    rows = [
        (
            letter_id(letter.unit, letter.generation)[:ID_SHOWN],
            names.get(letter.table, letter.table),
            letter_state(letter),
            letter.last_at.isoformat(sep=" ", timespec="seconds"),
            str(letter.tries),
            letter.unit,
            letter.reason,
        )
        for letter in found
    ]
    print_table(("ID", "TABLE", "STATE", "LAST", "TRIES", "UNIT", "REASON"), rows)
    typer.echo(counted(len(found), "dead letter"))


def _print_fields(found: Sequence[DeadLetterObject], *, as_json: bool) -> None:
    if as_json:
        print_json({"dead_letters": [as_document(letter) for letter in found]})
        return
    for letter in found:
        for field, value in as_document(letter).items():
            typer.echo(f"{field}: {printable(str(value))}")
        typer.echo()


def letter_state(letter: DeadLetterObject) -> str:
    """The state of a letter: open, replayed, landed or dropped."""
    if letter.closed is not None:
        return letter.closed.how
    return "open" if letter.replayed_at is None else "replayed"


def as_document(letter: DeadLetterObject) -> dict[str, object]:
    """A letter as JSON: its id, its state, and what is stored."""
    stored: dict[str, object] = msgspec.to_builtins(letter)
    return {"id": letter_id(letter.unit, letter.generation), "state": letter_state(letter), **stored}


async def listed(
    tables: ConsumedTables, table: str | None, *, closed: bool = False, limit: int | None = None
) -> tuple[list[DeadLetterObject], list[Unreadable]]:
    """The dead letters of a table, or of all tables and those without one; and what could not be read."""
    found: list[DeadLetterObject] = []
    errors: list[Unreadable] = []
    async for letter in _every(tables, table):
        if isinstance(letter, Unreadable):
            errors.append(letter)
        elif closed or letter.closed is None:
            found.append(letter)
            if len(found) == limit:
                break
    return found, errors


async def chosen(tables: ConsumedTables, table: str | None, names: Sequence[str]) -> list[DeadLetterObject]:
    """The letters of these ids, beginnings of ids, or units, in the order given; open and closed.

    Raises `Misconfigured` if a name matches none, or several.
    """
    matches: dict[str, list[DeadLetterObject]] = {name: [] for name in names}
    async for letter in _every(tables, table):
        if isinstance(letter, Unreadable):
            continue
        for name, found in matches.items():
            by_id = len(name) >= SHORTEST_ID and letter_id(letter.unit, letter.generation).startswith(name)
            if by_id or letter.unit == name:
                found.append(letter)
    for name, found in matches.items():
        if len(found) != 1:
            many = "no dead letter" if not found else f"{len(found)} dead letters"
            raise Misconfigured(
                f"{name!r} is the id or unit of {many}. Give a whole id"
                + (" and --table" if found else "")
                + ", as you see them with: lakehead dead-letters list CONFIG --json"
            )
    return [found[0] for found in matches.values()]


async def _every(tables: ConsumedTables, table: str | None) -> AsyncIterator[DeadLetterObject | Unreadable]:
    from lakehead.lake.dead_letters import DeadLetters  # noqa: PLC0415 - loads SQLAlchemy

    letters = DeadLetters(tables.store)
    places = list(tables.named(table).values()) + ([NO_TABLE] if table is None else [])
    for place in places:
        async for letter in letters.list(place):
            yield letter


def _change(tables: ConsumedTables, table: str | None, ids: Sequence[str], act: _Act, *, as_json: bool) -> None:
    """Do the same to every letter. What was done is printed even if the next one fails."""
    done: dict[str, str] = {}

    async def change_all() -> None:
        from lakehead.lake.dead_letters import DeadLetters  # noqa: PLC0415 - loads SQLAlchemy

        for letter in await chosen(tables, table, list(dict.fromkeys(ids))):
            done[letter.unit] = await act(letter, tables, DeadLetters(tables.store))

    try:
        asyncio.run(change_all())
    finally:
        if as_json:
            print_json({"changed": done})
        else:
            for unit, state in done.items():
                typer.echo(printable(f"{unit} is {state}"))
