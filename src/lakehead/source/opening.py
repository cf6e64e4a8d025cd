"""From settings to an open source."""

from typing import TYPE_CHECKING

from lakehead.errors import Misconfigured
from lakehead.source.port import Source
from lakehead.source.settings import SourceSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_source(settings: SourceSettings, session: "SparkSession | None" = None) -> Source:
    """The source that the settings name, reached. Only databases without a driver of ours need the session.

    Raises `Misconfigured` for what somebody must mend (a password, a name, a missing driver), and `Unavailable` for a
    server that does not answer. No message holds the password.
    """
    match settings.kind:
        case "postgresql":
            from lakehead.source.postgresql import PostgreSQL  # noqa: PLC0415 - each source only where it is used

            return PostgreSQL(settings)
        case "mysql":
            from lakehead.source.mysql import MySQL  # noqa: PLC0415 - each source only where it is used

            return MySQL(settings)
        case "sqlite":
            from lakehead.source.sqlite import SQLite  # noqa: PLC0415 - each source only where it is used

            return SQLite(settings)
        case "jdbc":
            if session is None:
                raise Misconfigured(f"{settings} is only reached through Spark, and no session was given.")
            from lakehead.source.jdbc_source import JdbcSource  # noqa: PLC0415 - each source only where it is used

            return JdbcSource(settings, session)
