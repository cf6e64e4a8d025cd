"""`UnitLander` for Iceberg tables, on Spark. Each table has a thread of its own, with its own session and catalog."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import pyarrow as pa

from lakehead.consume.decode.rows import LANDED_AT, RESCUED, ROW, URI, FormatName, ObjectFormat
from lakehead.consume.landing_overlaps import LandingOverlaps
from lakehead.consume.large_objects import MAX_OBJECT_BYTES
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.object_stager import SPLIT_BYTES, ObjectStager
from lakehead.consume.object_tasks import ObjectToRead
from lakehead.consume.overlaps import OverlapCheck
from lakehead.consume.ports import LandingReport, OverlapReport, PartRead, ReadUnit
from lakehead.errors import Misconfigured
from lakehead.lake.audits import every_row_once
from lakehead.lake.conform import RowsRejected, conform
from lakehead.lake.evolution import add_columns
from lakehead.lake.iceberg_landing import IcebergLanding
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.landing import Numbers, Unit
from lakehead.lake.ports import Overtaken, Staged
from lakehead.lake.staged_rows import NewFiles
from lakehead.lake.stagers import target_of
from lakehead.lake.state_progress import StateProgress
from lakehead.lake.tables import by_day, create_table, sorted_by, with_field_ids
from lakehead.spark.jobs import cancel_group, job_group
from lakehead.storage.connect import StoreSettings
from lakehead.wire.key_parts import boot_part

T = TypeVar("T")

OURS = (
    pa.field(URI, pa.string()),
    pa.field(ROW, pa.int64()),
    pa.field(LANDED_AT, pa.timestamp("us", "UTC")),
    pa.field(RESCUED, pa.string()),
)
"""The columns that every table of a pipeline has, after those of its objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """A table of a pipeline, and how its objects are read."""

    name: str
    """`namespace.table`."""

    format: ObjectFormat
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Declared columns; without any, the table takes those of its first objects."""

    day_of: str | None = None
    """A declared column by whose day the table is partitioned, if it is created."""

    sorted_by: tuple[str, ...] = ()
    """Declared columns that its files are sorted by, if it is created."""

    location: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)


class IcebergLandings:
    """Lands the objects of one pipeline in its tables."""

    def __init__(
        self,
        tables: Sequence[TableFormat],
        open_landing: Callable[[], IcebergLanding],
        *,
        stores: Mapping[str, StoreSettings],
        lease: timedelta,
        after_landing: Callable[[IcebergTable], Awaitable[object]] | None = None,
        open_overlaps: Callable[[], OverlapCheck] | None = None,
        split_bytes: int = SPLIT_BYTES,
        max_object_bytes: int = MAX_OBJECT_BYTES,
    ) -> None:
        """`open_landing` is called once in each table's thread: sessions and catalogs are not shared by threads.

        `stores` say how to reach the buckets of each scheme; a unit is ours for `lease` without a sign of life.
        `after_landing` is called after each landing, with the table as the landing has left it. `open_overlaps` opens
        what compares accepted batches, in the table's thread, when some have common records. Objects of more than
        `split_bytes` are split over tasks where their format allows it, and of one that has more than
        `max_object_bytes` only so many are landed at once.
        """
        limits = _Limits(split_bytes, max_object_bytes)
        self._threads = {
            table.name: _TableThread(table, open_landing, open_overlaps, stores, lease, limits) for table in tables
        }
        self._after_landing = after_landing

    async def uuid(self, table: str) -> str:
        """Return the uuid of a table, by its name; the table is created if it does not exist."""
        return await self._threads[table].call(lambda thread: thread.opened()[1].uuid)

    async def land(
        self,
        table: str,
        works: Sequence[Work],
        *,
        is_held: Callable[[UnitKey], bool],
        read: Callable[[Sequence[UnitKey]], None],
    ) -> LandingReport:
        """Land objects in a table, each exactly once. When it is cancelled, so are the jobs that read them."""
        loop = asyncio.get_running_loop()

        def was_read(keys: Sequence[UnitKey]) -> None:
            loop.call_soon_threadsafe(read, keys)

        thread = self._threads[table]
        report = await thread.call(lambda thread: thread.land(works, is_held, was_read))
        if (report.landed or report.begun) and self._after_landing is not None:
            await self._after_landing(thread.table)
        return report

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads.values():
            thread.close()


@dataclass(frozen=True, slots=True)
class _Limits:
    split_bytes: int
    max_object_bytes: int


class _TableThread:
    """What one table's thread does. Its methods, but for `call` and `close`, run in that thread."""

    def __init__(
        self,
        table: TableFormat,
        open_landing: Callable[[], IcebergLanding],
        open_overlaps: Callable[[], OverlapCheck] | None,
        stores: Mapping[str, StoreSettings],
        lease: timedelta,
        limits: _Limits,
    ) -> None:
        self._limits = limits
        self._open_overlaps = open_overlaps
        self._table = table
        self._open_landing = open_landing
        self._stores = stores
        self._lease = lease
        self._pool = ThreadPoolExecutor(1, f"lakehead-{table.name}")
        self._opened: tuple[IcebergLanding, IcebergTable] | None = None
        self._is_cancelled = False
        self._group: str | None = None
        """The group of the Spark jobs that are running."""

    async def call(self, work: Callable[["_TableThread"], T]) -> T:
        """Run something in the thread. When that is cancelled, so are its Spark jobs, and their end is waited for."""
        future = asyncio.get_running_loop().run_in_executor(self._pool, work, self)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._is_cancelled = True
            if self._opened is not None and self._group is not None:
                cancel_group(self._opened[0].run.session, self._group)
            await asyncio.wait([future])
            raise

    @property
    def table(self) -> IcebergTable:
        """The table, which is open."""
        assert self._opened is not None, "it was landed on"  # noqa: S101 - for the type checker
        return self._opened[1]

    def close(self) -> None:
        """End the thread, and close what it has opened."""
        self._pool.shutdown(cancel_futures=True)
        if self._opened is not None:
            self._opened[0].catalog.close()

    def opened(self) -> tuple[IcebergLanding, IcebergTable]:
        """The table, which is created if it does not exist, and how to land in it."""
        if self._opened is None:
            landing = self._open_landing()
            try:
                table = _ensured(landing, self._table)
            except BaseException:
                landing.catalog.close()
                raise
            self._opened = landing, table
        return self._opened

    def land(
        self,
        works: Sequence[Work],
        is_held: Callable[[UnitKey], bool],
        was_read: Callable[[Sequence[UnitKey]], None],
    ) -> LandingReport:
        """Land units."""
        landing, table = self.opened()
        run, keys = landing.run, {_unit(work): work.key for work in works}
        stager = ObjectStager(
            session=run.session,
            table=table,
            format=self._table.format,
            stores=self._stores,
            objects={_unit(work): _to_read(work) for work in works},
            clock=run.clock,
            ids=run.ids,
            random=run.random,
            split_bytes=self._limits.split_bytes,
            max_object_bytes=self._limits.max_object_bytes,
        )

        def all_held(staged: Staged[NewFiles]) -> None:
            lost = [each.unit.id for each in staged.landing.remainders if not is_held(keys[each.unit])]
            if lost:
                raise Overtaken(f"{len(lost)} messages are another consumer's by now, such as that of {lost[0]}.")

        overlaps = LandingOverlaps(
            open_check=self._open_overlaps,
            frames={_unit(work): work.frame for work in works if work.frame},
            table=table,
            ledger=landing.ledger,
            is_cancelled=lambda: self._is_cancelled,
            was_read=lambda units: was_read([keys[unit] for unit in units]),
        )
        progress = StateProgress(state=run.state, owner=run.owner, lease=self._lease)
        self._group = f"{run.run}/{self._table.name}/{run.ids.uuid()}"  # a cancelled group's name is not used again
        try:
            with job_group(run.session, self._group, f"{run.pipeline}: {self._table.name}", pool=self._table.name):
                audits = [every_row_once, overlaps.compare, all_held]
                staged = landing.land(table, list(keys), stager, progress, audits=audits)
        finally:
            self._group = None
        remainders = staged.landing.remainders if staged else ()
        read = {each.unit: stager.read.get(each.unit, ReadUnit()) for each in remainders}
        return LandingReport(
            landed={keys[each.unit]: read[each.unit] for each in remainders if each.part is None},
            begun={
                keys[each.unit]: PartRead(each.recorded.id, read[each.unit])
                for each in remainders
                if each.part is not None
            },
            failed={keys[unit]: failure for unit, failure in stager.failed.items()},
            snapshot=head_of(table.seen().metadata).snapshot if remainders else None,
            overlaps=overlaps.report if remainders else OverlapReport(),
        )


def _ensured(landing: IcebergLanding, wanted: TableFormat) -> IcebergTable:
    """Open a table, and create it if it does not exist; an existing one gets the columns of ours that it lacks."""
    found = landing.find(wanted.name)
    if found is None:
        schema = with_field_ids(pa.schema([*wanted.columns, *OURS]))
        landing.retries.call(
            f"The catalog {landing.catalog.name}",
            lambda: create_table(
                landing.catalog,
                wanted.name,
                schema,
                partition=by_day(schema, wanted.day_of),
                order=sorted_by(schema, wanted.sorted_by),
                location=wanted.location,
                properties=wanted.properties,
            ),
        )
        found = IcebergTable(landing.catalog, wanted.name, landing.ledger, landing.retries)
    columns = {each.name: each.type for each in (*wanted.columns, *OURS)}
    asyncio.run(add_columns(found, columns, landing.run.clock, landing.run.random))
    known = {each.name for each in found.seen().schema().fields}
    if missing := [name for name in columns if name not in known]:
        raise Misconfigured(
            f"The table {wanted.name} cannot have the columns {', '.join(missing)}: it has one whose name differs in "
            "case alone, or the name is one of Iceberg's own. Rename them in the configuration."
        )
    if wanted.format.name is FormatName.FRAMES:
        _check_holds(found, wanted.columns)
    return found


def _check_holds(table: IcebergTable, columns: pa.Schema) -> None:
    """Raise `Misconfigured` if a table has other types than the records of frames: none of them could land."""
    try:
        conform(pa.RecordBatch.from_pylist([], schema=columns), target_of(table.seen()).schema)
    except RowsRejected as error:
        raise Misconfigured(
            f"The table {table.name} cannot hold the records of frames. {error} Let them land in another table."
        ) from None


def _unit(work: Work) -> Unit:
    """The unit of work; with the numbers of its records if they are those of an agent's boot."""
    if work.frame is None:
        return Unit(work.key.unit)
    identity = work.frame.identity
    stream = boot_part(identity.agent_id, identity.boot_id)
    return Unit(work.key.unit, numbers=Numbers(stream, identity.seq_start, identity.seq_end + 1))


def _to_read(work: Work) -> ObjectToRead:
    ref = work.object
    return ObjectToRead(
        unit=_unit(work),
        uri=ref.uri if ref else work.key.unit,
        version=ref.version if ref else None,
        etag=ref.etag if ref and work.key.unit.startswith(f"{ref.uri}?etag=") else None,
        content=work.content,
        frame=work.frame,
        size=work.size,
    )
