"""The SQLite dialect: a file, opened for reading only."""

from typing import TYPE_CHECKING
from urllib.parse import unquote

from lakehead.errors import Misconfigured
from lakehead.source.dialect import Dialect, DriverProblem, JdbcAccess
from lakehead.source.source_settings import SourceSettings, split_url
from lakehead.spark.coordinates import driver

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lakehead.source.port import ReadPart, Source

_URL_FORM = "sqlite:///path/to/file"


def _parse_url(dialect: str, url: str, _user: str | None, _password: str | None) -> SourceSettings:
    parts = split_url(url, _URL_FORM)
    file = unquote(parts.path).removeprefix("/")
    if parts.netloc or parts.query or not file or file == ":memory:":
        raise Misconfigured(f"A SQLite source must be a file. Write {_URL_FORM}.")
    return SourceSettings(dialect=dialect, database=file)


def _open(settings: SourceSettings, _: "SparkSession | None") -> "Source":
    from lakehead.source.sqlite_source import SQLiteSource  # noqa: PLC0415 - only where it is used

    return SQLiteSource(settings)


def _read(part: "ReadPart") -> "Iterator[pa.RecordBatch]":
    from lakehead.source import sqlite_reader  # noqa: PLC0415 - only where it is used

    return sqlite_reader.read(part)


def _check(part: "ReadPart") -> None:
    from lakehead.source import sqlite_reader  # noqa: PLC0415 - only where it is used

    sqlite_reader.check(part)


SQLITE = Dialect(
    name="sqlite",
    url_prefixes=("sqlite:///", "sqlite:"),
    url_form=_URL_FORM,
    sqlglot="sqlite",
    parse_url=_parse_url,
    open=_open,
    read=_read,
    jdbc=JdbcAccess(
        url=lambda settings: f"jdbc:sqlite:{settings.database}?open_mode=1",
        driver="org.sqlite.JDBC",
        jar=driver("jdbc:sqlite:"),
        all_text=True,
        check=_check,
    ),
    problem_texts={
        DriverProblem.NO_FILE: ("unable to open database file", "failed to open"),
        DriverProblem.NOT_A_DATABASE: ("file is not a database",),
        DriverProblem.UNREACHABLE: ("database is locked",),
    },
    lineage_scheme="file",
)
