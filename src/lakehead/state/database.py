"""Transactions: atomic, retried where that is safe, with an `OutcomeUnknown` if a commit was not answered."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NoReturn, TypeVar

from sqlalchemy import Connection, Engine, Insert, Table, func
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from lakehead.clock import Clock
from lakehead.errors import DiskFull, LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.retry import Backoff
from lakehead.state.faults import Fault, fault_of, first_line
from lakehead.state.schema import EPOCH, MICROSECOND

T = TypeVar("T")
Row = Mapping[str, Any]


class Contended(Exception):
    """Another transaction changed what this one read: roll back and try again."""


class Database:
    """The state database and its transactions. Safe to share between threads."""

    def __init__(
        self,
        engine: Engine,
        *,
        name: str,
        clock: Clock,
        ids: Ids,
        random: Random,
        backoff: Backoff,
        pause: Callable[[float], object],
    ) -> None:
        self.engine = engine
        self.name = name
        self.ids = ids
        self._clock = clock
        self._random = random
        self._backoff = backoff
        self._pause = pause
        self._last = 0
        self._ticking = threading.Lock()

    def __repr__(self) -> str:
        return f"Database({self.name})"

    def now(self) -> datetime:
        """The current time, always later than every time returned before, even if the machine's clock was set back.

        This distinguishes a lease that was extended after a fence from one that was extended before it.
        """
        with self._ticking:
            self._last = max(self._last + 1, self._clock.now_ns() // 1000)
            return EPOCH + self._last * MICROSECOND

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return what `work` reads, in one read-only transaction."""
        return self.patiently(lambda: self._once(work, reading=True))

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do `work` in one atomic transaction. `work` may be called again after a deadlock.

        Raises `Unavailable` if nothing was changed and all attempts failed, and `OutcomeUnknown` if the connection was
        lost while the server was committing.
        """
        return self.patiently(lambda: self._once(work, reading=False))

    def patiently(self, attempt: Callable[[], T]) -> T:
        """Call `attempt`, and retry it with pauses on contention or lost connections.

        Raises `Unavailable` after the last attempt.
        """
        reason = ""
        for pause in self._backoff.pauses(self._random):
            if pause:
                self._pause(pause)
            try:
                return attempt()
            except Contended:
                reason = "other transactions keep changing the same rows"
            except PoolTimeout:
                reason = "all connections are in use"
            except DBAPIError as error:
                match fault_of(error):
                    case Fault.CONTENDED | Fault.LOST:
                        reason = first_line(error)
                    case _:
                        self.give_up(error)
        raise Unavailable(
            f"The state database {self.name} did not complete a transaction in {self._backoff.attempts} attempts "
            f"({reason}). Nothing was changed; try again later."
        )

    def _once(self, work: Callable[[Connection], T], *, reading: bool) -> T:
        with self._connection(reading=reading) as connection:
            transaction = connection.begin()
            try:
                answer = work(connection)
            except BaseException:
                with suppress(DBAPIError):
                    transaction.rollback()
                raise
            try:
                transaction.commit()
            except DBAPIError as error:
                fault = fault_of(error)
                if reading or fault in (Fault.CONTENDED, Fault.LOCKED):
                    raise
                if fault is Fault.FULL:
                    raise OutcomeUnknown(
                        f"The disk of the state database {self.name} was full during a commit ({first_line(error)}). "
                        "Make room there. The change may have been made; read the state before doing it again."
                    ) from None
                raise OutcomeUnknown(
                    f"The connection to the state database {self.name} was lost during a commit "
                    f"({first_line(error)}). The change may have been made; read the state before doing it again."
                ) from None
            return answer

    @contextmanager
    def _connection(self, *, reading: bool) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            yield connection.execution_options(reading=reading)

    def give_up(self, error: DBAPIError) -> NoReturn:
        """Raise the error of ours for a database's error, or the error itself if it is a bug of ours."""
        raise self.sentence(error) from None

    def sentence(self, error: DBAPIError) -> LakeheadError | DBAPIError:
        """The error of ours for a database's error, or the error itself if it is a bug of ours."""
        reason = first_line(error)
        match fault_of(error):
            case Fault.REFUSED:
                return Misconfigured(
                    f"The state database {self.name} refused access ({reason}). "
                    "Check its address, its name, the user, the password and the user's privileges.",
                    fault="refused",
                )
            case Fault.FULL:
                return DiskFull(
                    f"The disk of the state database {self.name} is full ({reason}). Make room there, and run it "
                    "again.",
                    fault="full",
                )
            case Fault.LOCKED:
                return Unavailable(
                    f"A lock in the state database {self.name} could not be acquired in time ({reason}). "
                    "Nothing was changed; try again later.",
                    fault="locked",
                )
            case Fault.LOST | Fault.CONTENDED:
                return Unavailable(
                    f"The state database {self.name} cannot be reached ({reason}). "
                    "Nothing was changed; check that it runs, and try again later.",
                    fault="not reached",
                )
            case Fault.OTHER:
                return error


def insert_new(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert the rows whose keys do not exist yet; rows with an existing key are not changed."""
    if not rows:
        return
    statement: Insert
    match connection.dialect.name:
        case "sqlite":
            statement = sqlite.insert(table).on_conflict_do_nothing()
        case "postgresql":
            statement = postgresql.insert(table).on_conflict_do_nothing()
        case _:
            # Not INSERT IGNORE, which would also ignore values that do not fit.
            column = _first_beside_the_key(table)
            statement = mysql.insert(table).on_duplicate_key_update({column: table.c[column]})
    connection.execute(statement, list(rows))


def insert_or_replace(
    connection: Connection,
    table: Table,
    rows: Sequence[Row],
    *,
    keep: Collection[str] = (),
    keep_if_null: Collection[str] = (),
) -> None:
    """Insert the rows; a row with an existing key replaces the old one.

    The columns of `keep` stay as they are, unless they are null. Those of `keep_if_null` stay if the new value is null.
    """
    if not rows:
        return

    def replaced(new: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for column in table.columns:
            if column.name in keep:
                values[column.name] = func.coalesce(column, new[column.name])
            elif column.name in keep_if_null:
                values[column.name] = func.coalesce(new[column.name], column)
            elif not column.primary_key:
                values[column.name] = new[column.name]
        return values

    statement: Insert
    match connection.dialect.name:
        case "sqlite":
            lite = sqlite.insert(table)
            statement = lite.on_conflict_do_update(index_elements=list(table.primary_key), set_=replaced(lite.excluded))
        case "postgresql":
            post = postgresql.insert(table)
            statement = post.on_conflict_do_update(index_elements=list(table.primary_key), set_=replaced(post.excluded))
        case _:
            my = mysql.insert(table)
            statement = my.on_duplicate_key_update(replaced(my.inserted))
    connection.execute(statement, list(rows))


def _first_beside_the_key(table: Table) -> str:
    return next(column.name for column in table.columns if not column.primary_key)
