"""Schema migrations of the state database.

A new database gets the tables of `schema` and the newest version. An older one runs the steps that it lacks, in order.
A step may be interrupted anywhere and is then run again from its beginning (MariaDB commits after every statement that
changes a table), so a step checks what exists before it changes it. A released step is never changed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, inspect, select, text, update
from sqlalchemy.schema import CreateTable

from lakehead.errors import Misconfigured
from lakehead.state.consume_step import add_consume
from lakehead.state.database import Database, insert_new
from lakehead.state.schema import metadata, schema_version

FIRST = 1
_LOCK = 0x1A6E4EAD  # any number, the same in every version of ours


@dataclass(frozen=True, slots=True)
class Step:
    """The migration to a version from the one before it."""

    version: int
    what: str
    take: Callable[[Connection], None]


def _add_json(connection: Connection, table: str, column: str) -> None:
    if column not in {each["name"] for each in inspect(connection).get_columns(table)}:
        kind = "LONGTEXT" if connection.dialect.name in ("mysql", "mariadb") else "TEXT"
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} {kind}"))


def _add_read_by(connection: Connection) -> None:
    _add_json(connection, "lakehead_watermarks", "read_by")


def _add_landed_part(connection: Connection) -> None:
    _add_json(connection, "lakehead_shards", "landed_part")


STEPS: tuple[Step, ...] = (
    Step(2, "watermarks say what they were read by", _add_read_by),
    Step(3, "windows of pipelines, pauses of pruning, history of files, replays of dead letters", add_consume),
    Step(4, "how far an object has landed that is too large for one landing", _add_landed_part),
)
"""In order, from version 2 on."""


def bring_up(database: Database, steps: Sequence[Step] = STEPS) -> None:
    """Create the tables, or migrate them to the newest version. Any number of processes may do it at once."""
    if not _missing(database, database.read(_version), steps):
        return
    match database.engine.dialect.name:
        case "mysql" | "mariadb":
            database.write(_make_version)
            database.write(lambda holding: _bring_up_beside(database, holding, steps))
        case _:
            database.write(lambda connection: _bring_up_in(database, connection, steps))


def _make_version(connection: Connection) -> None:
    connection.execute(CreateTable(schema_version, if_not_exists=True))
    insert_new(connection, schema_version, [{"id": 1, "version": 0}])


def _bring_up_in(database: Database, connection: Connection, steps: Sequence[Step]) -> None:
    """Migrate in one transaction, on servers with transactional DDL: all steps are applied, or none."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    for step in _missing(database, _version(connection), steps):
        step.take(connection)
        insert_new(connection, schema_version, [{"id": 1, "version": step.version}])
        connection.execute(update(schema_version).values(version=step.version))


def _bring_up_beside(database: Database, holding: Connection, steps: Sequence[Step]) -> None:
    """Migrate over a second connection, whose DDL commits implicitly, while this one locks the version's row."""
    holding.execute(update(schema_version).values(version=schema_version.c.version))
    for step in _missing(database, _version(holding), steps):
        with database.engine.begin() as connection:
            step.take(connection)
        holding.execute(update(schema_version).values(version=step.version))


def _make_tables(connection: Connection) -> None:
    metadata.create_all(connection)
    for table in metadata.sorted_tables:
        for index in table.indexes:
            index.create(connection, checkfirst=True)  # missing if a crash came after its table was created


def _version(connection: Connection) -> int:
    """The database's version; 0 until all of its tables exist."""
    if not inspect(connection).has_table(schema_version.name):
        return 0
    return connection.execute(select(schema_version.c.version)).scalar() or 0


def _missing(database: Database, version: int, steps: Sequence[Step]) -> Sequence[Step]:
    newest = steps[-1].version if steps else FIRST
    if version > newest:
        raise Misconfigured(
            f"The state database {database.name} has version {version}, but this Lakehead supports {newest} at most. "
            "Use the newer Lakehead that migrated it."
        )
    if version == 0:
        return [Step(newest, "the tables as they are now", _make_tables)]
    return [step for step in steps if step.version > version]
