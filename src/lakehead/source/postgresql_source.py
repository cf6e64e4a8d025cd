"""PostgreSQL as a source: catalog, clock, open transactions, snapshots, and parts by blocks or key ranges."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lakehead.errors import Misconfigured
from lakehead.metadata.snapshot import TableSnapshot
from lakehead.source import sql_queries
from lakehead.source.driver_errors import translate_errors
from lakehead.source.errors import NotExact
from lakehead.source.hash_sql import HashSql
from lakehead.source.local_time import instants_from
from lakehead.source.port import (
    Column,
    OpenTransactions,
    Overrides,
    Query,
    ReadPart,
    ServerTime,
    SourceCapabilities,
    TableInfo,
    TableName,
    quote_identifier,
)
from lakehead.source.postgresql import POSTGRESQL, TEXT_SETTINGS, no_timeouts
from lakehead.source.postgresql_hashes import POSTGRESQL_HASHES
from lakehead.source.postgresql_types import column_of
from lakehead.source.source_settings import APPLICATION_NAME, SourceSettings
from lakehead.source.splits import block_split_points
from lakehead.source.table_snapshots import tables_of
from lakehead.state.model import Value

if TYPE_CHECKING:
    import psycopg

_NAMES = """
SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND lower(c.relname) = lower({name})
AND (lower(n.nspname) = lower({schema}) OR ({schema} IS NULL AND pg_table_is_visible(c.oid)))
"""
_RELATION = """
SELECT c.oid::int8, c.relkind::text, c.reltuples::int8, pg_table_size(c.oid)::int8
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = {schema} AND c.relname = {name}
"""
_COLUMNS = """
WITH RECURSIVE behind AS (
    SELECT attnum, atttypid AS type, atttypmod AS modifier FROM pg_attribute
    WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT attnum, typbasetype, typtypmod FROM behind JOIN pg_type ON pg_type.oid = type WHERE typtype = 'd'
)
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), t.typname::text, t.typtype::text, b.modifier,
    a.attnotnull, a.attnum
FROM behind b JOIN pg_type t ON t.oid = b.type AND t.typtype <> 'd'
JOIN pg_attribute a ON a.attrelid = {oid} AND a.attnum = b.attnum ORDER BY a.attnum
"""
_KEYS = """
SELECT i.indisprimary, array_agg(a.attname::text ORDER BY k.place)
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = {oid} AND i.indisunique AND i.indisvalid AND i.indexprs IS NULL AND i.indpred IS NULL
AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indisprimary ORDER BY i.indisprimary DESC, i.indexrelid
"""
_PAGES = """
WITH RECURSIVE family AS (
    SELECT {oid}::oid AS oid UNION SELECT inhrelid FROM pg_inherits JOIN family ON inhparent = family.oid
)
SELECT (pg_relation_size(oid) / current_setting('block_size')::int8)::int8 FROM family
"""
# All relations whose rows a table or a view shows, recursively: partitions, children, and what a view reads.
_ELSEWHERE = """
WITH RECURSIVE family AS (
    SELECT {oid}::oid AS oid
    UNION
    SELECT found.oid FROM family CROSS JOIN LATERAL (
        SELECT inhrelid AS oid FROM pg_inherits WHERE inhparent = family.oid
        UNION ALL
        SELECT d.refobjid FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        AND d.refclassid = 'pg_class'::regclass WHERE r.ev_class = family.oid
    ) AS found
)
SELECT c.relname::text, c.relkind::text FROM family JOIN pg_class c ON c.oid = family.oid
WHERE c.relkind IN ('f', 'm') OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = c.oid) ORDER BY 1 LIMIT 1
"""
_SNAPSHOT = """
SELECT n.nspname::text, c.relname::text, c.oid::text, a.attname::text, format_type(a.atttypid, a.atttypmod),
    NOT a.attnotnull, a.attnum, array_position(i.indkey::int2[], a.attnum)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND lower(c.relname) IN ({names})
AND (lower(n.nspname) = lower({schema}) OR ({schema} IS NULL AND pg_table_is_visible(c.oid)))
ORDER BY c.oid, a.attnum
"""
_ZONE = "(SELECT reset_val FROM pg_settings WHERE name = 'TimeZone')"
_NOW = f"SELECT clock_timestamp(), clock_timestamp() AT TIME ZONE {_ZONE}"
_EARLIEST = "SELECT min(instant AT TIME ZONE {zone}) FROM unnest(ARRAY[{instants}]) AS g(instant)"
# A transaction without an id may still get one and write. Our own readers, vacuum workers and WAL senders never do.
# Without the privilege, sessions of other users are listed, but not their transactions.
_OPEN = """
WITH others AS (
    SELECT pid, usename, application_name, xact_start, query = '<insufficient privilege>' AS hidden,
        state = 'disabled' AS silent
    FROM pg_stat_activity
    WHERE datid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()
    AND application_name IS DISTINCT FROM '{reader}'
    AND coalesce(backend_type, '') NOT IN ('autovacuum worker', 'walsender')
    UNION ALL
    SELECT NULL, owner, 'prepared as ' || gid, prepared, false, false FROM pg_prepared_xacts
    WHERE database = current_database()
)
SELECT xact_start, usename::text, application_name, pid, pg_is_in_recovery(),
    (SELECT count(*) FROM others WHERE hidden), (SELECT count(*) FROM others WHERE silent),
    (SELECT count(*) FROM others WHERE pid IS NULL)
FROM (SELECT 1) AS one LEFT JOIN others ON xact_start IS NOT NULL ORDER BY xact_start NULLS LAST LIMIT 1
"""

# The primary's time, not this server's. Before the first replayed commit it is the time of the last checkpoint.
_REPLAYED = "SELECT greatest(pg_last_xact_replay_timestamp(), checkpoint_time) FROM pg_control_checkpoint()"

_LARGEST = 1.75
"""If value ranges are more uneven than this, a window is split by blocks, though that reads the whole table."""


class PostgreSQLSource:
    """An open connection to a PostgreSQL database."""

    capabilities = SourceCapabilities(incremental=True)
    sql_dialect = POSTGRESQL.sqlglot
    hash_sql: HashSql | None = POSTGRESQL_HASHES

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        with translate_errors(settings):
            self._connection = _connect(settings)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        import psycopg  # noqa: PLC0415 - a driver that only this source needs

        with translate_errors(self.settings):
            try:
                return self._connection.execute(sql.encode()).fetchall()
            except psycopg.DataError as error:
                if error.sqlstate is not None:
                    raise
                raise NotExact(
                    f"{self.settings} returned a value that cannot be a bound ({error}). Fix the value, or exclude "
                    "such rows by a filter."
                ) from None

    def describe_table(self, table: TableName, overrides: Overrides = Overrides()) -> TableInfo:  # noqa: B008 - frozen
        """Return the columns and keys of a table."""
        schema, quoted_name = self._text(table.schema) if table.schema else "NULL", self._text(table.name)
        names = [(str(s), str(n)) for s, n in self.rows(_NAMES.format(name=quoted_name, schema=schema))]
        place, name = sql_queries.match_name(table, names, self.settings)
        found = self.rows(_RELATION.format(schema=self._text(place), name=self._text(name)))
        [(oid, kind, rows, size)] = found
        keys = self.rows(_KEYS.format(oid=oid))
        info = TableInfo(
            schema=place,
            name=name,
            quoted=f"{self.quote(place)}.{self.quote(name)}",
            columns=tuple(
                replace(
                    column_of(column, declared, base, sort, modifier, nullable=not required, overrides=overrides),
                    number=number,
                )
                for column, declared, base, sort, modifier, required, number in self.rows(_COLUMNS.format(oid=oid))
            ),
            primary_key=next((tuple(columns) for primary, columns in keys if primary), ()),
            unique_keys=tuple(tuple(columns) for primary, columns in keys if not primary),
            estimated_rows=rows if rows >= 0 else None,
            estimated_bytes=size,
            has_row_ids=kind in "rpm",
            identity=str(oid),
            written_elsewhere=self._elsewhere(oid),
        )
        return sql_queries.check_overrides(info, overrides)

    def snapshot_tables(self, schema: str | None, names: Sequence[str]) -> tuple[TableSnapshot, ...]:
        """Snapshot the tables with these names, in one query."""
        if not names:
            return ()
        wanted = ", ".join(f"lower({self._text(name)})" for name in names)
        quoted_schema = self._text(schema) if schema else "NULL"
        return tables_of(self.rows(_SNAPSHOT.format(names=wanted, schema=quoted_schema)))

    def now(self) -> ServerTime:
        """Return the server's current time."""
        [(utc, local)] = self.rows(_NOW)
        return ServerTime(utc, local)

    def earliest_local(self, since: datetime) -> datetime:
        """Return the earliest local time that the server's clock will show from an instant on."""
        instants = ", ".join(f"'{instant.isoformat(sep=' ')}'::timestamptz" for instant in instants_from(since))
        [(earliest,)] = self.rows(_EARLIEST.format(zone=_ZONE, instants=instants))
        local: datetime = earliest
        return local

    def open_transactions(self) -> OpenTransactions:
        """Return the transactions that may still commit."""
        [answer] = self.rows(_OPEN.format(reader=APPLICATION_NAME))
        oldest, user, program, session, standby, hidden, silent, prepared = answer
        if standby:
            [(replayed,)] = self.rows(_REPLAYED)
            return OpenTransactions(
                oldest=replayed,
                whose="the standby itself, which lags behind its primary",
                unknown="it is a standby, which does not know the open transactions of its primary",
            )
        unknown = None
        if hidden:
            unknown = (
                f"{self.settings.user!r} may not see {hidden} sessions of other users (grant pg_read_all_stats to it)"
            )
        elif silent:
            unknown = f"{silent} sessions do not report transactions, because their track_activities is off"
        elif prepared:
            unknown = f"{prepared} prepared transactions do not report when they started"
        whose = None
        if oldest is not None:
            whose = f"{user} ({program or 'no program name'}{f', process {session}' if session else ''})"
        return OpenTransactions(oldest=oldest, whose=whose, unknown=unknown)

    def count(self, query: Query) -> int:
        """Count the rows."""
        return sql_queries.count(self, query)

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """Return the lowest and highest value of a column; None if there is no value."""
        return sql_queries.bounds(self, query, column)

    def quote(self, identifier: str) -> str:
        """Return a quoted name."""
        return quote_identifier(identifier)

    def literal(self, value: Value, column: Column) -> str:
        """Return a value as a typed SQL literal: cast to the column's type it could be rounded."""
        match value:
            case bool():
                raise Misconfigured(f"Column {column.name!r} cannot be compared with a boolean.")
            case int():
                return f"({value})"
            case Decimal():
                return f"{self._text(format(value, 'f'))}::numeric"
            case datetime() if value.tzinfo is not None:
                return f"{self._text(value.isoformat(sep=' '))}::timestamptz"
            case datetime():
                return f"{self._text(value.isoformat(sep=' '))}::timestamp"
            case date():
                return f"{self._text(value.isoformat())}::date"
            case str():
                return self._text(value)

    def by_code_points(self, text: str) -> str:
        """Return a text expression that compares by code points."""
        return f'{text}::text COLLATE "C"'

    def sample_condition(self, fraction: float) -> str:
        """Return a condition that is true for a random fraction of the rows."""
        return f"random() < {fraction:.9f}"

    @contextmanager
    def consistent_reads(self) -> Iterator[None]:
        """All statements within the `with` see one snapshot, and write values as readers do."""
        with translate_errors(self.settings):
            for statement in ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", *TEXT_SETTINGS):
                self._connection.execute(statement.encode())
        try:
            yield
        finally:
            with translate_errors(self.settings):
                self._connection.execute("ROLLBACK")

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        """Export a snapshot for all parts of a read, valid within the `with`."""
        with translate_errors(self.settings):
            holder = _connect(self.settings)
        try:
            with translate_errors(self.settings):
                holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                exported = holder.execute("SELECT pg_export_snapshot()").fetchone()
            assert exported is not None  # noqa: S101 - the function returns or raises
            yield str(exported[0])
        finally:
            holder.close()

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:
        """Split a whole table by blocks, and a window by its values if that is even enough.

        Without a snapshot, a row that is updated during the read may be read in two parts or in none.
        """
        sql_queries.check_nulls(self, query)
        conditions = [""]
        if number > 1 and query.window is not None:
            conditions = sql_queries.key_ranges(self, query, number, largest=_LARGEST)
        if number > 1 and len(conditions) == 1 and query.table.has_row_ids:
            conditions = self._blocks(query, number)
        return sql_queries.read_parts(self, query, conditions, snapshot)

    def _elsewhere(self, oid: int) -> str | None:
        """Return why rows of a relation are not written by transactions of this server; None if they are."""
        found = self.rows(_ELSEWHERE.format(oid=oid))
        if not found:
            return None
        [(name, kind)] = found
        match kind:
            case "f":
                return f"{name!r} is a foreign table, whose server does not report its transactions here"
            case "m":
                return f"{name!r} is a materialized view, whose rows appear when it is refreshed"
            case _:
                return (
                    f"{name!r} is replicated by a subscription, whose publisher does not report its transactions here"
                )

    def _blocks(self, query: Query, number: int) -> list[str]:
        table = query.table
        name = f"({self._text(table.quoted)}::regclass)"
        pages = [int(count) for (count,) in self.rows(_PAGES.format(oid=name))]
        cuts = block_split_points(pages, number)
        if not cuts:
            return [""]
        # Rows in blocks that are added later are in the last range.
        return [
            f"ctid < '({cuts[0]},0)'::tid",
            *(f"ctid >= '({low},0)'::tid AND ctid < '({high},0)'::tid" for low, high in pairwise(cuts)),
            f"ctid >= '({cuts[-1]},0)'::tid",
        ]

    def _text(self, text: str) -> str:
        if "\0" in text:
            raise Misconfigured("PostgreSQL does not support text with a NUL character. Remove it.")
        doubled = text.replace("'", "''")
        # With a backslash, the E'' form means the same under every server setting.
        return " E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in doubled else f"'{doubled}'"


def _connect(settings: SourceSettings) -> "psycopg.Connection[tuple[Any, ...]]":
    import psycopg  # noqa: PLC0415 - a driver that only this source needs

    url = settings.url(connect_timeout=str(settings.connect_timeout), application_name=APPLICATION_NAME)
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("SET client_encoding = 'UTF8'")  # in which statements are sent, whatever the database has
    connection.execute("SET TIME ZONE 'UTC'")
    connection.execute("SET datestyle = 'ISO'")
    connection.execute(no_timeouts(local=False).encode())
    return connection
