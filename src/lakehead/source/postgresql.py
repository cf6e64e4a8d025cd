"""PostgreSQL as a source: its catalogue, its clock, its open transactions, its snapshots and its blocks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lakehead.errors import Misconfigured
from lakehead.source import questions
from lakehead.source.errors import NotExact
from lakehead.source.local_time import moments_from
from lakehead.source.port import (
    Capabilities,
    Column,
    OpenTransactions,
    Overrides,
    Query,
    ReadPart,
    ServerTime,
    TableInfo,
    TableName,
    quoted,
)
from lakehead.source.postgresql_session import no_timeouts
from lakehead.source.postgresql_types import column_of
from lakehead.source.sentences import told
from lakehead.source.settings import READER, SourceSettings
from lakehead.source.splits import block_cuts
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
SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), t.typname::text, t.typtype::text, b.modifier, a.attnotnull
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
# All relations whose rows a table or a view shows: its partitions and children, and what a view reads, and so on.
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
_ZONE = "(SELECT reset_val FROM pg_settings WHERE name = 'TimeZone')"
_NOW = f"SELECT clock_timestamp(), clock_timestamp() AT TIME ZONE {_ZONE}"
_EARLIEST = "SELECT min(moment AT TIME ZONE {zone}) FROM unnest(ARRAY[{moments}]) AS g(moment)"
# A transaction without an id may still get one and write; our own readers, which may last for hours, do not, nor do
# those that vacuum or send. Of other users' sessions whoever may not see them is told only that they are there.
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

# The primary's time, not this server's. Until a commit was replayed, the last checkpoint tells how far it is.
_REPLAYED = "SELECT greatest(pg_last_xact_replay_timestamp(), checkpoint_time) FROM pg_control_checkpoint()"

_LARGEST = 1.75
"""Above it, blocks part a window more evenly than its values, though the whole table is read for it."""


class PostgreSQL:
    """A PostgreSQL database that is open."""

    can = Capabilities(incremental=True, snapshots=True)
    dialect = "postgresql"

    def __init__(self, settings: SourceSettings) -> None:
        self.settings = settings
        with told(settings):
            self._connection = _connect(settings)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def rows(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """All rows of a statement."""
        import psycopg  # noqa: PLC0415 - a driver that only this source needs

        with told(self.settings):
            try:
                return self._connection.execute(sql.encode()).fetchall()
            except psycopg.DataError as error:
                if error.sqlstate is not None:
                    raise
                raise NotExact(
                    f"{self.settings} answered a value that cannot be a bound ({error}). Mend the value, or leave "
                    "such rows out by a filter."
                ) from None

    def catalogue(self, table: TableName, overrides: Overrides = Overrides()) -> TableInfo:  # noqa: B008 - frozen
        """What the table has."""
        schema, wanted = self._text(table.schema) if table.schema else "NULL", self._text(table.name)
        names = [(str(s), str(n)) for s, n in self.rows(_NAMES.format(name=wanted, schema=schema))]
        place, name = questions.match_name(table, names, self.settings)
        found = self.rows(_RELATION.format(schema=self._text(place), name=self._text(name)))
        [(oid, kind, rows, size)] = found
        keys = self.rows(_KEYS.format(oid=oid))
        info = TableInfo(
            schema=place,
            name=name,
            quoted=f"{self.quote(place)}.{self.quote(name)}",
            columns=tuple(
                column_of(column, declared, base, sort, modifier, nullable=not required, overrides=overrides)
                for column, declared, base, sort, modifier, required in self.rows(_COLUMNS.format(oid=oid))
            ),
            primary_key=next((tuple(columns) for primary, columns in keys if primary), ()),
            unique_keys=tuple(tuple(columns) for primary, columns in keys if not primary),
            estimated_rows=rows if rows >= 0 else None,
            estimated_bytes=size,
            plain=kind in "rpm",
            written_elsewhere=self._elsewhere(oid),
        )
        return questions.checked(info, overrides)

    def now(self) -> ServerTime:
        """The server's clock."""
        [(utc, local)] = self.rows(_NOW)
        return ServerTime(utc, local)

    def earliest_local(self, since: datetime) -> datetime:
        """The earliest value that the server writes into columns without a zone from that moment on."""
        moments = ", ".join(f"'{moment.isoformat(sep=' ')}'::timestamptz" for moment in moments_from(since))
        [(earliest,)] = self.rows(_EARLIEST.format(zone=_ZONE, moments=moments))
        local: datetime = earliest
        return local

    def open_transactions(self) -> OpenTransactions:
        """How far back a commit may still come."""
        [answer] = self.rows(_OPEN.format(reader=READER))
        oldest, user, program, session, standby, hidden, silent, prepared = answer
        if standby:
            [(replayed,)] = self.rows(_REPLAYED)
            return OpenTransactions(
                oldest=replayed,
                whose="the standby itself, which has not replayed its primary further",
                unknown="it is a standby, which does not know its primary's transactions and may be behind it",
            )
        unknown = None
        if hidden:
            unknown = f"{self.settings.user!r} may not see {hidden} sessions of others (grant pg_read_all_stats to it)"
        elif silent:
            unknown = f"{silent} sessions do not say whether they have one open: their track_activities is off"
        elif prepared:
            unknown = f"{prepared} prepared transactions do not say when they began"
        whose = None
        if oldest is not None:
            whose = f"{user} ({program or 'no program name'}{f', process {session}' if session else ''})"
        return OpenTransactions(oldest=oldest, whose=whose, unknown=unknown)

    def count(self, query: Query) -> int:
        """How many rows there are, counted."""
        return questions.count(self, query)

    def bounds(self, query: Query, column: str) -> tuple[Value, Value] | None:
        """The least and the greatest value, none if there is none."""
        return questions.bounds(self, query, column)

    def quote(self, identifier: str) -> str:
        """A name in SQL."""
        return quoted(identifier, "postgresql")

    def literal(self, value: Value, column: Column) -> str:
        """A value in SQL, to be compared with a column. It is typed by itself: the column's type may round."""
        match value:
            case bool():
                raise Misconfigured(f"Column {column.name!r} cannot be compared with a truth value.")
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
        """An expression of text that compares by its code points."""
        return f'{text}::text COLLATE "C"'

    def chance(self, share: float) -> str:
        """A condition that is true for about such a share of the rows, by chance."""
        return f"random() < {share:.9f}"

    @contextmanager
    def snapshot(self) -> Iterator[str | None]:
        """One view of the database for all parts made with it, as long as the context lasts."""
        with told(self.settings):
            holder = _connect(self.settings)
        try:
            with told(self.settings):
                holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                exported = holder.execute("SELECT pg_export_snapshot()").fetchone()
            assert exported is not None  # noqa: S101 - the function answers or fails
            yield str(exported[0])
        finally:
            holder.close()

    def parts(self, query: Query, number: int, snapshot: str | None = None) -> tuple[ReadPart, ...]:
        """A whole table by its blocks, a window by its values if they can be parted evenly.

        Without a snapshot, a row that is updated meanwhile may be read in two parts or in none.
        """
        questions.check_nulls(self, query)
        conditions = [""]
        if number > 1 and query.window is not None:
            conditions = questions.key_ranges(self, query, number, largest=_LARGEST)
        if number > 1 and len(conditions) == 1 and query.table.plain:
            conditions = self._blocks(query, number)
        return questions.read_parts(self, query, conditions, snapshot)

    def _elsewhere(self, oid: int) -> str | None:
        """Why rows of a relation come otherwise than by transactions on this server."""
        found = self.rows(_ELSEWHERE.format(oid=oid))
        if not found:
            return None
        [(name, kind)] = found
        match kind:
            case "f":
                return f"{name!r} is a foreign table, and its own server's are not told"
            case "m":
                return f"{name!r} is a materialized view, which shows rows when it is refreshed"
            case _:
                return f"{name!r} gets rows by a subscription, and its publisher's are not told"

    def _blocks(self, query: Query, number: int) -> list[str]:
        table = query.table
        name = f"({self._text(table.quoted)}::regclass)"
        pages = [int(count) for (count,) in self.rows(_PAGES.format(oid=name))]
        cuts = block_cuts(pages, number)
        if not cuts:
            return [""]
        # A row in a block that is new since then is in the last range.
        return [
            f"ctid < '({cuts[0]},0)'::tid",
            *(f"ctid >= '({low},0)'::tid AND ctid < '({high},0)'::tid" for low, high in pairwise(cuts)),
            f"ctid >= '({cuts[-1]},0)'::tid",
        ]

    def _text(self, text: str) -> str:
        if "\0" in text:
            raise Misconfigured("PostgreSQL has no text with a zero character in it.")
        doubled = text.replace("'", "''")
        # With a backslash the form that reads the same under every setting of the server.
        return " E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in doubled else f"'{doubled}'"


def _connect(settings: SourceSettings) -> "psycopg.Connection[tuple[Any, ...]]":
    import psycopg  # noqa: PLC0415 - a driver that only this source needs

    url = settings.url(connect_timeout=str(settings.connect_timeout), application_name=READER)
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("SET TIME ZONE 'UTC'")
    connection.execute("SET datestyle = 'ISO'")
    connection.execute(no_timeouts(local=False).encode())
    return connection
