"""Any part through Spark's own JDBC reader: on demand, and for databases that have no Arrow driver.

What Spark's types would round, shift or lose comes as text, and passes the same check as the Arrow reader's values: the
rows and types are the same.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

import pyarrow as pa

from lakehead.errors import Misconfigured
from lakehead.source.port import Column, ReadPart, schema_of
from lakehead.source.postgresql_session import no_timeouts
from lakehead.source.settings import READER, SourceSettings
from lakehead.source.tls import for_jdbc
from lakehead.source.values import exact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARIADB = "jdbc:mariadb:"
"""Under this scheme Spark quotes names by double quotes, which the server takes for texts unless it is told."""
_PLAIN_NUMBERS = {"tinyInt1isBit": "false", "yearIsDateType": "false"}
"""Without it drivers for MySQL make a truth value of any tinyint(1), and a day of a year."""
FETCH_ROWS = 10_000
"""Rows for each trip to the server. With 0, PostgreSQL's driver would hold the whole result."""


def frame(session: "SparkSession", parts: Sequence[ReadPart], *, fetch_rows: int = FETCH_ROWS) -> "DataFrame":
    """The parts' rows as a data frame with one partition for each part, every value exactly as the source has it.

    A part is read when the frame is: its snapshot must last until then. The driver's jar must be on the class path.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - only sessions need Spark

    if not parts:
        raise Misconfigured("There is nothing to read: no parts were given.")
    columns, table = parts[0].columns, parts[0].table
    if parts[0].settings.kind == "sqlite":
        _check_kinds(parts)

    def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield exact(batch, columns, table)

    raw = reduce(lambda one, other: one.unionAll(other), (_raw(session, part, fetch_rows) for part in parts))
    return raw.mapInArrow(convert, from_arrow_schema(schema_of(columns), prefer_timestamp_ntz=True))


def address(settings: SourceSettings) -> str:
    """The JDBC URL of a source, without user, password and other secrets."""
    place = f"{settings.authority}/{settings.database}"
    match settings.kind:
        case "postgresql":
            given = {"connectTimeout": settings.connect_timeout, "ApplicationName": READER, **dict(settings.options)}
            return f"jdbc:postgresql://{place}?{urlencode(given, quote_via=quote)}"
        case "mysql":
            # MariaDB's driver speaks to both, but only under this scheme does Spark know how names are quoted.
            return f"jdbc:mysql://{place}?permitMysqlScheme&connectTimeout={settings.connect_timeout * 1000}"
        case "sqlite":
            return f"jdbc:sqlite:{settings.database}?open_mode=1"
        case "jdbc":
            return settings.database


def driver_properties(settings: SourceSettings) -> dict[str, str]:
    """What a driver is told that its URL does not say, so that values are what the server has."""
    return _PLAIN_NUMBERS if settings.database.startswith((MARIADB, "jdbc:mysql:")) else {}


def _raw(session: "SparkSession", part: ReadPart, fetch_rows: int) -> "DataFrame":
    settings = part.settings
    options = {
        "url": address(settings),
        "query": part.sql(jdbc=True),
        "fetchsize": str(fetch_rows),
        "preferTimestampNTZ": "true",
        "user": settings.user,
        "password": settings.password,
        "driver": _driver(settings),
        "sessionInitStatement": _session(part),
        "customSchema": _all_text(part.columns) if settings.kind == "sqlite" else None,
    }
    # Not in the URL, which a driver's or Spark's words may repeat.
    secret = {**dict(settings.secret_options), **(for_jdbc(settings.tls) if settings.tls else {})}
    given = {
        **driver_properties(settings),
        **secret,
        **{name: value for name, value in options.items() if value is not None},
    }
    return session.read.format("jdbc").options(**given).load()


def _driver(settings: SourceSettings) -> str | None:
    return {
        "postgresql": "org.postgresql.Driver",
        "mysql": "org.mariadb.jdbc.Driver",
        "sqlite": "org.sqlite.JDBC",
    }.get(settings.kind)


def _session(part: ReadPart) -> str | None:
    """What each connection is told before it reads. Spark has opened a transaction by then."""
    match part.settings.kind:
        case "postgresql":
            shared = f"; SET TRANSACTION SNAPSHOT '{part.snapshot}'" if part.snapshot else ""
            return (
                f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY{shared}; SET LOCAL TIME ZONE 'UTC'; "
                f"SET LOCAL datestyle = 'ISO'; SET LOCAL intervalstyle = 'postgres'; {no_timeouts(local=True)}"
            )
        case "mysql":
            return "SET time_zone = '+00:00', sql_mode = 'ANSI_QUOTES', NAMES utf8mb4"
        case "jdbc" if part.settings.database.startswith(MARIADB):
            return "SET sql_mode = concat(@@sql_mode, ',ANSI_QUOTES')"
        case _:
            return None


def _all_text(columns: Sequence[Column]) -> str:
    # SQLite's driver goes by the first row that it happens to see.
    return ", ".join(f"c{number} STRING" for number in range(len(columns)))


def _check_kinds(parts: Sequence[ReadPart]) -> None:
    from lakehead.source.sqlite_reader import check  # noqa: PLC0415 - only this source has values of any kind

    for part in parts:
        check(part.settings, part)
