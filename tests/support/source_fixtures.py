"""Every kind of source, for the one suite that all of them must pass. The servers are those of `state_fixtures`."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.support.source_support import Database

KINDS = ("postgresql", "mysql", "sqlite")


@pytest.fixture(scope="module")
def postgresql(postgres: Postgres) -> Iterator[Database]:
    url = postgres.database()
    connection = postgres.connect(url.rpartition("/")[2])

    def run(sql: str) -> list[tuple[object, ...]]:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []

    database = Database("postgresql", url, run)
    yield database
    database.source.close()
    connection.close()


@pytest.fixture(scope="module")
def mysql(mariadb: MariaDB) -> Iterator[Database]:
    url = mariadb.database()
    connection = mariadb.connect(url.rpartition("/")[2])

    def run(sql: str) -> list[tuple[object, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    run("SET NAMES utf8mb4")
    database = Database("mysql", url, run)
    yield database
    database.source.close()
    connection.close()


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    file: Path = tmp_path_factory.mktemp("source") / "a file.db"
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    database = Database("sqlite", f"sqlite:///{file}", lambda sql: connection.execute(sql).fetchall())
    yield database
    database.source.close()
    connection.close()


@pytest.fixture(scope="module", params=KINDS)
def database(request: pytest.FixtureRequest) -> Database:
    """A database of each kind."""
    made: Database = request.getfixturevalue(request.param)
    return made
