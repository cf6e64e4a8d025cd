"""Compaction: many small files become few large ones, and deletes that stand beside them become part of them.

No row changes, so a landing and a compaction never contradict each other: whoever commits second does it again.
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
from lakehead.lake.commits import live_files
from lakehead.lake.table import IcebergTable
from lakehead.lake.turns import Turns
from lakehead.maintain.growth import MANY_MANIFESTS
from lakehead.spark.names import argument, quoted, text
from lakehead.spark.reasons import SPARKS_ERRORS, reason_of
from lakehead.storage.backoff import Backoff

_BEATEN = ("CommitFailedException", "ValidationException", "CommitStateUnknownException")
"""Iceberg's words for a commit that another one came before, or whose answer was lost: it may be done again."""

_SMALL, _LARGE = 0.75, 1.8
"""Parts of the target size outside which Iceberg takes a file for badly sized."""


class CompactionFailed(LakeheadError):
    """Spark could not compact a table. Its rows are what they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a compaction has rewritten, or (in a dry run) which files are candidates."""

    table: str
    data_files: int = 0
    """Data files that were rewritten, or that are candidates."""

    into: int = 0
    """Data files that they became; 0 in a dry run."""

    bytes: int = 0
    delete_files: int = 0
    manifests: int = 0
    tries: int = 0
    """How often it was tried, the last one included: more than the steps it has if landings were quicker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compactor:
    """Compacts tables, in its turn at each."""

    session: SparkSession
    """Used by this compactor alone while it is at work."""

    turns: Turns
    clock: Clock
    random: Random
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=6, first_seconds=0.5, cap_seconds=15.0))
    """Tries of each step when landings are quicker."""

    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Iceberg's `rewrite_data_files`, passed through as they are. Default: Iceberg's own."""

    async def compact(self, table: IcebergTable, *, dry_run: bool = False) -> Compacted:
        """Rewrite data files, then delete files and manifests where there are many.

        Raises `Unavailable` when somebody else has the turn or landings were quicker each time, and `CompactionFailed`.
        """
        if dry_run:
            return candidates(table, self.options)
        async with self.turns.at(table.uuid, table.name):
            data, tries = await self._call(table, "rewrite_data_files", self.options)
            deletes, manifests = 0, 0
            if _position_deletes(table.load()):
                row, more = await self._call(table, "rewrite_position_delete_files", {"rewrite-all": "true"})
                deletes, tries = row.rewritten_delete_files_count, tries + more
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

    async def _call(
        self, table: IcebergTable, procedure: str, options: Mapping[str, str] | None
    ) -> tuple[Row | Any, int]:
        """Call a procedure of Iceberg's until no landing is quicker; what it answers, and how many tries it took."""
        said = "" if options is None else f", options => map({', '.join(_quoted(options))})" if options else ""
        statement = f"CALL {quoted(table.catalog.name)}.system.{procedure}(table => {argument(table.name)}{said})"
        for number, pause in enumerate(self.backoff.pauses(self.random), start=1):
            if pause:
                await self.clock.sleep(pause)
            try:
                return self.session.sql(statement).collect()[0], number
            except SPARKS_ERRORS as error:
                reason = reason_of(error)
                if not any(word in reason for word in _BEATEN):
                    raise CompactionFailed(
                        f"Compacting {table.name} failed in {procedure}: {reason}. Its rows are what they were."
                    ) from error
        raise Unavailable(
            f"Landings in {table.name} were quicker than its compaction {self.backoff.attempts} times. Its rows are "
            "what they were; run it again when there is less to land."
        )


def candidates(table: IcebergTable, options: Mapping[str, str]) -> Compacted:
    """The data files of a table that Iceberg would rewrite for their size: enough of them in one partition."""
    iceberg = table.load()
    target = _whole(options, "target-file-size-bytes", _target(iceberg))
    smallest = _whole(options, "min-file-size-bytes", int(target * _SMALL))
    largest = _whole(options, "max-file-size-bytes", int(target * _LARGE))
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
    snapshot = iceberg.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return False
    return int(snapshot.summary.additional_properties.get("total-position-deletes", "0")) > 0


def _manifests(iceberg: Iceberg) -> int:
    snapshot = iceberg.current_snapshot()
    return len(snapshot.manifests(iceberg.io)) if snapshot else 0


def _target(iceberg: Iceberg) -> int:
    name, default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    return property_as_int(iceberg.metadata.properties, name, default) or default


def _whole(options: Mapping[str, str], name: str, default: int) -> int:
    said = options.get(name)
    if said is None:
        return default
    if not said.isdecimal():
        raise Misconfigured(f"The option {name}={said!r} of a compaction must be a whole number.")
    return int(said)


def _quoted(options: Mapping[str, str]) -> Iterator[str]:
    for key, value in options.items():
        yield text(key)
        yield text(value)
