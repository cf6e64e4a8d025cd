"""What goes wrong with a source: one sentence that says what to do, and never the password."""

import traceback
from pathlib import Path

import pytest

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.source.dialects import open_source, parse_source_url, read_part
from lakehead.source.mysql_source import MySQLSource
from lakehead.source.port import Query, ReadPart
from lakehead.source.postgresql_source import PostgreSQLSource
from lakehead.source.source_settings import SourceSettings
from tests.servers.mariadb import MariaDB
from tests.servers.ports import free_ports
from tests.servers.postgres import Postgres
from tests.support.source_support import Database, skewed

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]

CANARY = "c4nary/p:w@d#%"


def _raised(settings: SourceSettings) -> LakeheadError:
    with pytest.raises(LakeheadError) as raised:
        open_source(settings)
    _no_canary(raised.value, settings)
    return raised.value


def _no_canary(error: BaseException, settings: SourceSettings) -> None:
    """The password is nowhere that a log would show."""
    told = "".join(traceback.format_exception(error)) + repr(error) + repr(settings) + str(settings)
    chain: BaseException | None = error
    while chain is not None:
        told += repr(chain) + repr(chain.args)
        chain = chain.__cause__ or chain.__context__
    for secret in (CANARY, "c4nary"):
        assert secret not in told


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_wrong_password_a_wrong_database_and_a_host_out_of_reach_are_one_sentence_each(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Postgres | MariaDB = request.getfixturevalue("postgres" if kind == "postgresql" else "mariadb")
    database: Database = request.getfixturevalue(kind)
    password = {"password": database.settings.password or ""}
    url = f"{kind}://lakehead@127.0.0.1:{server.port}"

    wrong = _raised(parse_source_url(f"{url}/{database.settings.database}", password=CANARY))
    assert isinstance(wrong, Misconfigured)
    assert "refused user 'lakehead' or the password" in str(wrong)

    absent = _raised(parse_source_url(f"{url}/nothing", **password))
    assert isinstance(absent, Misconfigured)
    assert "no database 'nothing'" in str(absent)

    for place in (f"127.0.0.1:{free_ports(1)[0]}", "no-such-host.invalid:1234"):
        away = _raised(parse_source_url(f"{kind}://lakehead@{place}/x", password=CANARY))
        assert isinstance(away, Unavailable)
        assert "cannot be reached" in str(away)
        assert "\n" not in str(away)


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_task_that_is_refused_says_so_at_once_and_without_the_password(
    kind: str, request: pytest.FixtureRequest
) -> None:
    database: Database = request.getfixturevalue(kind)
    name = skewed(database, 10)
    [part] = database.source.parts(Query(table=database.table(name)), 1)
    settings = parse_source_url(database.url, password=CANARY)
    refused = ReadPart(settings=settings, table=name, columns=part.columns, relation=part.relation, where="")

    with pytest.raises(Misconfigured, match="refused user") as raised:
        list(read_part(refused))
    _no_canary(raised.value, settings)
    assert "c4nary" not in repr(refused)

    database.run(f"DROP TABLE {name}")
    with pytest.raises(LakeheadError, match=name):
        list(read_part(part))


def test_a_snapshot_that_has_ended_is_no_reason_to_read_without_one(postgresql: Database) -> None:
    name = skewed(postgresql, 10)
    with postgresql.source.snapshot() as snapshot:
        [part] = postgresql.source.parts(Query(table=postgresql.table(name)), 1, snapshot)

    with pytest.raises(Unavailable, match=r"snapshot .* has ended"):
        list(read_part(part))


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_lost_connection_stays_a_server_out_of_reach_however_often_it_is_used(
    kind: str, request: pytest.FixtureRequest
) -> None:
    database: Database = request.getfixturevalue(kind)
    opened = PostgreSQLSource if kind == "postgresql" else MySQLSource
    source = opened(database.settings)
    [(session,)] = source.rows("SELECT pg_backend_pid()" if kind == "postgresql" else "SELECT connection_id()")
    database.run(f"SELECT pg_terminate_backend({session}, 10000)" if kind == "postgresql" else f"KILL {session}")

    for _ in range(3):  # a planner does without a count that fails, and goes on with the same connection
        with pytest.raises(Unavailable, match="cannot be reached"):
            source.now()
    source.close()


def test_a_missing_file_and_one_that_is_no_database_are_one_sentence_each(tmp_path: Path) -> None:
    assert "There is no readable file" in str(_raised(parse_source_url(f"sqlite:///{tmp_path}/none.db")))
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at as one " * 20)
    assert "is not a SQLite database" in str(_raised(parse_source_url(f"sqlite:///{tmp_path}/text.db")))
