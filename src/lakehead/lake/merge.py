"""MERGE through a branch: Spark merges where no reader looks, and the branch becomes main in one commit."""

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
from lakehead.lake.landing import Fence, Head, Landing, Reached, Share
from lakehead.lake.lane import StagingFailed, disk_full
from lakehead.lake.ports import CONFIG_OPTION, AuditFailed, Moved, Staged
from lakehead.lake.rows import Branch
from lakehead.lake.table import IcebergTable
from lakehead.spark.names import quoted
from lakehead.spark.reasons import reason_of

BRANCH = "lakehead_"
"""What the names of our branches begin with. The moment when one was made follows, in milliseconds: a branch that has
been there for long was left by a crash, and its head is as old as the snapshot that it was made at."""

_NAMED = re.compile(f"{BRANCH}([0-9]+)_[0-9a-f]+")

PROPERTY = "spark.sql.iceberg.snapshot-property."

HASHED_BELOW = "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold"
SPARKS_OWN = "0b"
HASHED = "16MB"
"""How large a task's share of the rows to merge may be to be hashed. Else Spark sorts the whole table to meet them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStager:
    """Stages a MERGE, or any statements that write to one table, on a branch of their own."""

    session: SparkSession
    """Used by this stager alone while it stages: snapshot properties are a session's."""

    table: IcebergTable
    ids: Ids
    merge: Callable[[SparkSession, str, Sequence[Share]], None]
    """Makes the table that it is given the name of what it should be, in one statement. It may scan its source twice:
    the source must be a table, never something live."""

    clock: Clock = field(default_factory=SystemClock)
    waiting: Callable[[str], None] = lambda _: None
    """Told when a branch could not be removed."""

    async def stage(self, shares: Sequence[Share], *, token: str, reached: Reached, fence: Fence) -> Staged[Branch]:
        """Merge into a new branch that starts at exactly where the table was fenced.

        Raises `Moved` if the table has moved since, `AuditFailed` if the branch is not what it should be, and
        `Misconfigured` if this machine's clock is so far behind that Spark would refuse to commit.
        """
        self._check_clock()
        counts = {"units": len(shares)}
        landing = Landing(token, tuple(shares), before=fence.last_landing, reached=reached, counts=counts)
        properties = await self.table.summary(landing)
        branch = self.create(fence.head)
        try:
            self.run(branch, properties, shares)
            return Staged(self.audited(branch, fence.head, properties), landing, fence.head)
        except Exception:
            self._remove(branch)
            raise

    def still_good(self, staged: Staged[Branch], at: Head) -> bool:
        """A merge is good only where it was made, and while its branch is there: what has come to main is not in it."""
        ref = self.table.seen().metadata.refs.get(staged.rows.name)
        return staged.at == at and ref is not None and ref.snapshot_id == staged.rows.head

    async def is_there(self, staged: Staged[Branch]) -> bool:
        """The branch refers to its files, so no clean-up takes them for nobody's."""
        del staged
        return True

    async def discard(self, staged: Staged[Branch]) -> None:
        """Remove the branch. A commit that would still publish it requires that it is there."""
        self._remove(staged.rows.name)

    def _remove(self, branch: str) -> None:
        try:
            self.table.remove_branch(branch)
        except LakeheadError as error:
            later = f"lakehead maintain sweep {self.table.name} {CONFIG_OPTION}"
            self.waiting(f"the branch {branch} is left ({error}); to remove it later: {later}")

    def _check_clock(self) -> None:
        last_ms = last_time_ms(self.table.seen().metadata)
        behind_ms = last_ms - self.clock.now_ns() // 1_000_000
        if behind_ms > TOLERANCE_MS:
            raise Misconfigured(
                f"The clock of this machine is {behind_ms // 1000} s behind the last commit of table "
                f"{self.table.name}, so Spark would refuse to commit a merge. Set the clocks of all drivers by one "
                "time server, and run it again."
            )

    def create(self, at: Head) -> str:
        """Make a branch at the fenced head, under a name that nobody ever used."""
        snapshot, made_at = at.snapshot, self.clock.now_ns() // 1_000_000
        name = f"{BRANCH}{made_at}_{self.ids.uuid().replace('-', '')}"
        if snapshot is None:
            self.table.commit(at, lambda table: (empty(table, {}), ()))
            raise Moved(f"The table {self.table.name} had no snapshot to make a branch of. It has an empty one now.")
        started = set_ref(name, SnapshotRefType.BRANCH, snapshot)
        try:
            self.table.commit(at, lambda _: ((started,), (AssertRefSnapshotId(ref=name, snapshot_id=None),)))
        except OutcomeUnknown:
            self._remove(name)
            raise
        return name

    def run(self, branch: str, properties: Mapping[str, str], shares: Sequence[Share]) -> None:
        """Merge into the branch; its snapshot carries the properties."""
        target = quoted(self.table.catalog.name, *self.table.name.split("."), f"branch_{branch}")
        settings = {PROPERTY + key: value for key, value in properties.items()}
        if self.session.conf.get(HASHED_BELOW) == SPARKS_OWN:  # whoever has set it knows better
            settings[HASHED_BELOW] = HASHED
        for key, value in settings.items():
            self.session.conf.set(key, value)
        try:
            self.merge(self.session, target, shares)
        except (PySparkException, Py4JJavaError) as error:
            raise disk_full(error, self.table.seen().location()) or StagingFailed(
                f"Merging into {self.table.name} failed: {reason_of(error)}. Nothing was published."
            ) from error
        finally:
            for key in settings:
                self.session.conf.unset(key)

    def audited(self, branch: str, at: Head, properties: Mapping[str, str]) -> Branch:
        """The branch, if it is one snapshot of ours on top of the fenced head.

        Writing to a branch that was dropped meanwhile makes it again at main's present head, without a word.
        """
        table = self.table.load()
        ref = table.metadata.refs.get(branch)
        if ref is None:
            raise AuditFailed(f"The branch {branch} of {self.table.name} was dropped during a merge. Run it again.")
        if ref.snapshot_id == at.snapshot:  # the merge had nothing to do; the units are done all the same
            untouched = AssertRefSnapshotId(ref=branch, snapshot_id=at.snapshot)
            table = self.table.commit(at, lambda table: (empty(table, properties, branch), (untouched,)))
        head = table.metadata.refs[branch].snapshot_id
        snapshot = table.metadata.snapshot_by_id(head)
        if snapshot is None or snapshot.parent_snapshot_id != at.snapshot:
            raise AuditFailed(
                f"The branch {branch} of {self.table.name} does not begin at snapshot {at.snapshot}, where it was "
                "made: somebody dropped it during the merge, or wrote to it too. Nothing was published. Run it again."
            )
        return Branch(branch, head)


def branch_made_at(name: str) -> int | None:
    """When a branch of ours was made, in milliseconds since the epoch; None if its name does not tell."""
    found = _NAMED.fullmatch(name)
    return int(found[1]) if found else None
