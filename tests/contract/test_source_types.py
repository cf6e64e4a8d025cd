"""Every type that a server has: exactly what the server itself says, or refused with the column's name."""

# ruff: noqa: S608, DTZ001 - tests write their SQL in place, about tables of their own, and of moments without a zone

from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from lakehead.source.dialects import open_source, parse_source_url
from lakehead.source.errors import NotExact
from lakehead.source.port import EVERY_REFUSED, Overrides, Query, TableName
from tests.servers.postgres import Postgres
from tests.support.source_support import AS_TEXT, Database, all_rows, rows_of, wilful
from tests.support.source_values import (
    MYSQL,
    MYSQL_REFUSED,
    POSTGRESQL,
    POSTGRESQL_REFUSED,
    SQLITE,
    SQLITE_REFUSED,
    Case,
)

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]


@pytest.fixture(scope="module", autouse=True)
def types(postgresql: Database) -> None:
    postgresql.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    postgresql.run("CREATE TYPE pair AS (a integer, b text)")
    postgresql.run("CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE > 0)")
    postgresql.run("CREATE DOMAIN dear_price AS price CHECK (VALUE > 1)")


def test_every_exact_type_of_postgresql_is_what_the_server_says(postgresql: Database) -> None:
    _every_value_arrives(postgresql, POSTGRESQL)


def test_every_exact_type_of_mysql_is_what_the_server_says(mysql: Database) -> None:
    _every_value_arrives(mysql, MYSQL)


def test_every_exact_type_of_sqlite_is_what_the_file_says(sqlite: Database) -> None:
    _every_value_arrives(sqlite, SQLITE)


def _every_value_arrives(database: Database, cases: list[Case]) -> None:
    """One table with a column for each type: first its NULLs, then its edges."""
    name, longest = database.name(), max(len(values) for _, _, values in cases)
    columns = ", ".join(f"c{number} {declared} NULL" for number, (declared, _, _) in enumerate(cases))
    database.run(f"CREATE TABLE {name} (id integer, {columns})")
    for row in range(-1, longest):
        values = [list(given)[row] if 0 <= row < len(given) else "NULL" for _, _, given in cases]
        database.run(f"INSERT INTO {name} VALUES ({row}, {', '.join(values)})")

    table = database.table(name)
    read = all_rows(database, Query(table=table)).sort_by("id")

    assert [column.refused for column in table.columns] == [None] * len(table.columns)
    assert {name: str(read.schema.field(name).type) for name in read.schema.names if name != "id"} == {
        f"c{number}": str(arrow) for number, (_, arrow, _) in enumerate(cases)
    }
    for number, (declared, _, given) in enumerate(cases):
        got = read[f"c{number}"].to_pylist()
        wanted = [None, *given.values(), *[None] * (longest - len(given))]
        assert ["nan" if str(value) == "nan" else value for value in got] == wanted, declared


def test_a_type_of_postgresql_without_an_exact_counterpart_is_refused_or_is_the_servers_text(
    postgresql: Database,
) -> None:
    name = postgresql.name()
    declared = list(POSTGRESQL_REFUSED)
    columns = ", ".join(f"c{number} {kind}" for number, kind in enumerate(declared))
    postgresql.run(f"CREATE TABLE {name} ({columns})")
    postgresql.run(f"INSERT INTO {name} VALUES ({', '.join(POSTGRESQL_REFUSED.values())})")

    table = postgresql.table(name)
    assert {column.declared for column in table.columns if column.refused is None} == set()
    with pytest.raises(NotExact) as refused:
        table.readable()
    for number in range(len(declared)):
        assert f"Column 'c{number}' of type" in str(refused.value)
    assert str(refused.value).count("'as_text'") == len(declared)

    read = all_rows(postgresql, Query(table=postgresql.table(name, Overrides(as_text=frozenset({EVERY_REFUSED})))))
    postgresql.run("SET datestyle = 'ISO'")
    said = postgresql.run(f"SELECT {', '.join(f'c{number}::text' for number in range(len(declared)))} FROM {name}")
    assert [tuple(row.values()) for row in read.to_pylist()] == said


@pytest.mark.parametrize("kind", ["mysql", "sqlite"])
def test_a_type_without_an_exact_counterpart_is_refused_or_text(kind: str, request: pytest.FixtureRequest) -> None:
    database: Database = request.getfixturevalue(kind)
    cases = MYSQL_REFUSED if kind == "mysql" else SQLITE_REFUSED
    name = database.name()
    columns = ", ".join(f"c{number} {declared}" for number, declared in enumerate(cases))
    database.run(f"CREATE TABLE {name} ({columns})")
    database.run(f"INSERT INTO {name} VALUES ({', '.join(value for value, _ in cases.values())})")

    table = database.table(name)
    with pytest.raises(NotExact) as refused:
        table.readable()
    assert [f"Column 'c{number}' of type" in str(refused.value) for number in range(len(cases))] == [True] * len(cases)

    read = all_rows(database, Query(table=database.table(name, Overrides(as_text=frozenset({EVERY_REFUSED})))))
    assert list(read.to_pylist()[0].values()) == [text for _, text in cases.values()]


@pytest.mark.parametrize(
    ("kind", "declared", "value"),
    [
        ("postgresql", "numeric(10,2)", "'NaN'"),
        ("postgresql", "date", "'infinity'"),
        ("postgresql", "date", "'-infinity'"),
        ("postgresql", "date", "'0044-03-15 BC'"),
        ("postgresql", "date", "'10000-01-01'"),
        ("postgresql", "timestamp", "'infinity'"),
        ("postgresql", "timestamp", "'-infinity'"),
        ("postgresql", "timestamp", "'294276-12-31'"),
        ("postgresql", "timestamptz", "'infinity'"),
        ("postgresql", "timestamptz", "'0001-01-01 00:00:00+14'"),
        ("mysql", "date", "'0000-00-00'"),
        ("mysql", "date", "'2020-00-00'"),
        ("mysql", "datetime(6)", "'0000-00-00'"),
        ("mysql", "timestamp NULL", "'0000-00-00'"),
        ("sqlite", "INTEGER", "'text'"),
        ("sqlite", "INTEGER", "1.5"),
        ("sqlite", "REAL", "'text'"),
        ("sqlite", "TEXT", "x'00'"),
        ("sqlite", "BLOB", "'text'"),
        ("sqlite", "BOOLEAN", "2"),
        ("sqlite", "DATE", "'31.3.2024'"),
        ("sqlite", "DATE", "1711843200"),
        ("sqlite", "DATETIME", "'2024-03-31 02:30:00.1234567'"),
        ("sqlite", "DECIMAL(10,2)", "0.1 + 0.2"),
        ("sqlite", "DECIMAL(10,2)", "'many'"),
        ("sqlite", "DECIMAL(5,2)", "1000"),
    ],
)
def test_a_value_that_its_type_cannot_carry_stops_the_read_and_names_the_column_or_is_text(
    kind: str, declared: str, value: str, request: pytest.FixtureRequest
) -> None:
    database: Database = request.getfixturevalue(kind)
    name = database.name()
    if kind == "mysql":
        database.run("SET sql_mode = ''")
    database.run(f"CREATE TABLE {name} (id integer, {database.source.quote('the value')} {declared})")
    database.run(f"INSERT INTO {name} VALUES (1, NULL), (2, {value})")

    with pytest.raises(NotExact, match=r"column 'the value' of type .*'as_text'"):
        all_rows(database, Query(table=database.table(name)))

    table = database.table(name, Overrides(as_text=frozenset({"the value"})))
    assert all_rows(database, Query(table=table))["the value"].to_pylist()[1] is not None


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_number_beyond_38_digits_is_a_decimal_where_the_config_gives_one_that_it_fits(
    kind: str, request: pytest.FixtureRequest
) -> None:
    database: Database = request.getfixturevalue(kind)
    name = database.name()
    database.run(f"CREATE TABLE {name} (id integer, n decimal(60,10), m decimal(60,10))")
    database.run(f"INSERT INTO {name} VALUES (1, 1.5, {'9' * 39}), (2, {'9' * 36}.25, 1)")
    overrides = Overrides(decimals={"n": (38, 2), "m": (38, 2)})

    fits = Query(table=database.table(name, overrides), columns=("n",))
    assert sorted(all_rows(database, fits)["n"].to_pylist()) == [Decimal("1.50"), Decimal(f"{'9' * 36}.25")]
    with pytest.raises(NotExact, match=r"column 'm' of type .* has the value '9999"):
        all_rows(database, Query(table=database.table(name, overrides)))


def test_values_as_text_do_not_depend_on_the_settings_of_a_database(postgres: Postgres) -> None:
    with closing(open_source(parse_source_url(wilful(postgres)))) as source:
        table = source.describe_table(TableName("t"), Overrides(as_text=frozenset(AS_TEXT)))
        [part] = source.parts(Query(table=table), 1)

        assert rows_of(part).to_pylist() == [AS_TEXT]


def test_an_unbounded_number_of_30_digits_is_exact_as_a_decimal_and_as_text(postgresql: Database) -> None:
    name = postgresql.name()
    postgresql.run(f"CREATE TABLE {name} (n numeric)")
    postgresql.run(f"INSERT INTO {name} VALUES (123456789012345678901234567890), ('NaN')")

    with pytest.raises(NotExact, match="value 'NaN'"):
        all_rows(postgresql, Query(table=postgresql.table(name, Overrides(decimals={"n": (38, 0)}))))
    text = all_rows(postgresql, Query(table=postgresql.table(name, Overrides(as_text=frozenset({"n"})))))
    assert text["n"].to_pylist() == ["123456789012345678901234567890", "NaN"]


def test_moments_without_a_zone_stay_whatever_the_servers_zone_and_moments_with_one_are_utc(
    postgresql: Database,
    mysql: Database,
) -> None:
    database = postgresql.url.rpartition("/")[2]
    postgresql.run(f"ALTER DATABASE {database} SET timezone = 'America/New_York'")
    mysql.run("SET GLOBAL time_zone = '-05:00'")
    try:
        for each, zoned in ((postgresql, "timestamptz"), (mysql, "timestamp(6)")):
            name = each.name()
            each.run(
                f"CREATE TABLE {name} (a timestamp NULL)" if each is postgresql else f"CREATE TABLE {name} (a datetime)"
            )
            each.run(f"INSERT INTO {name} VALUES ('2024-03-31 02:30:00')")
            each.run(f"ALTER TABLE {name} ADD z {zoned} NULL")
            each.run("SET time_zone = '+00:00'" if each is mysql else "SET timezone = 'UTC'")
            each.run(f"UPDATE {name} SET z = '2024-03-31 07:30:00'")
            read = all_rows(each, Query(table=each.table(name))).to_pylist()
            assert read == [{"a": datetime(2024, 3, 31, 2, 30), "z": datetime(2024, 3, 31, 7, 30, tzinfo=UTC)}]
    finally:
        postgresql.run(f"ALTER DATABASE {database} RESET timezone")
        mysql.run("SET GLOBAL time_zone = 'SYSTEM'")
