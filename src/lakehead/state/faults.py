"""Classifies the errors of database drivers."""

import sqlite3
from enum import Enum, auto

from sqlalchemy.exc import DBAPIError

from lakehead.state import mysql_errors


class Fault(Enum):
    """The kinds of database errors."""

    CONTENDED = auto()
    """Rolled back because of another transaction: try again."""
    LOCKED = auto()
    """Waited too long for another transaction's lock."""
    LOST = auto()
    """The server, the connection or the disk is temporarily unavailable."""
    FULL = auto()
    """The disk is full."""
    REFUSED = auto()
    """A user, password, privilege, database or file must be fixed by an operator."""
    OTHER = auto()
    """A bug of ours: the error is raised unchanged."""


_POSTGRESQL = {
    "40001": Fault.CONTENDED,  # serialization failure
    "40P01": Fault.CONTENDED,  # deadlock
    "55P03": Fault.LOCKED,  # lock_timeout
    "57014": Fault.LOCKED,  # statement_timeout
    "25006": Fault.LOST,  # read-only: a standby, or a primary that is being demoted
    "28": Fault.REFUSED,  # invalid authorization
    "3D": Fault.REFUSED,  # unknown database
    "42501": Fault.REFUSED,  # insufficient privilege
    "08": Fault.LOST,  # connection
    "53": Fault.LOST,  # out of connections or memory
    "53100": Fault.FULL,
    "57P": Fault.LOST,  # shutting down or starting up
    "58": Fault.LOST,  # system error
}

_MYSQL = {
    **dict.fromkeys(mysql_errors.DEADLOCK, Fault.CONTENDED),
    **dict.fromkeys(mysql_errors.LOCK_TIMEOUT | mysql_errors.STATEMENT_TIMEOUT, Fault.LOCKED),
    **dict.fromkeys(mysql_errors.ACCESS_DENIED | mysql_errors.NO_PRIVILEGE | mysql_errors.NO_DATABASE, Fault.REFUSED),
    **dict.fromkeys(mysql_errors.DISK_FULL, Fault.FULL),
    **dict.fromkeys(mysql_errors.UNREACHABLE | mysql_errors.READ_ONLY, Fault.LOST),
}

_SQLITE = {
    "SQLITE_BUSY_SNAPSHOT": Fault.CONTENDED,
    "SQLITE_BUSY": Fault.LOCKED,
    "SQLITE_LOCKED": Fault.LOCKED,
    "SQLITE_IOERR": Fault.LOST,
    "SQLITE_FULL": Fault.FULL,
    "SQLITE_READONLY": Fault.REFUSED,
    "SQLITE_CANTOPEN": Fault.REFUSED,
    "SQLITE_PERM": Fault.REFUSED,
    "SQLITE_AUTH": Fault.REFUSED,
    "SQLITE_NOTADB": Fault.REFUSED,
    "SQLITE_CORRUPT": Fault.REFUSED,
}

_PASSING = ("starting up", "shutting down", "recovery", "too many", "remaining connection slots")


def fault_of(error: DBAPIError) -> Fault:
    """The kind of the error."""
    cause = error.orig
    state = getattr(cause, "sqlstate", None)  # psycopg's; absent if the connection failed before the server answered
    number = _number(error)
    if isinstance(cause, sqlite3.Error):
        fault = _by_prefix(_SQLITE, getattr(cause, "sqlite_errorname", ""))
    elif number is not None:  # before the sqlstate: PyMySQL has one too, but often a meaningless one
        fault = _MYSQL.get(number, Fault.OTHER)
    elif isinstance(state, str):
        fault = _by_prefix(_POSTGRESQL, state)
    else:
        fault = _of_connecting(str(cause))
    return Fault.LOST if fault is Fault.OTHER and error.connection_invalidated else fault


def first_line(error: DBAPIError) -> str:
    """The first line of the driver's message, without the statement."""
    cause = error.orig
    message = cause.args[1] if cause is not None and _number(error) is not None and len(cause.args) > 1 else cause
    return next((line.strip() for line in str(message).splitlines() if line.strip()), type(cause).__name__)


def _number(error: DBAPIError) -> int | None:
    """The server's error number, which is the first argument of PyMySQL's errors."""
    cause = error.orig
    return cause.args[0] if cause is not None and cause.args and isinstance(cause.args[0], int) else None


def _by_prefix(faults: dict[str, Fault], code: str) -> Fault:
    matching = [known for known in faults if code.startswith(known)]
    return faults[max(matching, key=len)] if matching else Fault.OTHER


def _of_connecting(text: str) -> Fault:
    # libpq gives a failed connection no code; the server's own message follows "FATAL:".
    if "invalid connection option" in text:
        return Fault.REFUSED
    if "FATAL:" in text and not any(passing in text for passing in _PASSING):
        return Fault.REFUSED
    if "connection" in text or "could not" in text or "timeout" in text:
        return Fault.LOST
    return Fault.OTHER
