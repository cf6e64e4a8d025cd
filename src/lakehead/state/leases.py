"""Advisory leases: they keep processes from doing the same work at once. Correctness never depends on one."""

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, or_, select, update

from lakehead.state.database import Database, insert_new
from lakehead.state.keys import checked_key
from lakehead.state.schema import leases


class Leases:
    """Leases by kind, on one table or (without a table) on all. Each has one owner and a time when it expires."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def take(self, kind: str, owner: str, until: datetime, *, table: str | None = None) -> bool:
        """Take or extend a lease that is free, expired or ours already. Of two owners exactly one gets it."""
        return self._database.write(lambda connection: self._take(connection, kind, owner, until, table))

    def drop(self, kind: str, owner: str, *, table: str | None = None) -> bool:
        """Release the lease. False if it was not ours any more."""
        dropped = delete(leases).where(*_named(kind, table), leases.c.owner == checked_key("owner", owner))
        return self._database.write(lambda connection: connection.execute(dropped).rowcount == 1)

    def holder(self, kind: str, *, table: str | None = None) -> tuple[str, datetime] | None:
        """The owner that took it last, and when it expires; None if it is free."""
        query = select(leases.c.owner, leases.c.until).where(*_named(kind, table))
        row = self._database.read(lambda connection: connection.execute(query).first())
        return (row.owner, row.until) if row else None

    def _take(self, connection: Connection, kind: str, owner: str, until: datetime, table: str | None) -> bool:
        now = self._database.now()
        ours = {"owner": checked_key("owner", owner), "until": until, "taken_at": now}
        free = or_(leases.c.owner == owner, leases.c.until <= now)
        if connection.execute(update(leases).where(*_named(kind, table), free).values(ours)).rowcount == 1:
            return True
        insert_new(connection, leases, [{"kind": checked_key("lease", kind, 32), "table_uuid": _table(table), **ours}])
        kept = update(leases).where(*_named(kind, table), leases.c.owner == owner).values(taken_at=now)
        return connection.execute(kept).rowcount == 1


def _table(table: str | None) -> str:
    return "" if table is None else checked_key("table", table)


def _named(kind: str, table: str | None) -> tuple[ColumnElement[bool], ...]:
    return leases.c.kind == kind, leases.c.table_uuid == _table(table)
