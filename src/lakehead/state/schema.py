"""The tables of the state database, in a form that every supported server accepts.

SingleStore sets the limits: no foreign keys, no checks, and every unique key is the primary key, by which the rows are
distributed. Key columns are short; the name of a unit or of a stream may be long, so its SHA-256 is the key and the
text is in another column.
Times are microseconds since 1970 in UTC, JSON is text. A change here is a new version: add its step to `migrations`.
"""

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, String, Table, Text
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Instant(TypeDecorator[datetime]):
    """A time with microseconds, stored as a number that no server shifts or rounds."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002 - SQLAlchemy's shape
        """Microseconds since 1970. The subtraction raises for a time without a zone."""
        return None if value is None else (value - EPOCH) // MICROSECOND

    def process_result_value(self, value: int | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's shape
        """The time, in UTC."""
        return None if value is None else EPOCH + value * MICROSECOND


class Day(TypeDecorator[date]):
    """A date as ISO text, which sorts correctly."""

    impl = String(10)
    cache_ok = True

    def process_bind_param(self, value: date | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - SQLAlchemy's shape
        """The date's ISO form."""
        return None if value is None else value.isoformat()

    def process_result_value(self, value: str | None, dialect: Dialect) -> date | None:  # noqa: ARG002 - SQLAlchemy's shape
        """The date."""
        return None if value is None else date.fromisoformat(value)


class Json(TypeDecorator[Any]):
    """JSON as text: ASCII only, so that no server's character set or normalisation matters."""

    impl = Text().with_variant(LONGTEXT(), "mysql")
    cache_ok = True

    def process_bind_param(self, value: object, dialect: Dialect) -> str:  # noqa: ARG002 - SQLAlchemy's shape
        """Its canonical text."""
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002 - SQLAlchemy's shape
        """The decoded value."""
        return None if value is None else json.loads(value)


metadata = MetaData()
_LONG = Text().with_variant(LONGTEXT(), "mysql")
_SERVED: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def _table(name: str, *parts: SchemaItem) -> Table:
    return Table(f"lakehead_{name}", metadata, *parts, **_SERVED)


def _key(name: str, length: int = 64) -> Column[Any]:
    return Column(name, String(length), primary_key=True)


def _number(name: str, *, null: bool = False) -> Column[Any]:
    return Column(name, BigInteger, nullable=null)


schema_version = _table(
    "schema",
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
)

pointers = _table(
    "pointers",
    _key("table_uuid"),
    _number("snapshot_id", null=True),  # NULL until the table's first landing is settled
    _number("last_landing", null=True),
    Column("settled_at", Instant, nullable=False),
    Column("locked_at", Instant, nullable=False),  # written by transactions that lock the pointer
)

shards = _table(
    "shards",
    _key("table_uuid"),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    _key("unit_key"),
    Column("unit", _LONG, nullable=False),
    Column("state", String(16), nullable=False),
    Column("publish_token", String(64), nullable=False),
    Column("owner", String(64)),
    Column("lease_until", Instant),
    Column("extended_at", Instant),
    Column("tries", Integer, nullable=False),
    _number("snapshot_id", null=True),
    Column("acknowledged_at", Instant),
    Column("updated_at", Instant, nullable=False),
    Column("landed_part", Json),  # how far an object has landed that is too large for one landing; NULL for all others
    # For counting by state and for pruning, the oldest acknowledgement first.
    Index("lakehead_shards_state", "table_uuid", "state", "acknowledged_at"),
)

windows = _table(
    "windows",
    _key("table_uuid"),
    _key("pipeline_key"),
    Column("pipeline", _LONG, nullable=False),
    _number("window_us"),
    _number("most_shards", null=True),  # NULL: any number
    Column("seen_at", Instant, nullable=False),
)

pruning_pauses = _table(
    "pruning_pauses",
    _key("table_uuid"),
    _key("owner"),
    Column("until", Instant, nullable=False),
)

ranges = _table(
    "ranges",
    _key("table_uuid"),
    _key("stream_key"),
    Column("span_start", BigInteger, primary_key=True, autoincrement=False),
    _number("span_end"),  # exclusive; the spans of a stream neither overlap nor touch
    Column("stream", _LONG, nullable=False),
)

watermarks = _table(
    "watermarks",
    _key("table_uuid"),
    _key("mark", 16),
    _number("generation"),
    Column("kind", String(16), nullable=False),
    Column("value", _LONG, nullable=False),
    _number("slice", null=True),
    _number("snapshot_id", null=True),
    Column("last_loaded", Day),
    Column("updated_at", Instant, nullable=False),
    _number("version"),
    Column("read_by", Json),
)

days = _table(
    "days",
    _key("table_uuid"),
    Column("load_date", Day, primary_key=True),
    _key("phase"),
    Column("state", String(16), nullable=False),
    Column("run", String(64)),
    Column("detail", Json, nullable=False),
    Column("updated_at", Instant, nullable=False),
)

plans = _table(
    "plans",
    _key("table_uuid"),
    Column("plan_id", String(64), nullable=False),
    _number("generation"),
    Column("detail", Json, nullable=False),
    Column("saved_at", Instant, nullable=False),
)

slices = _table(
    "slices",
    _key("table_uuid"),
    _key("plan_id"),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("unit", _LONG, nullable=False),
    Column("bounds", Json, nullable=False),
    Column("done_at", Instant),
    _number("snapshot_id", null=True),
)

events = _table(
    "events",
    _key("event_id"),
    Column("at", Instant, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("table_uuid", String(64)),
    Column("run", String(64)),
    Column("payload", Json, nullable=False),
    Index("lakehead_events_at", "at"),
    Index("lakehead_events_table", "table_uuid", "at"),
    Index("lakehead_events_run", "run", "at"),
)

dead_letters = _table(
    "dead_letters",
    _key("table_uuid"),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    _key("unit_key"),
    Column("unit", _LONG, nullable=False),
    Column("reason", _LONG, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("at", Instant, nullable=False),
    Column("replayed_at", Instant),
    Column("dropped_at", Instant),
)

files = _table(
    "files",
    _key("table_uuid"),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    _key("unit_key"),
    Column("unit", _LONG, nullable=False),
    Column("state", String(16), nullable=False),
    _number("landed_rows"),
    _number("landed_bytes"),
    _number("rescued_rows"),
    Column("tries", Integer, nullable=False),
    Column("first_error", _LONG),
    Column("last_error", _LONG),
    _number("snapshot_id", null=True),
    Column("first_seen", Instant, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Index("lakehead_files_changed", "table_uuid", "changed_at"),
    Index("lakehead_files_state", "table_uuid", "state", "changed_at"),
)

metrics = _table(
    "metrics",
    _key("run"),
    _key("table_uuid"),  # empty for a metric of the whole run
    _key("name"),
    Column("value", Double, nullable=False),
    Column("at", Instant, nullable=False),
)

leases = _table(
    "leases",
    _key("kind", 32),
    _key("table_uuid"),  # empty for a lease that is not on one table
    Column("owner", String(64), nullable=False),
    Column("until", Instant, nullable=False),
    Column("taken_at", Instant, nullable=False),
)
