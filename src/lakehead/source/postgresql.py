"""The PostgreSQL dialect."""

from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from lakehead.source.dialect import Dialect, DriverProblem, JdbcAccess
from lakehead.source.source_settings import APPLICATION_NAME, SourceSettings, parse_server_url
from lakehead.spark.coordinates import driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lakehead.source.port import ReadPart, Source

TEXT_SETTINGS = (
    "SET LOCAL TIME ZONE 'UTC'",
    "SET LOCAL datestyle = 'ISO'",
    "SET LOCAL intervalstyle = 'postgres'",
    "SET LOCAL extra_float_digits = 3",  # all digits of a float
    "SET LOCAL bytea_output = 'hex'",
)
"""SQL for the settings that the text of a value depends on, whatever a role or a database has set."""

_NO_TIMEOUTS = """
SELECT set_config(name, '0', {local}) FROM pg_settings WHERE name IN
('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')
"""


def no_timeouts(*, local: bool) -> str:
    """Return SQL that turns off timeouts of the session, or with `local` of the transaction.

    A snapshot is held and a table is read as long as it takes, whatever a role or a database has set. Settings that the
    server's version lacks are left out.
    """
    return _NO_TIMEOUTS.format(local=str(local).lower()).strip().replace("\n", " ")


def _open(settings: SourceSettings, _: "SparkSession | None") -> "Source":
    from lakehead.source.postgresql_source import PostgreSQLSource  # noqa: PLC0415 - only where it is used

    return PostgreSQLSource(settings)


def _read(part: "ReadPart") -> "Iterator[pa.RecordBatch]":
    from lakehead.source import postgresql_reader  # noqa: PLC0415 - only where it is used

    return postgresql_reader.read(part)


def _jdbc_url(settings: SourceSettings) -> str:
    given = {"connectTimeout": settings.connect_timeout, "ApplicationName": APPLICATION_NAME, **dict(settings.options)}
    place = f"{settings.authority}/{quote(settings.database, safe='')}"
    return f"jdbc:postgresql://{place}?{urlencode(given, quote_via=quote)}"


def _session_statement(part: "ReadPart") -> str:
    shared = f"; SET TRANSACTION SNAPSHOT '{part.snapshot}'" if part.snapshot else ""
    isolation = f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY{shared}"
    return "; ".join((isolation, *TEXT_SETTINGS, no_timeouts(local=True)))


POSTGRESQL = Dialect(
    name="postgresql",
    url_prefixes=("postgresql://", "postgres://"),
    url_form="postgresql://user@host:port/database",
    sqlglot="postgres",
    parse_url=parse_server_url,
    open=_open,
    read=_read,
    jdbc=JdbcAccess(
        url=_jdbc_url,
        driver="org.postgresql.Driver",
        jar=driver("jdbc:postgresql:"),
        session_statement=_session_statement,
    ),
    takes_properties=True,
    problem_texts={
        DriverProblem.ACCESS_DENIED: (
            "password authentication failed",
            r"no pg_hba\.conf entry",
            "no password supplied",
            "not permitted to log in",
        ),
        DriverProblem.NO_DATABASE: (r'database ".*" does not exist',),
        DriverProblem.SNAPSHOT_GONE: ("invalid snapshot identifier", r'snapshot "[^"]*"\s+does not exist'),
        DriverProblem.UNREACHABLE: (
            "could not translate host name",
            "server closed the connection",
            "the connection is closed",
            "starting up",
            "shutting down",
            "too many clients",
            "remaining connection slots",
            "terminating connection",
        ),
    },
    lineage_scheme="postgres",
)
