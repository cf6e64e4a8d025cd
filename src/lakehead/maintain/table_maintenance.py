"""All maintenance of one Iceberg table, in an order in which no step changes what a later one does.

So a dry run, which plans each step for the table as it is, lists what is then done: snapshots expire, orphan files and
branches go, manifests are rewritten, raw retention removes old slices, data files are compacted.
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import SnapshotId
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.ports import Progress
from lakehead.maintain.compaction import Compactor
from lakehead.maintain.compaction_plan import Compaction, manifests_of_main, plan_compaction
from lakehead.maintain.expiry import ExpiryLimits, expire
from lakehead.maintain.growth import MANY_MANIFESTS
from lakehead.maintain.raw_retention import RawRemoved, RawRetention, remove_old_slices
from lakehead.maintain.sweep import AGE, sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSettings:
    """What is removed and rewritten."""

    expiry: ExpiryLimits = field(default_factory=ExpiryLimits)
    orphans_older_than: timedelta = AGE
    compact: bool = True
    min_input_files: int = 5
    many_manifests: int = MANY_MANIFESTS
    """Manifests are rewritten from this number on."""

    @property
    def compaction_options(self) -> dict[str, str]:
        """The options of Iceberg's `rewrite_data_files`."""
        return {"min-input-files": str(self.min_input_files)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintenance:
    """What the maintenance of a table has done, or would do. Names of files are in order."""

    expired_snapshots: tuple[SnapshotId, ...] = ()
    expired_files: int = 0
    orphan_files: tuple[str, ...] = ()
    orphan_bytes: int = 0
    stray_branches: tuple[str, ...] = ()
    rewritten_manifests: tuple[str, ...] = ()
    raw_retention: RawRemoved = field(default_factory=RawRemoved)
    compaction: Compaction = field(default_factory=Compaction)

    @property
    def needs_spark(self) -> bool:
        """Whether Spark has something to do."""
        return bool(self.compaction or self.rewritten_manifests)


@dataclass(slots=True, kw_only=True)
class TableMaintainer:
    """Does all maintenance of one table, or plans it."""

    table: IcebergTable
    progress: Progress
    ledger: StoreLedger
    clock: Clock
    settings: MaintenanceSettings
    retention: RawRetention | None = None
    done: TableMaintenance = field(default_factory=TableMaintenance)
    """What was done up to now, or what would be: also after an error."""

    refused: list[Misconfigured] = field(default_factory=list)
    """Why steps were left out that the table's settings or place do not allow. The other steps were done."""

    async def plan(self) -> None:
        """Find what maintenance would do to the table as it is now. Changes nothing. Raises as the steps do."""
        await self._remove(dry_run=True)
        manifests, old = self._many_manifests(), self._old_slices(dry_run=True)
        planned = self._planned(old)
        self.done = replace(self.done, rewritten_manifests=manifests, raw_retention=old, compaction=planned)

    async def maintain(self, compactor: Compactor | None = None) -> None:
        """Do all maintenance, beside landings.

        `compactor` may be None if the plan says that Spark has nothing to do. Raises as the steps do; what was done
        before an error stays done.
        """
        await self._remove(dry_run=False)
        if compactor is not None and (manifests := self._many_manifests()):
            await compactor.rewrite_manifests(self.table)
            self.done = replace(self.done, rewritten_manifests=manifests)
        old = self._old_slices(dry_run=False)
        self.done = replace(self.done, raw_retention=old)
        if compactor is not None and (planned := self._planned(old)):
            self.done = replace(self.done, compaction=await compactor.rewrite(self.table, planned))

    async def _remove(self, *, dry_run: bool) -> None:
        """Expire snapshots, and remove orphan files and stray branches."""
        table, settings = self.table, self.settings
        try:
            expired = await expire(
                table, self.progress, self.ledger, self.clock, limits=settings.expiry, dry_run=dry_run
            )
            self.done = replace(self.done, expired_snapshots=expired.snapshots, expired_files=expired.files)
        except Misconfigured as error:
            self.refused.append(error)
        try:
            swept = await sweep(table, self.clock, older_than=settings.orphans_older_than, dry_run=dry_run)
            self.done = replace(
                self.done, orphan_files=swept.files, orphan_bytes=swept.bytes, stray_branches=swept.branches
            )
        except Misconfigured as error:
            if str(error) not in map(str, self.refused):
                self.refused.append(error)

    def _many_manifests(self) -> tuple[str, ...]:
        manifests = manifests_of_main(self.table.load())
        return manifests if len(manifests) >= self.settings.many_manifests else ()

    def _old_slices(self, *, dry_run: bool) -> RawRemoved:
        return remove_old_slices(self.table, self.retention, dry_run=dry_run) if self.retention else RawRemoved()

    def _planned(self, old: RawRemoved) -> Compaction:
        if not self.settings.compact:
            return Compaction()
        return plan_compaction(self.table.load(), min_input_files=self.settings.min_input_files, without=old.files)
