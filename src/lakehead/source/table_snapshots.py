"""Snapshots of tables, made of what a server's catalogue answers."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from lakehead.metadata.column_types import plain
from lakehead.metadata.snapshot import ColumnSnapshot, TableSnapshot
from lakehead.source.port import TableInfo


def tables_of(rows: Iterable[Sequence[Any]]) -> tuple[TableSnapshot, ...]:
    """The tables of rows of a catalogue, one for each column, those of a table together and in order.

    A row has schema, table, the table's permanent id, column, declared type, whether it is nullable, its permanent
    number, and its place in the primary key.
    """
    return tuple(_table(list(several)) for _, several in groupby(rows, key=lambda row: tuple(row[:3])))


def _table(rows: list[Sequence[Any]]) -> TableSnapshot:
    schema, name, identity = rows[0][:3]
    columns = tuple(
        ColumnSnapshot(
            name=str(column),
            declared=str(declared),
            nullable=bool(nullable),
            number=None if number is None else int(number),
        )
        for _, _, _, column, declared, nullable, number, _ in rows
    )
    key = sorted((int(place), str(column)) for _, _, _, column, _, _, _, place in rows if place is not None)
    return TableSnapshot(
        schema=None if schema is None else str(schema),
        name=str(name),
        columns=columns,
        primary_key=tuple(column for _, column in key),
        identity=identity,
    )


def snapshot_of(info: TableInfo, stored: pa.Schema | None = None) -> TableSnapshot:
    """The snapshot of a table as it was described; `stored` has the types that its columns have in the lakehouse."""
    known = {} if stored is None else {column.name: str(plain(column.type)) for column in stored}
    return TableSnapshot(
        schema=info.schema,
        name=info.name,
        columns=tuple(
            ColumnSnapshot(
                name=column.name,
                declared=column.declared,
                nullable=column.nullable,
                number=column.number,
                stored=known.get(column.name),
            )
            for column in info.columns
        ),
        primary_key=info.primary_key,
        identity=info.identity,
    )
