"""PyIceberg's catalog for the properties that a Spark catalog has: both sides see the same tables."""

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
from lakehead.lake.retries import is_transient, unavailable
from lakehead.spark.settings import Properties

BUSY_SECONDS = 30
"""How long a commit to a catalog in SQLite waits for another one."""

REST_SECONDS = (10.0, 60.0)
"""How long a REST catalog is waited for: to take a connection, and to answer a request."""

_PAUSE_SECONDS = 0.05
_OWN_TABLES = 2
"""How many tables a catalog in SQL has of its own."""
_SQLITE = "jdbc:sqlite:"
_JAVA_ONLY = ("catalog-impl", "io-impl", "cache-enabled")


def open_catalog(name: str, properties: Properties, clock: Clock | None = None) -> Catalog:
    """The catalog of this name, reached by PyIceberg.

    The name matters: a catalog in SQL keeps its tables under it. JDBC on SQLite or PostgreSQL becomes PyIceberg's SQL
    catalog; REST, Hive and Glue take the properties as they are. Raises `Misconfigured` for any other, and
    `Unavailable` if it does not answer. Commits are dated by the clock (default: the machine's), and never before the
    table's last commit.
    """
    try:
        catalog = _opened(name, properties)
    except Exception as error:
        if is_transient(error):
            raise unavailable(f"The catalog {name}", error) from error
        raise
    if isinstance(catalog, RestCatalog):
        # PyIceberg sets none: a server that takes a request and never answers would be waited for without end.
        session = catalog._session  # noqa: SLF001 - it has no setting
        session.request = partial(session.request, timeout=REST_SECONDS)  # type: ignore[method-assign] # see above
    date_commits(catalog, clock or SystemClock())
    return catalog


def _opened(name: str, properties: Properties) -> Catalog:
    given = {key: value for key, value in properties.items() if key not in _JAVA_ONLY}
    given["py-io-impl"] = "pyiceberg.io.pyarrow.PyArrowFileIO"  # whose file systems tasks can take along
    if region := given.get("client.region"):
        given.setdefault("s3.region", region)
    match given.get("type"):
        case "jdbc":
            _write_ahead(given.get("uri", ""))
            user, password = given.pop("jdbc.user", ""), given.pop("jdbc.password", "")
            given |= {"type": "sql", "uri": _sql_url(given.get("uri", ""), user, password)}
            for _ in range(_OWN_TABLES):
                # Whoever opens a new catalog makes its tables; each may be there when somebody else has been quicker.
                with suppress(OperationalError, ProgrammingError):
                    return load_catalog(name, **given)
            return load_catalog(name, **given)
        case "rest" | "hive" | "glue":
            return load_catalog(name, **given)
        case kind:
            raise Misconfigured(
                f"The catalog {name!r} has the type {kind!r}. Set 'type' to jdbc, rest, hive or glue: landings are "
                "committed through PyIceberg, which knows these."
            )


def _write_ahead(uri: str) -> None:
    """Let a new catalog in SQLite be what Spark asks of it with every connection, before Spark does.

    It is the one statement for which SQLite does not wait: of tables that are loaded at once, one would fail.
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
                return  # whoever opens the catalog next is told the same, and says it
        threading.Event().wait(_PAUSE_SECONDS)
    raise Unavailable(f"Others have been writing to the catalog in {file} for {BUSY_SECONDS} s. Try again later.")


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
