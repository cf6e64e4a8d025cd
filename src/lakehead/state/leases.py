"""Advisory leases: they keep processes from being in each other's way. Correctness never depends on one."""

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, or_, select, update

from lakehead.state.database import Database, insert_new
from lakehead.state.keys import word
from lakehead.state.schema import leases


class Leases:
    """Who may go first at something, for a while; of one table, or (without a table) of all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, kind: str, owner: str, until: datetime, *, table: str | None = None) -> bool:
        """Take or extend a lease that is free, over or ours already. Exactly one of two owners gets it."""
        return self._database.write(lambda connection: self._take(connection, kind, owner, until, table))

    def drop(self, kind: str, owner: str, *, table: str | None = None) -> bool:
        """Give the lease back; false if it was not ours any more."""
        dropped = delete(leases).where(*_named(kind, table), leases.c.owner == word("owner", owner))
        return self._database.write(lambda connection: connection.execute(dropped).rowcount == 1)

    def holder(self, kind: str, *, table: str | None = None) -> tuple[str, datetime] | None:
        """Who took it last, and until when."""
        query = select(leases.c.owner, leases.c.until).where(*_named(kind, table))
        row = self._database.read(lambda connection: connection.execute(query).first())
        return (row.owner, row.until) if row else None

    def _take(self, connection: Connection, kind: str, owner: str, until: datetime, table: str | None) -> bool:
        now = self._database.now()
        ours = {"owner": word("owner", owner), "until": until, "taken_at": now}
        free = or_(leases.c.owner == owner, leases.c.until <= now)
        if connection.execute(update(leases).where(*_named(kind, table), free).values(ours)).rowcount == 1:
            return True
        insert_new(connection, leases, [{"kind": word("lease", kind, 32), "table_uuid": _table(table), **ours}])
        kept = update(leases).where(*_named(kind, table), leases.c.owner == owner).values(taken_at=now)
        return connection.execute(kept).rowcount == 1


def _table(table: str | None) -> str:
    return "" if table is None else word("table", table)


def _named(kind: str, table: str | None) -> tuple[ColumnElement[bool], ...]:
    return leases.c.kind == kind, leases.c.table_uuid == _table(table)
