"""What a database's error means for whoever asked."""

import sqlite3
from enum import Enum, auto

from sqlalchemy.exc import DBAPIError


class Fault(Enum):
    """The kinds of trouble."""

    CONTENDED = auto()
    """Rolled back because of somebody else: try again."""
    LOCKED = auto()
    """Waited too long for somebody else's lock."""
    LOST = auto()
    """The server, the connection or the disk is not there, for now."""
    FULL = auto()
    """There is no room on the disk."""
    REFUSED = auto()
    """A user, a password, a right, a database or a file needs somebody's hand."""
    OTHER = auto()
    """Ours to fix: it is raised as it is."""


_POSTGRESQL = {
    "40001": Fault.CONTENDED,  # serialization failure
    "40P01": Fault.CONTENDED,  # deadlock
    "55P03": Fault.LOCKED,  # lock_timeout
    "57014": Fault.LOCKED,  # statement_timeout
    "25006": Fault.LOST,  # read-only: a standby, or a primary that is being demoted
    "28": Fault.REFUSED,  # not allowed in
    "3D": Fault.REFUSED,  # no such database
    "42501": Fault.REFUSED,  # not allowed to
    "08": Fault.LOST,  # connection
    "53": Fault.LOST,  # out of connections or memory
    "53100": Fault.FULL,
    "57P": Fault.LOST,  # shutting down or starting up
    "58": Fault.LOST,  # the system below
}

_MYSQL = {
    1213: Fault.CONTENDED,  # deadlock
    1020: Fault.CONTENDED,  # record has changed since last read
    1205: Fault.LOCKED,  # lock wait timeout
    1969: Fault.LOCKED,  # statement timeout (MariaDB)
    3024: Fault.LOCKED,  # statement timeout (MySQL)
    1044: Fault.REFUSED,  # not allowed into this database
    1045: Fault.REFUSED,  # wrong password
    1049: Fault.REFUSED,  # no such database
    1142: Fault.REFUSED,  # not allowed to
    1227: Fault.REFUSED,
    1698: Fault.REFUSED,
    1021: Fault.FULL,
    1114: Fault.FULL,  # the table, and so its disk or what it was given of it
    **dict.fromkeys((0, 1040, 1053, 1077, 1152, 1159, 1161, 1290, 1836, 1927), Fault.LOST),
    **dict.fromkeys(range(2000, 2030), Fault.LOST),  # the client's own: cannot connect, gone away, lost
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
    """What the error means."""
    cause = error.orig
    state = getattr(cause, "sqlstate", None)  # psycopg's; absent from what failed before the server could speak
    number = _number(error)
    if isinstance(cause, sqlite3.Error):
        fault = _by_prefix(_SQLITE, getattr(cause, "sqlite_errorname", ""))
    elif number is not None:  # asked first: PyMySQL has an sqlstate too, but often one that says nothing
        fault = _MYSQL.get(number, Fault.OTHER)
    elif isinstance(state, str):
        fault = _by_prefix(_POSTGRESQL, state)
    else:
        fault = _of_connecting(str(cause))
    return Fault.LOST if fault is Fault.OTHER and error.connection_invalidated else fault


def first_line(error: DBAPIError) -> str:
    """The driver's own words, without the statement."""
    cause = error.orig
    told = cause.args[1] if cause is not None and _number(error) is not None and len(cause.args) > 1 else cause
    return next((line.strip() for line in str(told).splitlines() if line.strip()), type(cause).__name__)


def _number(error: DBAPIError) -> int | None:
    """PyMySQL's errors begin with the server's number."""
    cause = error.orig
    return cause.args[0] if cause is not None and cause.args and isinstance(cause.args[0], int) else None


def _by_prefix(faults: dict[str, Fault], code: str) -> Fault:
    matching = [known for known in faults if code.startswith(known)]
    return faults[max(matching, key=len)] if matching else Fault.OTHER


def _of_connecting(text: str) -> Fault:
    # libpq gives a failed connection no code; what the server itself said stands behind "FATAL:".
    if "invalid connection option" in text:
        return Fault.REFUSED
    if "FATAL:" in text and not any(passing in text for passing in _PASSING):
        return Fault.REFUSED
    if "connection" in text or "could not" in text or "timeout" in text:
        return Fault.LOST
    return Fault.OTHER
