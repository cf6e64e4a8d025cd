"""The migration to version 3: what a pipeline that consumes a queue needs. Released steps are never changed.

The tables are defined here once more, as they were in version 3: `schema` goes on to later versions.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, String, Table, Text, inspect, text
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.schema import DropIndex

_LONG = Text().with_variant(LONGTEXT(), "mysql")
_SERVED: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_VERSION_3 = MetaData()

_SHARDS = Table(  # of the shards only what their indexes need
    "lakehead_shards",
    MetaData(),
    Column("table_uuid", String(64)),
    Column("state", String(16)),
    Column("acknowledged_at", BigInteger),
)
_BY_STATE = Index("lakehead_shards_state", _SHARDS.c.table_uuid, _SHARDS.c.state, _SHARDS.c.acknowledged_at)
_BY_ACKNOWLEDGEMENT = Index("lakehead_shards_acknowledged", _SHARDS.c.table_uuid, _SHARDS.c.acknowledged_at)

Table(
    "lakehead_windows",
    _VERSION_3,
    Column("table_uuid", String(64), primary_key=True),
    Column("pipeline_key", String(64), primary_key=True),
    Column("pipeline", _LONG, nullable=False),
    Column("window_us", BigInteger, nullable=False),
    Column("most_shards", BigInteger),
    Column("seen_at", BigInteger, nullable=False),
    **_SERVED,
)

Table(
    "lakehead_pruning_pauses",
    _VERSION_3,
    Column("table_uuid", String(64), primary_key=True),
    Column("owner", String(64), primary_key=True),
    Column("until", BigInteger, nullable=False),
    **_SERVED,
)

Table(
    "lakehead_files",
    _VERSION_3,
    Column("table_uuid", String(64), primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("unit_key", String(64), primary_key=True),
    Column("unit", _LONG, nullable=False),
    Column("state", String(16), nullable=False),
    Column("landed_rows", BigInteger, nullable=False),
    Column("landed_bytes", BigInteger, nullable=False),
    Column("rescued_rows", BigInteger, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("first_error", _LONG),
    Column("last_error", _LONG),
    Column("snapshot_id", BigInteger),
    Column("first_seen", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
    Index("lakehead_files_changed", "table_uuid", "changed_at"),
    Index("lakehead_files_state", "table_uuid", "state", "changed_at"),
    **_SERVED,
)


def add_consume(connection: Connection) -> None:
    """Add the tables of windows, pauses and files, two times to dead letters, and a better index to shards."""
    _VERSION_3.create_all(connection)
    for table in _VERSION_3.sorted_tables:
        for index in table.indexes:
            index.create(connection, checkfirst=True)  # missing if a crash came after its table was created
    columns = {each["name"] for each in inspect(connection).get_columns("lakehead_dead_letters")}
    for column in ("replayed_at", "dropped_at"):
        if column not in columns:
            connection.execute(text(f"ALTER TABLE lakehead_dead_letters ADD COLUMN {column} BIGINT"))
    _BY_STATE.create(connection, checkfirst=True)
    if _BY_ACKNOWLEDGEMENT.name in {each["name"] for each in inspect(connection).get_indexes("lakehead_shards")}:
        connection.execute(DropIndex(_BY_ACKNOWLEDGEMENT))
