"""Every kind of source snapshots many tables in one query, and says of each what it says when it describes it."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lakehead.metadata.snapshot import MetadataCapableEndpoint, TableSnapshot
from lakehead.source.port import TableName
from lakehead.source.table_snapshots import snapshot_of
from tests.support.source_support import Database

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]


def snapshots(database: Database, *names: str, schema: str | None = None) -> dict[str, TableSnapshot]:
    assert isinstance(database.source, MetadataCapableEndpoint)
    return {each.name: each for each in database.source.snapshot_tables(schema, names)}


def test_a_snapshot_says_what_a_description_says(database: Database) -> None:
    names = [database.name() for _ in range(3)]
    for name in names:
        key = "PRIMARY KEY (b, id)" if name != names[2] else "UNIQUE (id)"
        database.run(f"CREATE TABLE {name} (id integer NOT NULL, gone integer, b varchar(7) NOT NULL, c text, {key})")
        if database.kind != "sqlite":
            database.run(f"ALTER TABLE {name} DROP COLUMN gone")
    database.run(f"CREATE VIEW {names[0]}_view AS SELECT id, b FROM {names[0]}")

    found = snapshots(database, *(name.upper() for name in names), f"{names[0]}_view", "no_such_table")

    assert set(found) == {*names, f"{names[0]}_view"}
    for name, snapshot in found.items():
        described = snapshot_of(database.source.describe_table(TableName(name)))
        assert replace(snapshot, schema=None) == replace(described, schema=None)
    assert found[names[0]].primary_key == ("b", "id")
    assert found[names[2]].primary_key == ()


def test_any_number_of_tables_is_one_query(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [database.name() for _ in range(4)]
    for name in names:
        database.run(f"CREATE TABLE {name} (id integer PRIMARY KEY)")
    asked, rows = list[str](), type(database.source).rows  # type: ignore[attr-defined] # of each source

    def counted(self: object, sql: str) -> Sequence[tuple[Any, ...]]:
        asked.append(sql)
        found: Sequence[tuple[Any, ...]] = rows(self, sql)
        return found

    monkeypatch.setattr(type(database.source), "rows", counted)

    assert len(snapshots(database, *names)) == 4
    assert len(asked) == 1


def test_a_renamed_column_keeps_its_number_and_a_table_made_anew_is_another(postgresql: Database) -> None:
    name = postgresql.name()
    postgresql.run(f"CREATE TABLE {name} (id integer, a text)")
    before = snapshots(postgresql, name)[name]
    postgresql.run(f"ALTER TABLE {name} RENAME COLUMN a TO b")
    renamed = snapshots(postgresql, name)[name]
    postgresql.run(f"DROP TABLE {name}")
    postgresql.run(f"CREATE TABLE {name} (id integer, b text)")
    anew = snapshots(postgresql, name)[name]

    assert before.columns[1].number == renamed.columns[1].number == 2
    assert before.identity == renamed.identity != anew.identity


def test_a_schema_that_is_named_is_looked_into(postgresql: Database) -> None:
    name = postgresql.name()
    postgresql.run(f'CREATE SCHEMA "Other_{name}"')
    postgresql.run(f'CREATE TABLE "Other_{name}".{name} (id integer)')

    assert set(snapshots(postgresql, name, schema=f"other_{name}")) == {name}
    assert snapshots(postgresql, name) == {}
