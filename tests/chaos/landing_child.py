"""Processes that land units as they are told, and that a test may kill, hold or race.

They come from a fork server that has everything imported, so one costs a moment. Most need no JVM: their stager writes
the data files itself, with what tasks use. Those that need Spark borrow the JVM of the test or start their own.
"""

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError
from lakehead.ids import RandomIds
from lakehead.lake import stagers
from lakehead.lake.audits import every_row_once
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Fence, Head, Landing, NewWatermark, Snapshot, UnitRemainder
from lakehead.lake.landing import Unit as Work
from lakehead.lake.merge import BRANCH
from lakehead.lake.ports import Staged
from lakehead.lake.protocol import Lander
from lakehead.lake.staged_rows import Change, NewFiles
from lakehead.lake.state_progress import StateProgress
from lakehead.lake.tasks import write_parts
from lakehead.maintain.sweep import sweep
from lakehead.spark.session import build_session
from lakehead.spark.settings import EMBEDDED, Properties, embedded_catalog
from lakehead.state.model import ShardState
from tests.faults.failpoints import Deadly, Once, Reach, watch_commits, with_failpoints
from tests.lakehouse import ROWS, Lakehouse, rows_of
from tests.support.costs import Mechanism, add
from tests.support.forks import FORKS
from tests.support.spark import Borrowed

ANSWER_SECONDS = 100
LONG = timedelta(minutes=10)
OVER = timedelta(0)
"""A lease that is over as soon as it is taken."""


class PublishMode(Enum):
    """Who writes the rows."""

    HERE = "this process, without Spark"
    ARROW = "Spark tasks"
    MERGE = "a MERGE in Spark"


@dataclass(frozen=True)
class Place:
    """Where to land: all that a process needs to know to open it."""

    folder: Path
    table: str = "t"
    catalog: str = EMBEDDED
    catalogs: Mapping[str, Properties] = field(default_factory=dict)

    def open(self, session: SparkSession | None = None) -> Lakehouse:
        known = {EMBEDDED: embedded_catalog(self.folder / "lakehouse"), **self.catalogs}
        (self.folder / "lakehouse").mkdir(parents=True, exist_ok=True)
        return Lakehouse(self.folder, cast(SparkSession, session), known)


class Own(Enum):
    """A JVM that ends with its process."""

    JVM = "own"


Spark: TypeAlias = Borrowed | Own | None


@dataclass(frozen=True)
class Order:
    """What a process is to land, and what happens to it on the way."""

    units: tuple[str, ...]
    owner: str = "owner"
    lease: timedelta = LONG
    watermark: int | None = None
    way: PublishMode = PublishMode.HERE
    hold_at: str | None = None
    """It tells that it is there and waits for a word."""
    die_at: str | int | None = None


@dataclass(frozen=True)
class At:
    """It is held at this moment, or about to die there."""

    moment: str


@dataclass(frozen=True)
class Done:
    """It has landed what was its own, or failed."""

    landing: Landing | None = None
    error: str | None = None
    """The class of the error of ours; any other ends the process."""


@dataclass(frozen=True, kw_only=True)
class HereStager:
    """`ArrowStager` without Spark: one task, in this process."""

    table: IcebergTable

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[NewFiles]:
        iceberg = self.table.load()
        parts = [(remainder.unit, 0, remainder) for remainder in remainders if remainder.spans != ()]
        wrote = write_parts(stagers.target_of(iceberg), stagers.staged_name(token, RandomIds()), rows_of, parts)
        return stagers.staged_files(
            [wrote], remainders, iceberg, Change.APPEND, token, new_watermark, fence, parts=len(parts)
        )

    def is_publishable_at(self, staged: Staged[NewFiles], at: Head) -> bool:
        return stagers.is_publishable_at(self.table, staged, at)

    async def is_still_stored(self, staged: Staged[NewFiles]) -> bool:
        return stagers.is_still_stored(self.table, staged)

    async def discard(self, staged: Staged[NewFiles]) -> None:
        pass


# --- what test and process both do


def make_table(lakehouse: Lakehouse, place: Place) -> IcebergTable:
    """A table of units and numbers, made without Spark."""
    catalog = lakehouse.catalog(place.catalog)
    catalog.create_namespace_if_not_exists("t")
    columns = pa.schema([("unit", pa.string()), ("number", pa.int64())])
    catalog.create_table(f"t.{place.table}", schema=columns, properties={"format-version": "2"})
    return lakehouse.table(place.table, catalog=place.catalog)


def lander_of(lakehouse: Lakehouse, table: IcebergTable, order: Order) -> Lander[Any]:
    stager: Any
    match order.way:
        case PublishMode.HERE:
            stager = HereStager(table=table)
        case PublishMode.ARROW:
            stager = lakehouse.arrow_stager(table)
        case PublishMode.MERGE:
            stager = lakehouse.merge_stager(table)
    lander = lakehouse.lander(table, stager, audits=[] if order.way is PublishMode.MERGE else [every_row_once])
    return replace(lander, progress=StateProgress(state=lakehouse.state, owner=order.owner, lease=order.lease))


def carry_out(lakehouse: Lakehouse, table: IcebergTable, order: Order, reach: Reach | None = None) -> Landing | None:
    """Take the units of an order and land those that were got."""
    add(Mechanism.LANDINGS)
    lander = lander_of(lakehouse, table, order)
    if reach is not None:
        lander = with_failpoints(lander, reach)
    taken = cast(StateProgress, lander.progress).take(table.uuid, [Work(unit) for unit in order.units])
    staged = asyncio.run(lander.land(taken, new_watermark=NewWatermark(watermark=order.watermark))) if taken else None
    return staged.landing if staged else None


def landings_of(table: IcebergTable) -> list[Snapshot]:
    """The landings of main's whole history, oldest first."""
    head = asyncio.run(table.head()).snapshot
    return [each for each in asyncio.run(table.history(None, head)) if each.landing is not None]


# --- the process


def work(place: Place, spark: Spark, connection: Connection) -> None:
    """Carry out one order after the other until the test hangs up."""
    lakehouse = place.open(_session(place, spark))
    table = lakehouse.table(place.table, catalog=place.catalog)
    gateway = lakehouse.session.sparkContext._gateway if spark is Own.JVM else None
    connection.send(gateway.proc.pid if gateway is not None else None)
    moments = Moments()
    watch_commits(table.catalog, moments)
    while True:
        try:
            order: Order = connection.recv()
        except EOFError:
            os._exit(0)  # without the goodbyes of PySpark, whose JVM may be another's
        moments.now = _reach(order, connection)
        try:
            connection.send(Done(carry_out(lakehouse, table, order, moments)))
        except LakeheadError as error:
            connection.send(Done(error=type(error).__name__))


class Moments:
    """Passes moments on to whatever the present order has for them."""

    def __init__(self) -> None:
        self.now: Reach = lambda _: None

    def __call__(self, moment: str) -> None:
        self.now(moment)


def _reach(order: Order, connection: Connection) -> Reach:
    if order.die_at is not None:
        return Deadly(order.die_at, lambda moment: connection.send(At(moment)))
    if order.hold_at is None:
        return lambda _: None
    moment = order.hold_at

    def hold() -> None:
        connection.send(At(moment))
        connection.recv()

    return Once(moment, hold)


def _session(place: Place, spark: Spark) -> SparkSession | None:
    match spark:
        case None:
            return None
        case Own():
            return build_session(Lakehouse.settings(place.folder, place.catalogs))
        case Borrowed():
            return spark.session()


# --- the test's end of it


class Worker:
    """A process that waits for orders."""

    def __init__(self, place: Place, spark: Spark = None) -> None:
        self._ours, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=work, args=(place, spark, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self._jvm: int | None = None
        self._started = False

    def jvm(self) -> int:
        """The process number of its own JVM."""
        self.ready()
        assert self._jvm is not None
        return self._jvm

    def tell(self, word: Order | str) -> None:
        self.ready()
        self._ours.send(word)

    def hear(self) -> At | Done:
        """What it says next."""
        assert self._ours.poll(ANSWER_SECONDS), "the process says nothing"
        said: At | Done = self._ours.recv()
        return said

    def hold(self, order: Order) -> None:
        """Let it come to the moment where the order holds it."""
        self.tell(order)
        assert self.hear() == At(str(order.hold_at))

    def done(self) -> Done:
        """How its order ended."""
        said = self.hear()
        assert isinstance(said, Done), said
        return said

    def do(self, order: Order) -> Done:
        self.tell(order)
        return self.done()

    def death(self, order: Order) -> str | None:
        """Where it was killed; None if it came to an end before that."""
        self.tell(order)
        match self.hear():
            case At(moment):
                self.process.join(ANSWER_SECONDS)
                assert self.process.exitcode == -signal.SIGKILL
                add(Mechanism.KILLS)
                return moment
            case Done(error=error):
                assert error is None
                return None

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self._ours.close()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()

    def ready(self) -> None:
        """Wait until it is."""
        if not self._started:
            assert self._ours.poll(ANSWER_SECONDS), "the process does not start"
            self._jvm, self._started = self._ours.recv(), True


@contextmanager
def workers(place: Place, count: int = 1, spark: Spark = None) -> Iterator[list[Worker]]:
    """Processes that are gone afterwards, however the test ends."""
    started: list[Worker] = []
    try:
        started.extend(Worker(place, spark) for _ in range(count))
        yield started
    finally:
        for worker in started:
            worker.close()


# --- what is asked of every table afterwards


def assert_landed_once(
    lakehouse: Lakehouse, table: IcebergTable, units: Iterable[str], watermark: int | None = None, *, rows: int = ROWS
) -> None:
    """The table has each unit once, and the state and the ledger say the same as its history."""
    assert lakehouse.units_in(table) == dict.fromkeys(units, rows)
    landings = landings_of(table)
    held = [remainder.unit.id for each in landings if each.landing for remainder in each.landing.remainders]
    assert sorted(held) == sorted(set(units))
    pointer = lakehouse.state.landings.pointer(table.uuid)
    assert pointer is not None
    assert (pointer.snapshot, pointer.last_landing) == (asyncio.run(table.head()).snapshot, landings[-1].id)
    shards = lakehouse.state.shards.read(table.uuid, held)
    assert {shard.unit: (shard.state, shard.snapshot) for shard in shards} == {
        remainder.unit.id: (ShardState.COMPLETED, each.id)
        for each in landings
        if each.landing
        for remainder in each.landing.remainders
    }
    assert asyncio.run(ledger_of(lakehouse, table)) == landings
    new_watermark = lakehouse.state.progress.watermark(table.uuid)
    assert (new_watermark and new_watermark.value) == watermark


async def ledger_of(lakehouse: Lakehouse, table: IcebergTable) -> list[object]:
    return [landing async for landing in lakehouse.ledger.landings(table.uuid)]


def files_below(table: IcebergTable) -> set[str]:
    """The paths of all files below the location of a table in a local warehouse."""
    root = Path(table.load().location().removeprefix("file://").removeprefix("file:"))
    return {str(path) for path in root.rglob("*") if path.is_file() and not path.name.endswith(".crc")}


def files_known(table: IcebergTable) -> set[str]:
    """The paths of all files that some snapshot of the table, or its metadata log, has."""
    iceberg = table.load()
    metadata = [entry.metadata_file for entry in iceberg.metadata.metadata_log]
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in iceberg.metadata.snapshots
        for manifest in snapshot.manifests(iceberg.io)
    }
    lists = [snapshot.manifest_list for snapshot in iceberg.metadata.snapshots]
    data = [
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=False)
    ]
    every = chain([iceberg.metadata_location], metadata, manifests, lists, data)
    return {path.removeprefix("file://").removeprefix("file:") for path in every if path}


def sweep_all(table: IcebergTable) -> None:
    """Remove whatever nobody has published, however young it is."""
    asyncio.run(sweep(table, Later(), older_than=timedelta(0)))


class Later(SystemClock):
    """The machine's clock, an hour ahead."""

    def now_ns(self) -> int:
        return super().now_ns() + 3_600 * 10**9


def assert_nothing_is_left(table: IcebergTable) -> None:
    """After a sweep there is no branch of ours, and every file is one that the table knows."""
    sweep_all(table)
    assert [name for name in table.load().metadata.refs if name.startswith(BRANCH)] == []
    assert files_below(table) == files_known(table)
