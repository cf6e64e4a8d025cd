"""Any other database, through its JDBC driver: whole tables, by the types that every JDBC driver tells of.

Its clock, its literals and its snapshots are not known, so there is nothing incremental about it. Tables are read by
`lakehead.source.jdbc.frame`, in one part.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from lakehead.errors import Misconfigured, Unavailable
from lakehead.source import questions
from lakehead.source.errors import SourceFailed
from lakehead.source.jdbc import MARIADB, driver_properties
from lakehead.source.port import (
    EVERY_REFUSED,
    Capabilities,
    Column,
    OpenTransactions,
    Overrides,
    Query,
    ReadPart,
    ServerTime,
    TableInfo,
    TableName,
    way_out,
)
from lakehead.source.settings import SourceSettings
from lakehead.spark.coordinates import driver
from lakehead.spark.reasons import reason_of
from lakehead.state.model import Value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The numbers of java.sql.Types.
_EXACT = {
    -7: pa.bool_(),
    16: pa.bool_(),
    -6: pa.int32(),
    5: pa.int32(),
    4: pa.int32(),
    -5: pa.int64(),
    7: pa.float32(),
    6: pa.float64(),
    8: pa.float64(),
    **dict.fromkeys((1, 12, -1, -15, -9, -16), pa.string()),
    **dict.fromkeys((-2, -3, -4), pa.binary()),
    91: pa.date32(),
    93: pa.timestamp("us"),
}
_DIALECTS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
"""The SQL of servers that are known by the beginning of their URL."""
_ZONED_TIMESTAMP = ("mysql", "mariadb")
"""Servers whose `timestamp` is a moment that each session sees in its own zone."""
_DECIMALS, _MOMENT = (2, 3), 93
_SHORT = {*_DECIMALS, 92, 93, 2013, 2014, 1111}
"""Numbers, times, moments and what the driver has no word for: their text fits what they are cast to."""


class JdbcSource:
    """A database that Spark's JVM has a driver for, and that is open there."""

    can = Capabilities(incremental=False, snapshots=False, arrow=False)

    def __init__(self, settings: SourceSettings, session: "SparkSession") -> None:
        self.settings = settings
        jvm: Any = session._jvm  # noqa: SLF001 - the only way to JDBC's own catalogue
        properties = jvm.java.util.Properties()
        given = {"user": settings.user, "password": settings.password, **driver_properties(settings)}
        for name, value in given.items():
            if value is not None:
                properties.setProperty(name, value)
        with self._told():
            self._connection = jvm.java.sql.DriverManager.getConnection(settings.database, properties)
            self._mark = str(self._connection.getMetaData().getIdentifierQuoteString()).strip()
        self._check_quotes(str(jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(settings.database).quoteIdentifier("c0")))

    @property
    def dialect(self) -> str:
        """The server's own SQL where the URL names a server that is known, and standard SQL where the driver quotes
        names as the standard does. Elsewhere a filter could be read as another condition: `Misconfigured`."""
        found = _DIALECTS.get(self._server)
        if found is None and self._mark != '"':
            raise Misconfigured(
                f"How {self.settings} writes a filter is not known. Take source_filter out, or put the condition into "
                "a view and read that."
            )
        return found or "jdbc"

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """All rows of a statement."""
        with self._told():
            statement = self._connection.createStatement()
            try:
                return self._all(statement.executeQuery(sql))
            finally:
                statement.close()

    def catalogue(self, table: TableName, overrides: Overrides = Overrides()) -> TableInfo:  # noqa: B008 - frozen
        """What the table has, as far as a driver tells it the same way as others do."""
        with self._told():
            meta = self._connection.getMetaData()
            # Asked for by name first: a driver may have thousands of tables, and each costs many calls into the JVM.
            named = self._all(meta.getTables(None, None, self._pattern(meta, table.name), None), 3)
            places = [
                (str(row[1] or row[0] or ""), str(row[2]))
                for row in named or self._all(meta.getTables(None, None, "%", None), 3)
                if str(row[2]).lower() == table.name.lower()
            ]
            schema, name = questions.match_name(table, places, self.settings)
            found = self._all(meta.getColumns(None, None, self._pattern(meta, name), None), 11)
            columns = [row for row in found if row[2] == name and (row[1] or row[0] or "") == schema]
            # Some servers call it a schema, others a catalog, such as MySQL.
            catalog, owner = columns[0][:2] if columns else (None, schema or None)
            keys = self._all(meta.getPrimaryKeys(catalog, owner, name), 5)
        info = TableInfo(
            schema=schema or None,
            name=name,
            quoted=f"{self.quote(schema)}.{self.quote(name)}" if schema else self.quote(name),
            columns=tuple(self._column(row, overrides) for row in columns),
            primary_key=tuple(str(row[3]) for row in sorted(keys, key=lambda row: _number(row[4]))),
            plain=False,
        )
        return questions.checked(info, overrides)

    def now(self) -> ServerTime:
        """Not known."""
        raise Misconfigured(f"{self.settings} does not tell its clock in a way that is known. Load its tables in full.")

    def earliest_local(self, since: datetime) -> datetime:  # noqa: ARG002 - the port has it
        """Not known."""
        return self.now().local

    def open_transactions(self) -> OpenTransactions:
        """Not known."""
        return OpenTransactions(unknown="how the database tells of open transactions is not known")

    def count(self, query: Query) -> int:
        """How many rows there are, counted."""
        return questions.count(self, query)

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """Not known."""
        raise Misconfigured(f"{self.settings} has no windows, of {query.table} by {column!r}. Load the table in full.")

    def literal(self, value: Value, column: Column) -> str:
        """Not known."""
        raise Misconfigured(
            f"How {self.settings} writes {value!r} for column {column.name!r} is not known. Load the table in full."
        )

    def quote(self, identifier: str) -> str:
        """A name in SQL, in the marks that the driver names."""
        if "\0" in identifier or (not self._mark and not identifier.isidentifier()):
            raise Misconfigured(f"The name {identifier!r} cannot be quoted in {self.settings}.")
        return f"{self._mark}{identifier.replace(self._mark, self._mark * 2) if self._mark else identifier}{self._mark}"

    def by_code_points(self, text: str) -> str:
        """Not known."""
        raise Misconfigured(f"How {self.settings} orders {text} is not known. Load the table in full.")

    def chance(self, share: float) -> str:
        """Not known."""
        raise Misconfigured(f"{self.settings} cannot be sampled (a share of {share} was asked for).")

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        """None: whether connections can share one view is not known."""
        yield None

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:  # noqa: ARG002 - the port has it
        """One part, whatever number is asked for: how to part the table is not known."""
        return questions.read_parts(self, query, [""], snapshot)

    @property
    def _server(self) -> str:
        """What the URL calls the kind of server."""
        return self.settings.database.split(":")[1]

    def _check_quotes(self, sparks: str) -> None:
        """Raise `Misconfigured` where the server would take the names that Spark writes for texts, and answer them."""
        if sparks == self.quote("c0") or self.settings.database.startswith(MARIADB):
            return
        answer = None
        with suppress(SourceFailed):
            answer = self.rows(f"SELECT {sparks} FROM (SELECT 7 AS c0) c")  # noqa: S608 - nothing of others is in it
        if answer != [(7,)]:
            self.close()
            raise Misconfigured(
                f"{self.settings} would be read wrongly: Spark writes {sparks} for a column, and its driver "
                f"{self.quote('c0')}. Use a driver and a URL that Spark knows, such as jdbc:mysql: for MySQL."
            )

    def _column(self, row: tuple[Any, ...], overrides: Overrides) -> Column:
        name, kind, declared = str(row[3]), _number(row[4]), str(row[5])
        size, digits = _number(row[6]), _number(row[8])
        raw = self.quote(name)
        text = f"CAST({raw} AS VARCHAR(4000))"
        arrow = _EXACT.get(kind)
        if kind in _DECIMALS:
            declared = f"{declared}({size},{digits})"
            arrow = pa.decimal128(size, digits) if 0 < size <= 38 and 0 <= digits <= size else None
        low = declared.lower()
        zoned = "zone" in low or low.endswith("tz") or (low == "timestamp" and self._server in _ZONED_TIMESTAMP)
        if kind == _MOMENT and (digits > 6 or zoned):
            arrow = None
        wanted = name in overrides.as_text or (arrow is None and EVERY_REFUSED in overrides.as_text)
        if wanted and kind in _SHORT:
            arrow, raw = pa.string(), text
        elif wanted and arrow != pa.string():
            arrow = None
        refused = None
        if arrow is None:
            refused = way_out(name, declared, "has no exact counterpart by JDBC")
            if kind not in _SHORT:
                refused = f"Column {name!r} of type {declared} cannot be read by JDBC exactly. Leave it out."
        return Column(
            name=name,
            declared=declared,
            arrow=arrow,
            refused=refused,
            nullable=_number(row[10]) != 0,
            expression=raw,
            jdbc=raw,
        )

    def _all(self, result: Any, width: int | None = None) -> list[tuple[Any, ...]]:
        width = width or result.getMetaData().getColumnCount()
        rows = []
        while result.next():
            rows.append(tuple(result.getObject(place) for place in range(1, width + 1)))
        result.close()
        return rows

    def _pattern(self, meta: Any, name: str) -> str:
        """A name as the catalogue's patterns spell it, so that its own wildcards are none."""
        escape = str(meta.getSearchStringEscape() or "")
        special = {escape, "_", "%"} if escape else set()
        return "".join(f"{escape}{character}" if character in special else character for character in name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
            return
        except Py4JJavaError as error:
            said = self.settings.scrubbed(reason_of(error))
        # Raised outside of the handler: the driver's error is in no chain.
        if "No suitable driver" in said:
            jar = driver(self.settings.database) or "its Maven coordinate"
            raise Misconfigured(f"There is no JDBC driver for {self.settings}. Add {jar} to the session's jars.")
        low = said.lower()
        if "password" in low or "access denied" in low or "authentication" in low or "login" in low:
            raise Misconfigured(f"{self.settings} refused user {self.settings.user!r} or the password. Check both.")
        if any(sign in low for sign in ("refused", "unknown host", "timed out", "unreachable", "communications link")):
            raise Unavailable(
                f"{self.settings} cannot be reached ({said}). Check host and port, and that it is running."
            )
        raise SourceFailed(f"{self.settings} refused a request ({said}).")


def _number(told: Any) -> int:
    """A number of the catalogue: some drivers tell it as an integer of Java's that Python has no counterpart for."""
    return 0 if told is None else int(str(told))
