"""Any other database as a source, through its JDBC driver: full loads with the standard types of JDBC.

The server's clock, literals and snapshots are unknown, so incremental loads are not possible. A table is read in one
part, by `lakehead.source.jdbc_reader`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from lakehead.errors import Misconfigured, Unavailable
from lakehead.source import sql_queries
from lakehead.source.dialect import Dialect
from lakehead.source.dialects import DIALECTS
from lakehead.source.errors import SourceFailed
from lakehead.source.hash_sql import HashSql
from lakehead.source.jdbc import JDBC, MARIADB, driver_properties
from lakehead.source.port import (
    EVERY_REFUSED,
    Column,
    OpenTransactions,
    Overrides,
    Query,
    ReadPart,
    ServerTime,
    SourceCapabilities,
    TableInfo,
    TableName,
    refusal,
)
from lakehead.source.source_settings import SourceSettings
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
_DECIMALS, _TIMESTAMP = (2, 3), 93
_CASTABLE = {*_DECIMALS, 92, 93, 2013, 2014, 1111}
"""Numbers, times, timestamps and types unknown to JDBC: as text they fit into VARCHAR(4000)."""


class JdbcSource:
    """A connection of a JDBC driver in Spark's JVM."""

    capabilities = SourceCapabilities(incremental=False, arrow=False)
    hash_sql: HashSql | None = None

    def __init__(self, settings: SourceSettings, session: "SparkSession") -> None:
        self.settings = settings
        jvm: Any = session._jvm  # noqa: SLF001 - the only way to JDBC's catalog
        properties = jvm.java.util.Properties()
        given = {"user": settings.user, "password": settings.password, **driver_properties(settings)}
        for name, value in given.items():
            if value is not None:
                properties.setProperty(name, value)
        with self._translate_errors():
            self._connection = _connection(jvm, settings, properties)
            self._mark = str(self._connection.getMetaData().getIdentifierQuoteString()).strip()
        self._check_quotes(str(jvm.org.apache.spark.sql.jdbc.JdbcDialects.get(settings.database).quoteIdentifier("c0")))

    @property
    def sql_dialect(self) -> str:
        """The SQL of the server if a dialect is registered for it, else standard SQL.

        Raises `Misconfigured` if the driver does not quote names as the standard does: a filter could be misread.
        """
        if self._dialect is None and self._mark != '"':
            raise Misconfigured(
                f"The SQL of {self.settings} is unknown, so it takes no filter. Remove source_filter, or put the "
                "condition into a view and read that."
            )
        return (self._dialect or JDBC).sqlglot

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        with self._translate_errors():
            statement = self._connection.createStatement()
            try:
                return self._all(statement.executeQuery(sql))
            finally:
                statement.close()

    def describe_table(self, table: TableName, overrides: Overrides = Overrides()) -> TableInfo:  # noqa: B008 - frozen
        """Return the columns and keys of a table, as far as JDBC defines them."""
        with self._translate_errors():
            meta = self._connection.getMetaData()
            # By name first: there may be thousands of tables, and each takes many calls into the JVM.
            named = self._all(meta.getTables(None, None, self._pattern(meta, table.name), None), 3)
            places = [
                (str(row[1] or row[0] or ""), str(row[2]))
                for row in named or self._all(meta.getTables(None, None, "%", None), 3)
                if str(row[2]).lower() == table.name.lower()
            ]
            schema, name = sql_queries.match_name(table, places, self.settings)
            found = self._all(meta.getColumns(None, None, self._pattern(meta, name), None), 11)
            columns = [row for row in found if row[2] == name and (row[1] or row[0] or "") == schema]
            # A schema on most servers, a catalog on others, such as MySQL.
            catalog, owner = columns[0][:2] if columns else (None, schema or None)
            keys = self._all(meta.getPrimaryKeys(catalog, owner, name), 5)
        info = TableInfo(
            schema=schema or None,
            name=name,
            quoted=f"{self.quote(schema)}.{self.quote(name)}" if schema else self.quote(name),
            columns=tuple(self._column(row, overrides) for row in columns),
            primary_key=tuple(str(row[3]) for row in sorted(keys, key=lambda row: _number(row[4]))),
            has_row_ids=False,
        )
        return sql_queries.check_overrides(info, overrides)

    def now(self) -> ServerTime:
        """Raise `Misconfigured`: not supported by JDBC."""
        raise Misconfigured(f"The clock of {self.settings} cannot be read. Set the mode of its tables to full.")

    def earliest_local(self, since: datetime) -> datetime:  # noqa: ARG002 - the port has it
        """Raise `Misconfigured`: not supported by JDBC."""
        return self.now().local

    def open_transactions(self) -> OpenTransactions:
        """Return that they are unknown."""
        return OpenTransactions(unknown="JDBC does not show open transactions")

    def count(self, query: Query) -> int:
        """Count the rows."""
        return sql_queries.count(self, query)

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """Raise `Misconfigured`: not supported by JDBC."""
        raise Misconfigured(f"{query.table} of {self.settings} cannot be read by {column!r}. Set its mode to full.")

    def literal(self, value: Value, column: Column) -> str:
        """Raise `Misconfigured`: not supported by JDBC."""
        raise Misconfigured(
            f"{value!r} cannot be compared with {column.name!r} in {self.settings}. Set the table's mode to full."
        )

    def quote(self, identifier: str) -> str:
        """Return a name in the quotation marks of the driver."""
        if "\0" in identifier or (not self._mark and not identifier.isidentifier()):
            raise Misconfigured(f"The name {identifier!r} cannot be quoted in {self.settings}.")
        return f"{self._mark}{identifier.replace(self._mark, self._mark * 2) if self._mark else identifier}{self._mark}"

    def by_code_points(self, text: str) -> str:
        """Raise `Misconfigured`: not supported by JDBC."""
        raise Misconfigured(f"The order of {text} in {self.settings} is unknown. Set the table's mode to full.")

    def sample_condition(self, fraction: float) -> str:
        """Raise `Misconfigured`: not supported by JDBC."""
        raise Misconfigured(f"{self.settings} cannot be sampled (fraction {fraction}). Set the table's mode to full.")

    @contextmanager
    def consistent_reads(self) -> Iterator[None]:
        """Nothing is promised: JDBC does not say how a snapshot is begun."""
        yield

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        """Yield None: JDBC exports no snapshots."""
        yield None

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:  # noqa: ARG002 - the port has it
        """Return one part, whatever the number."""
        return sql_queries.read_parts(self, query, [""], snapshot)

    @property
    def _dialect(self) -> Dialect | None:
        """The registered dialect of the server, by the URL without `jdbc:`."""
        return DIALECTS.for_url(f"{self.settings.database.split(':')[1]}://")

    def _check_quotes(self, sparks: str) -> None:
        """Raise `Misconfigured` if the server would read names that Spark quotes as strings."""
        if sparks == self.quote("c0") or self.settings.database.startswith(MARIADB):
            return
        answer = None
        with suppress(SourceFailed):
            answer = self.rows(f"SELECT {sparks} FROM (SELECT 7 AS c0) c")  # noqa: S608 - no input in it
        if answer != [(7,)]:
            self.close()
            raise Misconfigured(
                f"{self.settings} would be read wrongly: Spark quotes a column as {sparks}, but its driver as "
                f"{self.quote('c0')}. Use a driver and URL that Spark supports, such as jdbc:mysql: for MySQL."
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
        has_zone = self._dialect is not None and self._dialect.timestamp_has_zone
        zoned = "zone" in low or low.endswith("tz") or (low == "timestamp" and has_zone)
        if kind == _TIMESTAMP and (digits > 6 or zoned):
            arrow = None
        as_text = name in overrides.as_text or (arrow is None and EVERY_REFUSED in overrides.as_text)
        if as_text and kind in _CASTABLE:
            arrow, raw = pa.string(), text
        elif as_text and arrow != pa.string():
            arrow = None
        refused = None
        if arrow is None:
            refused = refusal(name, declared, "has no exact counterpart by JDBC")
            if kind not in _CASTABLE:
                refused = f"Column {name!r} of type {declared} cannot be read exactly by JDBC. Read a view without it."
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
        """Return a name as a search pattern of the catalog, with its wildcards escaped."""
        escape = str(meta.getSearchStringEscape() or "")
        special = {escape, "_", "%"} if escape else set()
        return "".join(f"{escape}{character}" if character in special else character for character in name)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
            return
        except Py4JJavaError as error:
            message = self.settings.redact(reason_of(error))
        # Raised outside of the handler: the driver's error, which may contain secrets, is not chained.
        if self.settings.driver and "ClassNotFoundException" in message:
            raise Misconfigured(
                f"There is no JDBC driver {self.settings.driver!r}. Add its Maven coordinate to spark.jars, or correct "
                f"the driver of {self.settings}."
            )
        if "No suitable driver" in message:
            jar = driver(self.settings.database) or "its Maven coordinate"
            raise Misconfigured(f"There is no JDBC driver for {self.settings}. Add {jar} to spark.jars.")
        low = message.lower()
        if "password" in low or "access denied" in low or "authentication" in low or "login" in low:
            raise Misconfigured(f"{self.settings} refused user {self.settings.user!r} or the password. Check both.")
        if any(sign in low for sign in ("refused", "unknown host", "timed out", "unreachable", "communications link")):
            raise Unavailable(
                f"{self.settings} cannot be reached ({message}). Check host and port, and that it is running."
            )
        raise SourceFailed(f"{self.settings} refused a request ({message}).")


def _connection(jvm: Any, settings: SourceSettings, properties: Any) -> Any:
    """Connect by the driver that is named, or else by the one that Java finds for the URL."""
    if settings.driver is None:
        return jvm.java.sql.DriverManager.getConnection(settings.database, properties)
    registry = jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry
    registry.register(settings.driver)
    connection = registry.get(settings.driver).connect(settings.database, properties)
    if connection is None:
        raise Misconfigured(f"The JDBC driver {settings.driver!r} is not for {settings}. Correct one of them.")
    return connection


def _number(value: Any) -> int:
    """Convert a number of the catalog; some drivers return Java objects that Py4J does not convert."""
    return 0 if value is None else int(str(value))
