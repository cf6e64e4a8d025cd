"""All maintenance of one Iceberg table, in an order in which no step changes what a later one does.

So a dry run, which plans each step for the table as it is, lists what is then done: snapshots expire, orphan files and
branches go, manifests are rewritten, raw retention removes old slices, data files are compacted.
"""

from dataclasses import dataclass, field
from datetime import timedelta

from lakehead.clock import Clock
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


async def plan_maintenance(
    table: IcebergTable,
    progress: Progress,
    ledger: StoreLedger,
    clock: Clock,
    *,
    settings: MaintenanceSettings,
    retention: RawRetention | None = None,
) -> TableMaintenance:
    """What maintenance would do to the table as it is now. Changes nothing. Raises as `expire` and `sweep` do."""
    expired = await expire(table, progress, ledger, clock, limits=settings.expiry, dry_run=True)
    swept = await sweep(table, clock, older_than=settings.orphans_older_than, dry_run=True)
    manifests = manifests_of_main(table.load())
    old = remove_old_slices(table, retention, dry_run=True) if retention else RawRemoved()
    return TableMaintenance(
        expired_snapshots=expired.snapshots,
        expired_files=expired.files,
        orphan_files=swept.files,
        orphan_bytes=swept.bytes,
        stray_branches=swept.branches,
        rewritten_manifests=manifests if len(manifests) >= settings.many_manifests else (),
        raw_retention=old,
        compaction=_planned(table, settings, old),
    )


async def maintain_table(
    table: IcebergTable,
    progress: Progress,
    ledger: StoreLedger,
    clock: Clock,
    *,
    settings: MaintenanceSettings,
    retention: RawRetention | None = None,
    compactor: Compactor | None = None,
) -> TableMaintenance:
    """Do all maintenance of the table, beside landings. Returns what was done.

    `compactor` may be None if the plan says that Spark has nothing to do. Raises as the steps do; what was done before
    an error stays done.
    """
    expired = await expire(table, progress, ledger, clock, limits=settings.expiry)
    swept = await sweep(table, clock, older_than=settings.orphans_older_than)
    manifests = manifests_of_main(table.load())
    if compactor is not None and len(manifests) >= settings.many_manifests:
        await compactor.rewrite_manifests(table)
    else:
        manifests = ()
    old = remove_old_slices(table, retention) if retention else RawRemoved()
    compaction = Compaction()
    if compactor is not None and (planned := _planned(table, settings, old)):
        compaction = await compactor.rewrite(table, planned)
    return TableMaintenance(
        expired_snapshots=expired.snapshots,
        expired_files=expired.files,
        orphan_files=swept.files,
        orphan_bytes=swept.bytes,
        stray_branches=swept.branches,
        rewritten_manifests=manifests,
        raw_retention=old,
        compaction=compaction,
    )


def _planned(table: IcebergTable, settings: MaintenanceSettings, old: RawRemoved) -> Compaction:
    if not settings.compact:
        return Compaction()
    return plan_compaction(table.load(), min_input_files=settings.min_input_files, without=old.files)
