"""Opens a PyIceberg catalog from the properties of a Spark catalog, so that both see the same tables."""

import sqlite3
import threading
from contextlib import closing, suppress
from functools import partial
from urllib.parse import quote, urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from sqlalchemy.exc import OperationalError, ProgrammingError

from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured, Unavailable
from lakehead.lake.commit_times import date_commits
from lakehead.lake.metadata_reuse import reuse_metadata
from lakehead.lake.retries import is_transient, unavailable
from lakehead.spark.settings import Properties

BUSY_SECONDS = 30
"""How long a commit to a catalog in SQLite waits for another one."""

REST_SECONDS = (10.0, 60.0)
"""Timeouts of a REST catalog: to connect, and to answer a request."""

_PAUSE_SECONDS = 0.05
_OWN_TABLES = 2
"""How many tables PyIceberg's SQL catalog creates for itself."""
_SQLITE = "jdbc:sqlite:"
_JAVA_ONLY = ("catalog-impl", "io-impl", "cache-enabled")


def open_catalog(name: str, properties: Properties, clock: Clock | None = None) -> Catalog:
    """Open the catalog of this name with PyIceberg.

    The name matters: a SQL catalog stores its tables under it. JDBC on SQLite or PostgreSQL becomes PyIceberg's SQL
    catalog; REST, Hive and Glue use the properties unchanged. Raises `Misconfigured` for any other type, and
    `Unavailable` if the catalog does not answer. Commit times come from the clock (default: the machine's), and are
    always after the table's last commit.
    """
    try:
        catalog = _opened(name, properties)
    except Exception as error:
        if is_transient(error):
            raise unavailable(f"The catalog {name}", error) from error
        raise
    if isinstance(catalog, RestCatalog):
        # PyIceberg sets no timeout: it would wait for ever for a server that accepts a request and never answers.
        session = catalog._session  # noqa: SLF001 - it has no setting
        session.request = partial(session.request, timeout=REST_SECONDS)  # type: ignore[method-assign] # see above
    reuse_metadata(catalog)
    date_commits(catalog, clock or SystemClock())
    return catalog


def _opened(name: str, properties: Properties) -> Catalog:
    given = {key: value for key, value in properties.items() if key not in _JAVA_ONLY}
    given["py-io-impl"] = "pyiceberg.io.pyarrow.PyArrowFileIO"  # its file systems can be pickled for tasks
    if region := given.get("client.region"):
        given.setdefault("s3.region", region)
    match given.get("type"):
        case "jdbc":
            _write_ahead(given.get("uri", ""))
            user, password = given.pop("jdbc.user", ""), given.pop("jdbc.password", "")
            given |= {"type": "sql", "uri": _sql_url(given.get("uri", ""), user, password)}
            for _ in range(_OWN_TABLES):
                # Opening a new catalog creates its tables; each creation may fail if another process was faster.
                with suppress(OperationalError, ProgrammingError):
                    return load_catalog(name, **given)
            return load_catalog(name, **given)
        case "rest" | "hive" | "glue":
            return load_catalog(name, **given)
        case kind:
            raise Misconfigured(
                f"The catalog {name!r} has the type {kind!r}. Set 'type' to jdbc, rest, hive or glue: landings are "
                "committed through PyIceberg, which supports these."
            )


def _write_ahead(uri: str) -> None:
    """Switch a new catalog in SQLite to write-ahead logging, which Spark otherwise does with every connection.

    SQLite does not wait for locks with this statement, so of several tables that are loaded at once one would fail.
    """
    file, _, options = uri.removeprefix(_SQLITE).partition("?")
    if not uri.startswith(_SQLITE) or "journal_mode=WAL" not in options:
        return
    for _ in range(round(BUSY_SECONDS / _PAUSE_SECONDS)):
        try:
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                return
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_BUSY"):
                return  # opening the catalog will fail with the same error, and report it
        threading.Event().wait(_PAUSE_SECONDS)
    raise Unavailable(f"The catalog in {file} was locked by other processes for {BUSY_SECONDS} s. Try again later.")


def _sql_url(uri: str, user: str, password: str) -> str:
    if uri.startswith(_SQLITE):
        return f"sqlite:///{uri.removeprefix(_SQLITE).partition('?')[0]}?timeout={BUSY_SECONDS}"
    if uri.startswith("jdbc:postgresql://"):
        parts = urlsplit(uri.removeprefix("jdbc:"))
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        return f"postgresql+psycopg://{login}{parts.netloc}{parts.path}"
    raise Misconfigured(
        "A JDBC catalog must be on SQLite (jdbc:sqlite:FILE) or PostgreSQL (jdbc:postgresql://HOST/NAME)."
    )
