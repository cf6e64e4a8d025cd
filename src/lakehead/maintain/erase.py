"""Erases the rows of one key from a table: data files that hold them are written anew without them.

Also those files in which the rows are only marked as deleted, as after an update. The old files stay on the store until
the snapshots that have them expire.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table import Table as Iceberg

from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import Ids
from lakehead.lake.commits import replacement
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.landing import Fence, Head, NewWatermark, UnitRemainder
from lakehead.lake.ports import AuditFailed, Moved, Staged
from lakehead.lake.staged_rows import Change, NewFiles
from lakehead.lake.stagers import is_still_stored, staged_files, target_of
from lakehead.lake.tasks import write_batches

TRIES = 10

Key = Mapping[str, pa.Scalar]
"""A value for each column of the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How much of a table a key has."""

    rows: int = 0
    """Rows that readers see."""

    hidden: int = 0
    """Rows in data files that delete files hide from readers."""

    files: tuple[str, ...] = ()
    """The data files with such rows, by name."""

    def __bool__(self) -> bool:
        return bool(self.files)


def key_of(schema: Schema, given: Mapping[str, str], table: str) -> dict[str, pa.Scalar]:
    """The key as values of its columns' types. Raises `Misconfigured` for an unknown column or an unsuitable value."""
    columns = schema_to_pyarrow(schema)
    key = {}
    for name, text in given.items():
        if name not in columns.names:
            raise Misconfigured(f"The table {table} has no column {name!r}. Its columns: {', '.join(columns.names)}.")
        kind = columns.field(name).type
        try:
            key[name] = pa.scalar(text).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise Misconfigured(f"{text!r} is not a value of column {name!r} of {table}, a {kind}: {error}") from None
    return key


def held(iceberg: Iceberg, key: Key) -> Held:
    """What a table holds of a key."""
    found = list(_holding(iceberg, key))
    return Held(
        rows=sum(visible for _, visible, _ in found),
        hidden=sum(stored - visible for _, visible, stored in found),
        files=tuple(sorted(task.file.file_path for task, _, _ in found)),
    )


def erase_without_landing(table: IcebergTable, key: Key, ids: Ids) -> Held:
    """Erase a key's rows from a table in which nothing has landed. Returns what was erased.

    Not from others: the last landing keeps its snapshot from expiring, and with it the files that hold the rows.

    Raises `Unavailable` if landings committed first at every attempt, and `OutcomeUnknown`.
    """
    for _ in range(TRIES):
        iceberg = table.load()
        found = held(iceberg, key)
        if not found:
            return found
        rows = _without(iceberg, key, found, f"erase-{ids.uuid()}")
        try:
            table.commit(head_of(iceberg.metadata), lambda now, rows=rows: (replacement(now, rows), ()))  # type: ignore[misc] # bound for this attempt
        except Moved:
            continue
        return found
    raise Unavailable(
        f"Landings in {table.name} committed before the erasure {TRIES} times. Nothing was erased there; run it again."
    )


@dataclass(slots=True)
class EraseStager:
    """Stages a table's files without the rows of a key.

    A landing of its own, so that landings in progress start over, and so that the snapshots before it may expire.
    """

    table: IcebergTable
    key: Key
    ids: Ids
    erased: Held = Held()
    """What the files that were staged last lack."""

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[NewFiles]:
        """Write the files that hold the key anew."""
        iceberg = self.table.load()
        if head_of(iceberg.metadata) != fence.head:
            raise Moved(f"The table {self.table.name} has moved.")
        self.erased = held(iceberg, self.key)
        rows = _without(iceberg, self.key, self.erased, f"{token[:16]}-{self.ids.uuid()}")
        staged = staged_files((), remainders, iceberg, rows.change, token, new_watermark, fence)
        return replace(staged, rows=rows)

    def is_publishable_at(self, staged: Staged[NewFiles], at: Head) -> bool:
        """Only at the head that its rows were read at."""
        return staged.at == at

    async def is_still_stored(self, staged: Staged[NewFiles]) -> bool:
        """Whether every file is still where it was written."""
        return is_still_stored(self.table, staged)

    async def discard(self, staged: Staged[NewFiles]) -> None:
        """Nothing to do: the sweep removes files that no snapshot refers to."""


def _holding(iceberg: Iceberg, key: Key) -> Iterator[tuple[FileScanTask, int, int]]:
    """The data files that hold the key, each with how many of its rows readers see, and how many are stored."""
    parts: list[BooleanExpression] = [_equal(name, value) for name, value in key.items()]
    # By statistics only: they cover rows that are marked as deleted too.
    for task in iceberg.scan(row_filter=reduce(And, parts)).plan_files():
        plain = FileScanTask(task.file)
        if stored := _count(iceberg, plain, key):
            yield task, (_count(iceberg, task, key) if task.delete_files else stored), stored


def _equal(name: str, value: pa.Scalar) -> BooleanExpression:
    make: Any = EqualTo  # its signature for type checkers lacks its arguments
    expression: BooleanExpression = make(name, value.as_py())
    return expression


def _count(iceberg: Iceberg, task: FileScanTask, key: Key) -> int:
    schema = iceberg.schema().select(*key)
    batches = ArrowScan(iceberg.metadata, iceberg.io, schema, AlwaysTrue()).to_record_batches([_all_of(task)])
    return sum(pc.sum(_matches(batch, key)).as_py() or 0 for batch in batches)


def _without(iceberg: Iceberg, key: Key, found: Held, name: str) -> NewFiles:
    """The files that hold the key, written anew without it, and without rows that were marked as deleted."""
    tasks = [_all_of(task) for task in iceberg.scan().plan_files() if task.file.file_path in set(found.files)]
    scan = ArrowScan(iceberg.metadata, iceberg.io, iceberg.schema(), AlwaysTrue())
    read = _Read()
    kept = (part for batch in scan.to_record_batches(tasks) if (part := read.without(batch, key)).num_rows)
    wrote = write_batches(target_of(iceberg), name, kept)
    name = ".".join(iceberg.name())
    if wrote.refused is not None:
        raise Misconfigured(f"The rows of {name} cannot be written anew: {wrote.refused}")
    dead = {file.file_path: file.record_count for task in tasks for file in task.delete_files}
    if read.erased != found.rows or read.rows < sum(task.file.record_count for task in tasks) - sum(dead.values()):
        raise AuditFailed(f"Not all rows of {name} were read to write them anew. Nothing was changed; run it again.")
    return NewFiles(
        files=wrote.files,
        change=Change.REPLACE_FILES,
        schema_id=iceberg.schema().schema_id,
        spec_id=iceberg.spec().spec_id,
        sort_order_id=iceberg.sort_order().order_id or None,
        replaced=frozenset(found.files),
    )


@dataclass(slots=True)
class _Read:
    """Counts what is read of files that are written anew."""

    rows: int = 0
    erased: int = 0

    def without(self, batch: pa.RecordBatch, key: Key) -> pa.RecordBatch:
        """The rows of a batch that do not have the key."""
        kept = batch.filter(pc.invert(_matches(batch, key)))
        self.rows += batch.num_rows
        self.erased += batch.num_rows - kept.num_rows
        return kept


def _all_of(task: FileScanTask) -> FileScanTask:
    """A task that reads all rows of its file, whatever was looked for when it was planned."""
    return FileScanTask(task.file, task.delete_files)


def _matches(batch: pa.RecordBatch, key: Key) -> pa.Array:
    """Which rows have exactly this key. NULL equals nothing."""
    equal = [pc.fill_null(pc.equal(batch.column(name), value), False) for name, value in key.items()]  # noqa: FBT003 - Arrow's shape
    return reduce(pc.and_, equal)
