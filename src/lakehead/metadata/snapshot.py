"""Snapshots of tables in a source's catalogue, and how they are stored."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


class DamagedSnapshot(Exception):
    """A stored snapshot cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSnapshot:
    """One column of a table in the source."""

    name: str
    declared: str
    """The declared type, as the server writes it."""

    nullable: bool = True
    number: int | None = None
    """Its permanent number in the table, which it keeps when it is renamed; None if the server has none."""

    stored: str | None = None
    """The type that its values have in the lakehouse; None if it was not loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """A table in the source's catalogue. It has names and types, and no value of any row."""

    schema: str | None
    name: str
    columns: tuple[ColumnSnapshot, ...]
    """In the source's order."""

    primary_key: tuple[str, ...] = ()
    identity: str | None = None
    """The server's permanent id of the table: another table of the same name has another. None if it has none."""

    def column(self, name: str) -> ColumnSnapshot | None:
        """A column by its exact name; None if there is none."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table of the source as it was when it was last loaded."""

    table: TableSnapshot
    gone: tuple[str, ...] = ()
    """Columns in the lakehouse that the source did not have any more, which was accepted."""


@runtime_checkable
class MetadataCapableEndpoint(Protocol):
    """A source that can snapshot many tables of a schema at once."""

    def snapshot_tables(self, schema: str | None, names: Sequence[str]) -> tuple[TableSnapshot, ...]:
        """Snapshot the tables with these names, in any letter case, in a number of queries that is always the same.

        Without a schema: those that the connection finds without one. Tables that do not exist are left out.
        """
        ...


def to_json(table: TableSnapshot) -> dict[str, object]:
    """The stored form of a snapshot."""
    return {
        "schema": table.schema,
        "name": table.name,
        "identity": table.identity,
        "primary_key": list(table.primary_key),
        "columns": [
            {
                "name": column.name,
                "declared": column.declared,
                "nullable": column.nullable,
                "number": column.number,
                "stored": column.stored,
            }
            for column in table.columns
        ],
    }


def from_json(given: Any) -> TableSnapshot:
    """A snapshot from its stored form. Raises `DamagedSnapshot`."""
    try:
        columns = tuple(
            ColumnSnapshot(
                name=_text(column["name"]),
                declared=_text(column["declared"]),
                nullable=_flag(column["nullable"]),
                number=None if column["number"] is None else int(column["number"]),
                stored=None if column["stored"] is None else _text(column["stored"]),
            )
            for column in given["columns"]
        )
        return TableSnapshot(
            schema=None if given["schema"] is None else _text(given["schema"]),
            name=_text(given["name"]),
            identity=None if given["identity"] is None else _text(given["identity"]),
            primary_key=tuple(_text(name) for name in given["primary_key"]),
            columns=columns,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedSnapshot(f"it is not a snapshot ({type(error).__name__})") from None


def parsed(written: bytes) -> Any:
    """The JSON value of a file. Raises `DamagedSnapshot`."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        raise DamagedSnapshot("it is not JSON") from None


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given


def _flag(given: object) -> bool:
    if not isinstance(given, bool):
        raise TypeError
    return given
