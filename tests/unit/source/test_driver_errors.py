"""What an error of a driver means, by its code or its text, for each dialect."""

from dataclasses import replace

import pytest

from lakehead.source.dialect import DriverProblem
from lakehead.source.dialects import parse_source_url
from lakehead.source.driver_errors import problem_of, translate_error
from lakehead.source.errors import SourceFailed
from lakehead.source.source_settings import SourceSettings
from lakehead.source.tls import Tls

POSTGRESQL = parse_source_url("postgresql://me@db/shop", password="c4nary")
MYSQL = parse_source_url("mysql://me@db/shop", password="c4nary")
SQLITE = parse_source_url("sqlite:///shop.db")


class FromServer(Exception):
    def __init__(self, *args: object, sqlstate: str | None = None) -> None:
        super().__init__(*args)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("settings", "error", "problem"),
    [
        (POSTGRESQL, FromServer("x", sqlstate="28P01"), DriverProblem.ACCESS_DENIED),
        (POSTGRESQL, FromServer('FATAL: password authentication failed for user "me"'), DriverProblem.ACCESS_DENIED),
        (POSTGRESQL, FromServer("no pg_hba.conf entry for host"), DriverProblem.ACCESS_DENIED),
        (POSTGRESQL, FromServer("x", sqlstate="3D000"), DriverProblem.NO_DATABASE),
        (POSTGRESQL, FromServer('FATAL:  database "nothing" does not exist'), DriverProblem.NO_DATABASE),
        (POSTGRESQL, FromServer("x", sqlstate="42501"), DriverProblem.NO_PRIVILEGE),
        (POSTGRESQL, FromServer('invalid snapshot identifier: "1"', sqlstate="22023"), DriverProblem.SNAPSHOT_GONE),
        (POSTGRESQL, FromServer('snapshot "00000003-1"\ndoes not exist'), DriverProblem.SNAPSHOT_GONE),
        (POSTGRESQL, FromServer("x", sqlstate="57P01"), DriverProblem.UNREACHABLE),
        (POSTGRESQL, FromServer("x", sqlstate="40001"), DriverProblem.UNREACHABLE),
        (POSTGRESQL, FromServer("the database system is starting up"), DriverProblem.UNREACHABLE),
        (POSTGRESQL, OSError(111, "Connection refused"), DriverProblem.UNREACHABLE),
        (POSTGRESQL, FromServer("division by zero", sqlstate="22012"), None),
        (POSTGRESQL, FromServer('relation "snapshots" does not exist', sqlstate="42P01"), None),
        (POSTGRESQL, FromServer('column "snapshot_id" does not exist', sqlstate="42703"), None),
        (MYSQL, FromServer(1045, "Access denied", sqlstate="28000"), DriverProblem.ACCESS_DENIED),
        (MYSQL, RuntimeError("MySqlError { ERROR 1045 (28000): Access denied }"), DriverProblem.ACCESS_DENIED),
        (MYSQL, FromServer(1049, "Unknown database"), DriverProblem.NO_DATABASE),
        (MYSQL, FromServer(1143, "SELECT command denied", sqlstate="42000"), DriverProblem.NO_PRIVILEGE),
        (MYSQL, FromServer(1213, "Deadlock"), DriverProblem.UNREACHABLE),
        (MYSQL, FromServer(1205, "Lock wait"), DriverProblem.UNREACHABLE),
        (MYSQL, FromServer(2013, "Lost connection"), DriverProblem.UNREACHABLE),
        (MYSQL, FromServer(1158, "packet", sqlstate="08S01"), DriverProblem.UNREACHABLE),
        (MYSQL, FromServer(0, ""), DriverProblem.UNREACHABLE),
        (MYSQL, FromServer(1064, "You have an error", sqlstate="42000"), None),
        (MYSQL, FromServer(3100, "certificate"), None),  # without TLS settings, nobody asked for trust
        (SQLITE, Exception("unable to open database file"), DriverProblem.NO_FILE),
        (SQLITE, Exception("INTERNAL: [SQLite] Failed to open shop.db"), DriverProblem.NO_FILE),
        (SQLITE, Exception("file is not a database"), DriverProblem.NOT_A_DATABASE),
        (SQLITE, Exception("database is locked"), DriverProblem.UNREACHABLE),
        (SQLITE, Exception("no such table: x"), None),
    ],
)
def test_an_error_is_known_by_its_code_or_its_text(
    settings: SourceSettings, error: Exception, problem: DriverProblem | None
) -> None:
    assert problem_of(error, settings) is problem


def test_a_server_that_is_not_trusted_is_told_apart_from_one_that_is_out_of_reach() -> None:
    error = FromServer(2026, "SSL connection error: certificate verify failed")

    assert problem_of(error, MYSQL) is DriverProblem.UNREACHABLE
    for said in (error, FromServer(2003, "Can't connect (unable to get local issuer certificate.)")):
        assert problem_of(said, replace(MYSQL, tls=Tls(ca="ca.pem"))) is DriverProblem.UNTRUSTED


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (FromServer(1142, "SELECT command denied for table `shop`.`certificates`"), DriverProblem.NO_PRIVILEGE),
        (FromServer(1142, "SELECT command denied for table 'certificate'"), DriverProblem.NO_PRIVILEGE),
        (FromServer(1054, "Unknown column 'certificate' in 'SELECT'"), None),
        (RuntimeError("MySqlError { ERROR 1146 (42S02): Table 'shop.certificate' doesn't exist }"), None),
    ],
)
def test_a_table_or_column_of_certificates_is_no_question_of_trust(
    error: Exception, problem: DriverProblem | None
) -> None:
    assert problem_of(error, replace(MYSQL, tls=Tls(ca="ca.pem"))) is problem


def test_an_unknown_error_keeps_the_first_line_of_the_driver_without_the_password() -> None:
    error = translate_error(FromServer(1064, "near 'c4nary'\nmore"), MYSQL)

    assert isinstance(error, SourceFailed)
    assert str(error) == "mysql://db/shop refused a statement (near '***')."
