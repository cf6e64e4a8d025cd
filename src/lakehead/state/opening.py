"""Opens the state database of a URL."""

import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random, system_random
from lakehead.retry import Backoff
from lakehead.state.database import Contended, Database
from lakehead.state.migrations import bring_up
from lakehead.state.state import State

FORMS = "sqlite:///path/to/file, postgresql://user@host:port/database or mysql://user@host:port/database"
UNKNOWN_VARIABLE = 1193
NO_LIMIT = 18_446_744_073_709_551_615
"""A result that a server cuts off would hide what has landed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """The settings of the connection to the state database."""

    password: str | None = field(default=None, repr=False)
    """The user's password, if it is not in the URL."""

    connect_timeout: int = 10
    """Seconds to wait for a server to answer a new connection."""

    lock_timeout: float = 15.0
    """Seconds to wait for another transaction's lock. MariaDB counts whole seconds."""

    statement_timeout: float = 120.0
    """Seconds to wait for the answer to one statement, on a server."""

    isolation: Literal["READ COMMITTED", "REPEATABLE READ"] = "READ COMMITTED"
    """The servers' isolation level. Every operation is correct on either; the lower one has fewer conflicts."""

    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=10, first_seconds=0.01, cap_seconds=1.0))
    """Retries after deadlocks, serialization failures and lost connections."""


def open_state(
    url: str,
    clock: Clock,
    ids: Ids,
    *,
    settings: StateSettings | None = None,
    random: Random | None = None,
    pause: Callable[[float], object] | None = None,
) -> State:
    """Open the state of a URL, and create or migrate its tables. Any number of processes may open it at once.

    Raises `Misconfigured` for a wrong URL, password or version, and `Unavailable` if the server does not answer. No
    message and no repr contains the password.
    """
    settings = settings or StateSettings()
    target = _target(url, settings)
    engine = _engine(target, settings)
    database = Database(
        engine,
        name=_without_secrets(target),
        clock=clock,
        ids=ids,
        random=random or system_random(),
        backoff=settings.backoff,
        pause=pause or threading.Event().wait,
    )
    try:
        _reach(database)
        if engine.dialect.name == "sqlite":
            _write_ahead(database)
        bring_up(database)
    except DBAPIError as error:
        engine.dispose()
        database.give_up(error)
    except BaseException:
        engine.dispose()
        raise
    return State.of(database)


def _reach(database: Database) -> None:
    """Connect once, so that a wrong password or a dead server is reported without the retries of a transaction."""
    try:
        database.engine.connect().close()
    except TypeError as error:  # PyMySQL's error for an unknown setting
        raise Misconfigured(
            f"The state URL {database.name} has an unknown setting after '?' ({error}). Remove it."
        ) from None


def _target(url: str, settings: StateSettings) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise Misconfigured(f"The state URL cannot be read. Write {FORMS}.") from None
    hidden = sorted(set(parsed.query) & {"password", "passwd", "user"})
    if hidden:
        raise Misconfigured(f"The state URL has {hidden[0]!r} after '?'. Give the password as a setting.")
    match parsed.drivername:
        case "sqlite":
            return _file(parsed)
        case "postgresql" | "mysql":
            if not parsed.host or not parsed.database or not parsed.username:
                raise Misconfigured(
                    f"The state URL {_without_secrets(parsed)} lacks a user, a host or a database. Write {FORMS}."
                )
            driver = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}[parsed.drivername]
            return parsed.set(drivername=driver, password=settings.password or parsed.password)
        case unknown:
            raise Misconfigured(f"The state URL has the unknown scheme {unknown!r}. Write {FORMS}.")


def _file(url: URL) -> URL:
    if url.host or not url.database or url.database == ":memory:" or url.query:
        raise Misconfigured("A state in SQLite must be a local file. Write sqlite:///path/to/file.")
    path = Path(url.database).absolute()
    if not path.parent.is_dir():
        raise Misconfigured(f"The folder {str(path.parent)!r} of the state database does not exist. Create it first.")
    if path.is_dir():
        raise Misconfigured(f"The state database {str(path)!r} is a folder. Name a file in it.")
    return url.set(database=str(path))


def _without_secrets(url: URL) -> str:
    """The URL without user, password and settings, for messages."""
    scheme = url.drivername.partition("+")[0]
    if scheme == "sqlite":
        return f"sqlite:///{url.database}"
    port = f":{url.port}" if url.port else ""
    return f"{scheme}://{url.host or ''}{port}/{url.database or ''}"


def _engine(url: URL, settings: StateSettings) -> Engine:
    scheme = url.drivername.partition("+")[0]
    arguments: Mapping[str, Any]
    match scheme:
        case "sqlite":
            arguments = {"timeout": settings.lock_timeout}
        case "postgresql":
            arguments = {"connect_timeout": settings.connect_timeout}
        case _:
            limit = max(1, int(settings.statement_timeout))
            arguments = {
                "connect_timeout": settings.connect_timeout,
                "read_timeout": limit,
                "write_timeout": limit,
                "init_command": "SET SESSION sql_mode = 'STRICT_ALL_TABLES'",  # refuses values that do not fit
            }
    on_a_server = {} if scheme == "sqlite" else {"isolation_level": settings.isolation, "pool_pre_ping": True}
    try:
        # A worker thread needs a connection for a moment only; it waits for one no longer than for a lock.
        engine = create_engine(
            url,
            connect_args=dict(arguments),
            hide_parameters=True,
            max_overflow=25,
            pool_timeout=settings.lock_timeout,
            **on_a_server,
        )
    except ImportError:
        raise Misconfigured(f"The driver for {scheme} is missing. Install lakehead[{scheme}].") from None
    _prepare(engine, scheme, settings)
    return engine


def _prepare(engine: Engine, scheme: str, settings: StateSettings) -> None:
    lock_ms, statement_ms = int(settings.lock_timeout * 1000), int(settings.statement_timeout * 1000)

    def sqlite(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we begin transactions, not the driver
        for pragma in (f"busy_timeout = {lock_ms}", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}").close()

    def postgresql(connection: Any, _record: object) -> None:
        connection.execute(f"SET lock_timeout = {lock_ms}")
        connection.execute(f"SET statement_timeout = {statement_ms}")
        connection.commit()

    def mysql(connection: Any, _record: object) -> None:
        lock_seconds = max(1, round(settings.lock_timeout))
        with connection.cursor() as cursor:
            for variable in (f"innodb_lock_wait_timeout = {lock_seconds}", f"sql_select_limit = {NO_LIMIT}"):
                try:
                    cursor.execute(f"SET SESSION {variable}")
                except connection.Error as error:
                    if error.args[0] != UNKNOWN_VARIABLE:  # SingleStore has a lock timeout of its own, 60 seconds
                        raise

    event.listen(engine, "connect", {"sqlite": sqlite, "postgresql": postgresql, "mysql": mysql}[scheme])
    if scheme == "sqlite":
        event.listen(engine, "begin", _begin)


def _write_ahead(database: Database) -> None:
    """Set SQLite's write-ahead log, so that readers and a writer do not wait for each other.

    SQLite does not wait for other processes with this statement when they open the same new file, so it is retried.
    """

    def set_wal() -> object:
        connection = database.engine.raw_connection()
        try:
            return connection.cursor().execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname.startswith("SQLITE_BUSY"):
                raise Contended from None
            raise DBAPIError("PRAGMA journal_mode = WAL", None, error) from None
        finally:
            connection.close()

    if database.patiently(set_wal) != "wal":
        raise Misconfigured(
            f"The file system of {database.name} does not support shared access. Put the file on a local disk."
        )


def _begin(connection: Connection) -> None:
    # A writer must say so first: in WAL mode, a reader that becomes a writer is refused, however long it waits.
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")
