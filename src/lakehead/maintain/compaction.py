"""Compaction: rewrites many small files as few large ones, sorted as the table is, and applies delete files to them.

Delete files that no data file needs any more are dropped.

No row changes, so a landing and a compaction never conflict in content: the one that commits second tries again.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table import Table as Iceberg
from pyiceberg.table import TableProperties
from pyiceberg.utils.properties import property_as_int
from pyspark.sql import Row, SparkSession

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.ids import Random
from lakehead.lake.commits import Changes, live_files
from lakehead.lake.dangling_deletes import dangling_deletes, without_deletes
from lakehead.lake.iceberg_table import IcebergTable, summary_of
from lakehead.lake.ports import Moved
from lakehead.lake.table_leases import StateTableLeases
from lakehead.maintain.compaction_plan import LARGE, SMALL, Compaction, rewritten_since
from lakehead.maintain.growth import MANY_MANIFESTS
from lakehead.retry import Backoff
from lakehead.spark.names import argument, quoted, text
from lakehead.spark.reasons import SPARKS_ERRORS, reason_of

TRIES = 5

_BEATEN = ("CommitFailedException", "ValidationException", "CommitStateUnknownException")
"""Iceberg's errors for a commit that lost to another one, or whose response was lost: it may be repeated."""


class CompactionFailed(LakeheadError):
    """Spark could not compact a table. Its rows are unchanged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction has rewritten, or (in a dry run) how many files are candidates."""

    table: str
    data_files: int = 0
    """Data files that were rewritten, or that are candidates."""

    into: int = 0
    """Data files that were written instead; 0 in a dry run."""

    bytes: int = 0
    delete_files: int = 0
    manifests: int = 0
    tries: int = 0
    """The attempts of all steps together: more than the number of steps if landings committed first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """Compacts tables, holding the lease on each."""

    session: SparkSession
    """Used by this compactor alone while it works."""

    table_leases: StateTableLeases
    clock: Clock
    random: Random
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=6, first_seconds=0.5, cap_seconds=15.0))
    """Attempts of each step when landings commit first."""

    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Iceberg's `rewrite_data_files`, passed unchanged. Default: Iceberg's own."""

    async def compact(self, table: IcebergTable, *, dry_run: bool = False) -> Compacted:
        """Rewrite data files, then delete files, and manifests if there are many.

        Raises `Unavailable` if another process keeps holding the table's lease or landings committed first at every
        attempt, and `CompactionFailed` if Spark failed.
        """
        if dry_run:
            return candidates(table, self.options)
        async with self.table_leases.at(table.uuid, table.name):
            data, tries = await self._call(table, "rewrite_data_files", self.options, _strategy(table))
            deletes, manifests = len(drop_dangling(table)), 0
            if _position_deletes(table.load()):
                row, more = await self._call(table, "rewrite_position_delete_files", {"rewrite-all": "true"})
                deletes, tries = deletes + row.rewritten_delete_files_count, tries + more
            if _manifests(table.load()) >= MANY_MANIFESTS:
                row, more = await self._call(table, "rewrite_manifests", None)
                manifests, tries = row.rewritten_manifests_count, tries + more
        return Compacted(
            table=table.name,
            data_files=data.rewritten_data_files_count,
            into=data.added_data_files_count,
            bytes=data.rewritten_bytes_count,
            delete_files=deletes + data.removed_delete_files_count,
            manifests=manifests,
            tries=tries,
        )

    async def rewrite(self, table: IcebergTable, planned: Compaction) -> Compaction:
        """Rewrite the kinds of files that a plan names. Returns the files that were rewritten. Raises as `compact`."""
        async with self.table_leases.at(table.uuid, table.name):
            known = {snapshot.snapshot_id for snapshot in table.load().metadata.snapshots}
            if planned.data_files:
                await self._call(table, "rewrite_data_files", self.options, _strategy(table))
            dropped = drop_dangling(table) if planned.delete_files else ()
            if set(planned.delete_files).difference(dropped):
                await self._call(table, "rewrite_position_delete_files", {"rewrite-all": "true"})
            return rewritten_since(table.load(), known)

    async def rewrite_manifests(self, table: IcebergTable) -> None:
        """Rewrite the table's manifests, so that there are few. Raises as `compact`."""
        async with self.table_leases.at(table.uuid, table.name):
            await self._call(table, "rewrite_manifests", None)

    async def _call(
        self, table: IcebergTable, procedure: str, options: Mapping[str, str] | None, more: str = ""
    ) -> tuple[Row | Any, int]:
        """Call an Iceberg procedure until no landing commits first. Returns its result and the number of attempts."""
        given = "" if options is None else f", options => map({', '.join(_quoted(options))})" if options else ""
        statement = (
            f"CALL {quoted(table.catalog.name)}.system.{procedure}(table => {argument(table.name)}{given}{more})"
        )
        for number, pause in enumerate(self.backoff.pauses(self.random), start=1):
            if pause:
                await self.clock.sleep(pause)
            try:
                return self.session.sql(statement).collect()[0], number
            except SPARKS_ERRORS as error:
                reason = reason_of(error)
                if not any(word in reason for word in _BEATEN):
                    raise CompactionFailed(
                        f"Compacting {table.name} failed in {procedure}: {reason}. Its rows are unchanged. Fix the "
                        "cause and run it again."
                    ) from error
        raise Unavailable(
            f"Landings in {table.name} committed before its compaction {self.backoff.attempts} times. Its rows are "
            "unchanged; run it again when fewer landings are running."
        )


def drop_dangling(table: IcebergTable) -> tuple[str, ...]:
    """Remove delete files that delete nothing any more from main's snapshot. Returns which.

    Raises `Unavailable` if landings committed first at every attempt, and `OutcomeUnknown`. Iceberg leaves delete files
    whose data files were rewritten, because those that take their place are as old to it as they were.
    """
    dropped: tuple[str, ...] = ()

    def changes(iceberg: Iceberg) -> Changes:
        nonlocal dropped
        found = dangling_deletes(iceberg)
        dropped = tuple(each.path for each in found)
        return (without_deletes(iceberg, found) if found else ()), ()

    for _ in range(TRIES):
        try:
            table.commit(None, changes)
        except Moved:
            continue
        return dropped
    raise Unavailable(
        f"Landings in {table.name} committed before its compaction {TRIES} times. Its rows are unchanged; run it again "
        "when fewer landings are running."
    )


def _strategy(table: IcebergTable) -> str:
    # Without it Iceberg puts files together as they are, and a sorted table's files are not sorted any more.
    return ", strategy => 'sort'" if table.load().sort_order().fields else ""


def candidates(table: IcebergTable, options: Mapping[str, str]) -> Compacted:
    """The data files that Iceberg would rewrite because of their size, if a partition has enough of them."""
    iceberg = table.load()
    target = _whole(options, "target-file-size-bytes", _target(iceberg))
    smallest = _whole(options, "min-file-size-bytes", int(target * SMALL))
    largest = _whole(options, "max-file-size-bytes", int(target * LARGE))
    every = options.get("rewrite-all") == "true"
    wrong = [file for file in live_files(iceberg) if every or not smallest <= file.file_size_in_bytes <= largest]
    together = Counter((file.spec_id, file.partition) for file in wrong)
    enough = 1 if every else _whole(options, "min-input-files", 5)
    chosen = [file for file in wrong if together[file.spec_id, file.partition] >= enough]
    return Compacted(
        table=table.name, data_files=len(chosen), bytes=sum(file.file_size_in_bytes for file in chosen), tries=0
    )


def _position_deletes(iceberg: Iceberg) -> bool:
    """Whether there are files of position deletes."""
    return int(summary_of(iceberg.current_snapshot()).get("total-position-deletes", "0")) > 0


def _manifests(iceberg: Iceberg) -> int:
    snapshot = iceberg.current_snapshot()
    return len(snapshot.manifests(iceberg.io)) if snapshot else 0


def _target(iceberg: Iceberg) -> int:
    name, default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    return property_as_int(iceberg.metadata.properties, name, default) or default


def _whole(options: Mapping[str, str], name: str, default: int) -> int:
    value = options.get(name)
    if value is None:
        return default
    if not value.isdecimal():
        raise Misconfigured(f"The option {name}={value!r} of a compaction must be a whole number.")
    return int(value)


def _quoted(options: Mapping[str, str]) -> Iterator[str]:
    for key, value in options.items():
        yield text(key)
        yield text(value)
