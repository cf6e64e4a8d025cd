"""MERGE through a branch: Spark merges into a branch that no reader sees, and one commit makes it main."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AssertRefSnapshotId
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakehead.clock import Clock, SystemClock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown
from lakehead.ids import Ids
from lakehead.lake.commit_times import TOLERANCE_MS, last_time_ms
from lakehead.lake.commits import empty, set_ref
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Fence, Head, Landing, NewWatermark, UnitRemainder
from lakehead.lake.ports import CONFIG_OPTION, AuditFailed, Moved, Staged
from lakehead.lake.staged_rows import Branch
from lakehead.lake.stagers import StagingFailed, disk_full
from lakehead.spark.names import quoted
from lakehead.spark.reasons import reason_of

BRANCH = "lakehead_"
"""The prefix of our branch names. The creation time in milliseconds follows: an old branch was left behind by a crash,
and its head does not show its age, because the head may be as old as the snapshot that the branch was created at."""

_BRANCH_NAME = re.compile(f"{BRANCH}([0-9]+)_[0-9a-f]+")

PROPERTY = "spark.sql.iceberg.snapshot-property."

HASH_JOIN_THRESHOLD = "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold"
SPARK_DEFAULT = "0b"
MERGE_THRESHOLD = "16MB"
"""Up to this size of the merged rows per task, Spark uses a hash join. Above it, Spark sorts the whole table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStager:
    """Stages a MERGE, or any statements that write to one table, on a new branch."""

    session: SparkSession
    """Used by this stager alone while it stages, because snapshot properties are session settings."""

    table: IcebergTable
    ids: Ids
    merge: Callable[[SparkSession, str, Sequence[UnitRemainder]], None]
    """Changes the table of the given name to its new content, in one statement. Spark may scan the source twice, so it
    must be a table and not a live source."""

    clock: Clock = field(default_factory=SystemClock)
    waiting: Callable[[str], None] = lambda _: None
    """Called with a message if a branch could not be removed."""

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[Branch]:
        """Merge into a new branch that starts exactly at the fenced head.

        Raises `Moved` if the table has moved since, `AuditFailed` if the branch fails its checks, and `Misconfigured`
        if this machine's clock is so far behind that Spark would refuse to commit.
        """
        self._check_clock()
        counts = {"units": len(remainders)}
        landing = Landing(
            token, tuple(remainders), before=fence.last_landing, new_watermark=new_watermark, counts=counts
        )
        properties = await self.table.summary(landing)
        branch = self.create(fence.head)
        try:
            self.run(branch, properties, remainders)
            return Staged(self.audited(branch, fence.head, properties), landing, fence.head)
        except Exception:
            self._remove(branch)
            raise

    def is_publishable_at(self, staged: Staged[Branch], at: Head) -> bool:
        """True only at the head the merge was made at, and while its branch exists: it lacks later commits to main."""
        ref = self.table.seen().metadata.refs.get(staged.rows.name)
        return staged.at == at and ref is not None and ref.snapshot_id == staged.rows.head

    async def is_still_stored(self, staged: Staged[Branch]) -> bool:
        """Always true: the branch refers to its files, so they are never removed as orphans."""
        del staged
        return True

    async def discard(self, staged: Staged[Branch]) -> None:
        """Remove the branch. A commit of it that is still in flight then fails, because it requires the branch."""
        self._remove(staged.rows.name)

    def _remove(self, branch: str) -> None:
        try:
            self.table.remove_branch(branch)
        except LakeheadError as error:
            command = f"lakehead maintain sweep {self.table.name} {CONFIG_OPTION}"
            self.waiting(f"the branch {branch} could not be removed ({error}); to remove it later: {command}")

    def _check_clock(self) -> None:
        last_ms = last_time_ms(self.table.seen().metadata)
        behind_ms = last_ms - self.clock.now_ns() // 1_000_000
        if behind_ms > TOLERANCE_MS:
            raise Misconfigured(
                f"The clock of this machine is {behind_ms // 1000} s behind the last commit of table "
                f"{self.table.name}, so Spark would refuse to commit a merge. Synchronize the clocks of all drivers "
                "with one time server, and run it again."
            )

    def create(self, at: Head) -> str:
        """Create a branch with a new, unique name at the fenced head. Returns its name."""
        snapshot, created_at = at.snapshot, self.clock.now_ns() // 1_000_000
        name = f"{BRANCH}{created_at}_{self.ids.uuid().replace('-', '')}"
        if snapshot is None:
            self.table.commit(at, lambda table: (empty(table, {}), ()))
            raise Moved(f"The table {self.table.name} had no snapshot to branch from. An empty one was added.")
        started = set_ref(name, SnapshotRefType.BRANCH, snapshot)
        try:
            self.table.commit(
                at, lambda _: ((started,), (AssertRefSnapshotId(ref=name, snapshot_id=None),)), as_seen=True
            )
        except OutcomeUnknown:
            self._remove(name)
            raise
        return name

    def run(self, branch: str, properties: Mapping[str, str], remainders: Sequence[UnitRemainder]) -> None:
        """Merge into the branch. The new snapshot's summary gets the properties."""
        target = quoted(self.table.catalog.name, *self.table.name.split("."), f"branch_{branch}")
        settings = {PROPERTY + key: value for key, value in properties.items()}
        if self.session.conf.get(HASH_JOIN_THRESHOLD) == SPARK_DEFAULT:  # a value set by the user stays
            settings[HASH_JOIN_THRESHOLD] = MERGE_THRESHOLD
        for key, value in settings.items():
            self.session.conf.set(key, value)
        try:
            self.merge(self.session, target, remainders)
        except (PySparkException, Py4JJavaError) as error:
            raise disk_full(error, self.table.seen().location()) or StagingFailed(
                f"Merging into {self.table.name} failed: {reason_of(error)}. Nothing was published."
            ) from error
        finally:
            for key in settings:
                self.session.conf.unset(key)

    def audited(self, branch: str, at: Head, properties: Mapping[str, str]) -> Branch:
        """Return the branch if it is exactly one snapshot of ours on top of the fenced head; else raise `AuditFailed`.

        Spark silently recreates a branch that was dropped during the merge, at main's current head.
        """
        table = self.table.load()
        ref = table.metadata.refs.get(branch)
        if ref is None:
            raise AuditFailed(f"The branch {branch} of {self.table.name} was dropped during a merge. Run it again.")
        if ref.snapshot_id == at.snapshot:  # the merge changed nothing; an empty snapshot records the units as landed
            untouched = AssertRefSnapshotId(ref=branch, snapshot_id=at.snapshot)
            table = self.table.commit(at, lambda table: (empty(table, properties, branch), (untouched,)))
        head = table.metadata.refs[branch].snapshot_id
        snapshot = table.metadata.snapshot_by_id(head)
        if snapshot is None or snapshot.parent_snapshot_id != at.snapshot:
            raise AuditFailed(
                f"The branch {branch} of {self.table.name} does not start at snapshot {at.snapshot}, where it was "
                "created: another process dropped it during the merge or wrote to it. Nothing was published. Run it "
                "again."
            )
        return Branch(branch, head)


def branch_made_at(name: str) -> int | None:
    """When a branch of ours was created, in milliseconds since the epoch; None if it is not one of ours."""
    found = _BRANCH_NAME.fullmatch(name)
    return int(found[1]) if found else None
