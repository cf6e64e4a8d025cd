"""The dialect of MySQL and MariaDB."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lakehead.errors import Misconfigured
from lakehead.source.dialect import Dialect, DriverProblem, JdbcAccess, problem_by_sqlstate
from lakehead.source.source_settings import SourceSettings, parse_server_url
from lakehead.source.tls import mariadb_jdbc_properties
from lakehead.spark.coordinates import driver
from lakehead.state import mysql_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lakehead.source.port import ReadPart, Source

_NO_LIMIT = 18_446_744_073_709_551_615

SESSION = (
    "SET time_zone = '+00:00'",
    "SET sql_mode = 'ANSI_QUOTES'",
    "SET NAMES utf8mb4",
    f"SET sql_select_limit = {_NO_LIMIT}",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
)
"""What every connection runs first, whatever the server's settings are: timestamps are UTC, string literals mean the
same, no result is cut off, and no row is read that is not committed."""

QUOTE_MARK = "`"

_PROBLEMS = {
    **dict.fromkeys(mysql_errors.ACCESS_DENIED, DriverProblem.ACCESS_DENIED),
    **dict.fromkeys(mysql_errors.NO_DATABASE, DriverProblem.NO_DATABASE),
    **dict.fromkeys(mysql_errors.NO_PRIVILEGE, DriverProblem.NO_PRIVILEGE),
    **dict.fromkeys(
        mysql_errors.UNREACHABLE | mysql_errors.READ_ONLY | mysql_errors.DEADLOCK | mysql_errors.LOCK_TIMEOUT,
        DriverProblem.UNREACHABLE,
    ),
}
_NUMBER_IN_TEXT = re.compile(r"ERROR (\d{4}) \(")


def _problem_of(error: BaseException) -> DriverProblem | None:
    """PyMySQL's errors begin with the server's number; ConnectorX has it in its text."""
    number = error.args[0] if error.args and not isinstance(error, OSError) else None
    if not isinstance(number, int):
        found = _NUMBER_IN_TEXT.search(str(error))
        number = int(found.group(1)) if found else -1
    return _PROBLEMS.get(number) or problem_by_sqlstate(error)


def _parse_url(dialect: str, url: str, user: str | None, password: str | None) -> SourceSettings:
    settings = parse_server_url(dialect, url, user, password)
    if settings.options:
        raise Misconfigured(
            f"The URL of the source {settings} has options after '?', which MySQL does not support. Give TLS as tls."
        )
    return settings


def _open(settings: SourceSettings, _: "SparkSession | None") -> "Source":
    from lakehead.source.mysql_source import MySQLSource  # noqa: PLC0415 - only where it is used

    return MySQLSource(settings)


def _read(part: "ReadPart") -> "Iterator[pa.RecordBatch]":
    from lakehead.source import mysql_reader  # noqa: PLC0415 - only where it is used

    return mysql_reader.read(part)


def _jdbc_url(settings: SourceSettings) -> str:
    # MariaDB's driver connects to both, but only under this scheme does Spark know how names are quoted.
    place = f"{settings.authority}/{settings.database}"
    return f"jdbc:mysql://{place}?permitMysqlScheme&connectTimeout={settings.connect_timeout * 1000}"


def _jdbc_properties(settings: SourceSettings) -> Mapping[str, str]:
    return {
        "transactionIsolation": "REPEATABLE-READ",
        **(mariadb_jdbc_properties(settings.tls) if settings.tls else {}),
    }


def _session_statement(_: "ReadPart") -> str:
    return f"SET time_zone = '+00:00', sql_mode = 'ANSI_QUOTES', sql_select_limit = {_NO_LIMIT}, NAMES utf8mb4"


MYSQL = Dialect(
    name="mysql",
    url_prefixes=("mysql://", "mariadb://"),
    url_form="mysql://user@host:port/database",
    sqlglot="mysql",
    parse_url=_parse_url,
    open=_open,
    read=_read,
    jdbc=JdbcAccess(
        url=_jdbc_url,
        driver="org.mariadb.jdbc.Driver",
        jar=driver("jdbc:mariadb:"),
        properties=_jdbc_properties,
        session_statement=_session_statement,
    ),
    takes_tls=True,
    timestamp_has_zone=True,
    problem_of=_problem_of,
    problem_texts={
        DriverProblem.UNTRUSTED: (
            r"(?<![\w.'`])certificate(?![\w'`]|\.\w)",  # the word, and not the name of a table or column
            "ssl is required",
            "requires secure connection",
        ),
        DriverProblem.UNREACHABLE: ("lost connection", "bytes remaining on stream", "can't connect"),
    },
    lineage_scheme="mysql",
    schemas_are_databases=True,
)
