"""The dialect of any other database: full loads through its JDBC driver."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakehead.errors import Misconfigured
from lakehead.source.dialect import Dialect, JdbcAccess
from lakehead.source.source_settings import SourceSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakehead.source.port import ReadPart, Source

MARIADB = "jdbc:mariadb:"
"""With this URL, Spark quotes names by double quotes, which the server reads as strings unless ANSI_QUOTES is set."""

_PLAIN_NUMBERS = {"tinyInt1isBit": "false", "yearIsDateType": "false"}
"""Without these, drivers for MySQL turn every tinyint(1) into a boolean, and a year into a date."""


def driver_properties(settings: SourceSettings) -> Mapping[str, str]:
    """Return connection properties without which a driver would change values."""
    return _PLAIN_NUMBERS if settings.database.startswith((MARIADB, "jdbc:mysql:")) else {}


def _parse_url(dialect: str, url: str, user: str | None, password: str | None) -> SourceSettings:
    low = url.lower()
    if any(f"{name}=" in low for name in ("password", "passwd", "pwd")) or "@" in low.partition("?")[0]:
        raise Misconfigured("The JDBC URL of the source contains a user or a password. Give them separately.")
    return SourceSettings(dialect=dialect, database=url, user=user, password=password)


def _open(settings: SourceSettings, session: "SparkSession | None") -> "Source":
    if session is None:
        raise Misconfigured(f"{settings} can only be reached through Spark. Open it with a Spark session.")
    from lakehead.source.jdbc_source import JdbcSource  # noqa: PLC0415 - only where it is used

    return JdbcSource(settings, session)


def _session_statement(part: "ReadPart") -> str | None:
    if part.settings.database.startswith(MARIADB):
        return "SET sql_mode = concat(@@sql_mode, ',ANSI_QUOTES')"
    return None


JDBC = Dialect(
    name="jdbc",
    url_prefixes=("jdbc:",),
    url_form="jdbc:driver:address",
    sqlglot="",
    parse_url=_parse_url,
    open=_open,
    read=None,
    jdbc=JdbcAccess(
        url=lambda settings: settings.database, properties=driver_properties, session_statement=_session_statement
    ),
    takes_driver=True,
    lineage_scheme="jdbc",
)
