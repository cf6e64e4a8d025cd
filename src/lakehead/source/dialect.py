"""What a dialect is: one record with everything in which a kind of database differs from the others.

To add a database, write one module with its `Dialect` and register it in `lakehead.source.dialects`. Nothing else asks
for a dialect's name.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from lakehead.source.source_settings import SourceSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lakehead.source.port import ReadPart, Source


class DriverProblem(Enum):
    """What an error of a driver means. If several fit, the first of them counts."""

    ACCESS_DENIED = auto()
    """The user or the password is wrong."""
    UNTRUSTED = auto()
    """The server's certificate is not accepted, or it has none. Only for sources with TLS settings."""
    NO_DATABASE = auto()
    NO_PRIVILEGE = auto()
    """The user may not read the table."""
    NO_FILE = auto()
    NOT_A_DATABASE = auto()
    """The file has another format."""
    SNAPSHOT_GONE = auto()
    """The exported snapshot has ended."""
    UNREACHABLE = auto()
    """The server cannot be reached, is overloaded, or has closed the connection."""


_SQLSTATES = {
    "28": DriverProblem.ACCESS_DENIED,
    "3D000": DriverProblem.NO_DATABASE,
    "42501": DriverProblem.NO_PRIVILEGE,
    "08": DriverProblem.UNREACHABLE,  # connection
    "40": DriverProblem.UNREACHABLE,  # serialization failure, deadlock
    "53": DriverProblem.UNREACHABLE,  # out of connections or memory
    "57": DriverProblem.UNREACHABLE,  # shutting down or starting up
    "58": DriverProblem.UNREACHABLE,  # errors of the system
}


def problem_by_sqlstate(error: BaseException) -> DriverProblem | None:
    """Return what an error means by its SQLSTATE, which most drivers have; None if it is unknown."""
    state = getattr(error, "sqlstate", None)
    if not isinstance(state, str):
        return None
    return next((problem for prefix, problem in _SQLSTATES.items() if state.startswith(prefix)), None)


def _no_properties(_: SourceSettings) -> Mapping[str, str]:
    return {}


def _no_statement(_: "ReadPart") -> str | None:
    return None


def _nothing_to_check(_: "ReadPart") -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JdbcAccess:
    """How Spark's JDBC reader reads tables of a dialect."""

    url: Callable[[SourceSettings], str]
    """Returns the JDBC URL, without user, password and other secrets."""

    driver: str | None = None
    """The Java class of the driver. Default: the one that Java finds for the URL."""

    jar: str | None = None
    """The Maven coordinate of the driver. Default: the known one for the URL, if any."""

    properties: Callable[[SourceSettings], Mapping[str, str]] = _no_properties
    """Returns further connection properties, which may hold secrets."""

    session_statement: "Callable[[ReadPart], str | None]" = _no_statement
    """Returns SQL that each connection runs before it reads. Spark has already begun a transaction."""

    all_text: bool = False
    """Whether every column is fetched as text, because the driver guesses types from the first row."""

    check: "Callable[[ReadPart], None]" = _nothing_to_check
    """Raises `NotExact` for values that this way of reading would change silently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A kind of database that tables can be read from."""

    name: str
    """The value of `dialect` in a configuration, and the extra that installs its drivers (`lakehead[name]`)."""

    url_prefixes: tuple[str, ...]
    """How its URLs start; a configuration uses the first one."""

    url_form: str
    """An example of its URL, for messages."""

    sqlglot: str
    """Its name in sqlglot, which parses and writes filters; empty for standard SQL."""

    parse_url: Callable[[str, str, str | None, str | None], SourceSettings]
    """Converts dialect, URL, user and password to settings. Raises `Misconfigured` without naming the password."""

    open: "Callable[[SourceSettings, SparkSession | None], Source]"
    """Connects. Imports its driver only here."""

    read: "Callable[[ReadPart], Iterator[pa.RecordBatch]] | None"
    """Reads a part as Arrow, in a Spark task; None if it can only be read by JDBC. Imports its driver only here."""

    jdbc: JdbcAccess

    takes_tls: bool = False
    """Whether a configuration may have `tls`."""

    takes_properties: bool = False
    """Whether a configuration may have `properties`: connection parameters of the driver."""

    takes_driver: bool = False
    """Whether a configuration may have `driver`: the class of a JDBC driver."""

    lineage_scheme: str = ""
    """Its name in OpenLineage's names of datasets."""

    schemas_are_databases: bool = False
    """Whether a schema is a database of its own, and not one of several in a database."""

    timestamp_has_zone: bool = False
    """Whether its type `timestamp` is an instant that each session sees in its own time zone."""

    problem_of: Callable[[BaseException], DriverProblem | None] = problem_by_sqlstate
    """Returns what an error of its drivers means, by its code; None if it is unknown."""

    problem_texts: Mapping[DriverProblem, tuple[str, ...]] = field(default_factory=dict)
    """Regular expressions that recognise problems in the driver's message, in lower case, for errors without a code."""
