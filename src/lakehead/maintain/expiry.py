"""Expires snapshots and removes the files that only they needed. No Spark job is run.

The last landing and all snapshots after it are kept at any age, because fences start from there. Landings are recorded
in the ledger before their snapshots expire.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.utils.properties import property_as_int

from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.landing import Snapshot, SnapshotId
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.lineage import Lineage
from lakehead.lake.ports import Moved, Progress, SourceUnknown
from lakehead.lake.protocol import fence
from lakehead.maintain.places import check_may_remove
from lakehead.maintain.remove_snapshots import Removed, ancestors, remove_snapshots
from lakehead.maintain.snapshot_files import SnapshotFiles
from lakehead.maintain.tags import misplaced, put_right

AGE = timedelta(days=5)
AT_ONCE = 500
"""Snapshots that one commit removes: what a crash leaves to the sweep is no more than their files."""

MAX_SNAPSHOT_AGE, MIN_SNAPSHOTS = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
"""Iceberg's table properties for branches without settings of their own."""

NEAR = 1_000
"""Where the landing before the oldest one of main is looked for first: this many sequence numbers back."""

MS = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryLimits:
    """Which snapshots an expiry may remove, and how many."""

    older_than: timedelta = AGE
    """Younger snapshots are kept."""

    unpublished_older_than: timedelta | None = None
    """Snapshots that no branch leads to are kept if they are younger; None for `older_than`. Others may have staged
    them to publish them later."""

    most_for_age: int | None = None
    """The newest snapshots of main that are kept for their age; None for all. Older ones may expire however young."""

    min_snapshots: int = 1
    """The newest snapshots of every branch that are kept, whatever their age."""

    most: int | None = None
    """The oldest snapshots that are removed; None for all that may expire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What an expiry has removed, or would remove."""

    table: str
    snapshots: tuple[SnapshotId, ...] = ()
    """Oldest first."""

    files: int = 0
    """Data and delete files, manifests, manifest lists and statistics that only these snapshots needed."""

    not_deleted: int = 0
    """How many of the files the store did not delete: they are left to a sweep."""

    kept: int = 0
    """Snapshots that may not expire yet."""

    waiting: int = 0
    """Snapshots that may expire, and were left for the next time."""

    no_landing: bool = False
    """Whether main's remaining history has no landing. Then all of it is kept, because it is unknown where it may be
    cut off."""


async def expire(
    table: IcebergTable,
    progress: Progress,
    ledger: StoreLedger,
    clock: Clock,
    *,
    limits: ExpiryLimits | None = None,
    files: SnapshotFiles | None = None,
    dry_run: bool = False,
) -> Expired:
    """Expire old snapshots, and remove the files that only they needed.

    Kept are main's last landing that is settled and all after it, what a branch or tag points at, what `limits` keep of
    every branch, and what the settings of a branch or the table keep. Snapshots that no branch leads to expire by their
    age alone. Our own tags are corrected first, so that none of them keeps a snapshot that main no longer has. `files`
    remembers what was read for the next expiry of the same table. Raises `HistoryBroken` if the table's landings cannot
    be settled first, `Misconfigured` if removing files is disabled (`gc.enabled`), `Incomplete` or `Unreadable` if a
    file of the table's metadata is missing or damaged, `Moved` if main was rolled back meanwhile, and `OutcomeUnknown`
    or `Unavailable` for a catalog or store that does not answer. Snapshots that were expired before an error are gone.
    """
    check_may_remove(table.load())
    known = await (progress.pointer(table.uuid) if dry_run else fence(table, progress, ledger))
    iceberg = table.load()
    main = list(ancestors(iceberg.metadata, MAIN_BRANCH))
    lineage = Lineage(iceberg)
    landing = await _last_landing(table, main, lineage)
    # If another tool's expiry has cut main off from its last landing, the state still has that landing.
    tagged = landing or known.last_landing
    if not dry_run:
        with suppress(Moved):  # then the tags may keep snapshots until the next expiry
            put_right(table, head_of(iceberg.metadata), tagged)
        iceberg = table.load()
    unneeded = misplaced(iceberg, tagged) if dry_run else set()
    refs = {name: ref for name, ref in iceberg.metadata.refs.items() if name not in unneeded}
    limits, files = limits or ExpiryLimits(), files or SnapshotFiles()
    # What was published since the fence is not settled yet: its trail begins at the landing that is.
    # A dry run has settled nothing, and shows what goes once all is settled.
    is_cut = not any(one.snapshot_id == known.last_landing for one in main)
    settled = landing if dry_run or is_cut else known.last_landing
    old = _old(iceberg.metadata, refs, clock.now_ns() // 1_000_000, limits, settled)
    going = [snapshot.snapshot_id for snapshot in old[: limits.most]]
    if dry_run:
        removed = Removed(tuple(going), files=len(files.only_of(iceberg, going)))
    else:
        if going:
            await _record(table, ledger, main, lineage, set(going))
        removed = Removed()
        for start in range(0, len(going), AT_ONCE):
            removed += remove_snapshots(
                table, going[start : start + AT_ONCE], files, main[0].snapshot_id if main else None
            )
    return Expired(
        table=table.name,
        snapshots=removed.snapshots,
        files=removed.files,
        not_deleted=removed.not_deleted,
        kept=len(iceberg.metadata.snapshots) - len(old),
        waiting=len(old) - len(going),
        no_landing=landing is None and bool(main),
    )


async def _last_landing(table: IcebergTable, main: Sequence[IcebergSnapshot], lineage: Lineage) -> SnapshotId | None:
    for snapshot in main:
        if await _landing(table, snapshot, lineage) is not None:
            return snapshot.snapshot_id
    return None


async def _landing(table: IcebergTable, one: IcebergSnapshot, lineage: Lineage) -> Snapshot | None:
    """A snapshot of main that is a landing; None if it is not one.

    A cherry-pick whose source is unknown is not one: if it were, settling it would have recorded it in the ledger.
    """
    try:
        snapshot = await table.read_snapshot(one, lineage)
    except SourceUnknown:
        return None
    return snapshot if snapshot.landing is not None else None


async def _record(
    table: IcebergTable,
    ledger: StoreLedger,
    main: Sequence[IcebergSnapshot],
    lineage: Lineage,
    going: set[SnapshotId],
) -> None:
    """Record the landings of main that expire in the ledger, after checking that it has the landings before them."""
    oldest = main[-1].sequence_number or 0 if main else 0
    known = await ledger.sequences(table.uuid, start=max(0, oldest - NEAR))
    first = True
    for one in reversed(main):
        if not first and (one.snapshot_id not in going or one.snapshot_id in known):
            continue
        snapshot = await _landing(table, one, lineage)
        if snapshot is None or snapshot.landing is None:
            continue
        before = snapshot.landing.before
        if first and before is not None and before not in known:
            known = await ledger.sequences(table.uuid)
        if first and snapshot.source is None and before is not None and before not in known:
            raise Misconfigured(
                f"The ledger does not have landing {before} of table {table.name}, whose snapshot is gone. Nothing was "
                "expired. Check that --ledger is the one that the landings use."
            )
        first = False
        if one.snapshot_id in going:
            await ledger.record(table.uuid, snapshot)


def _old(
    metadata: TableMetadata,
    refs: Mapping[str, SnapshotRef],
    now_ms: int,
    limits: ExpiryLimits,
    landing: SnapshotId | None,
) -> list[IcebergSnapshot]:
    """The snapshots that may expire, oldest first."""
    kept, main = set[SnapshotId](), set[SnapshotId]()
    young_from, most = now_ms - limits.older_than // MS, limits.most_for_age
    unpublished = limits.older_than if limits.unpublished_older_than is None else limits.unpublished_older_than
    table_age_ms, table_count = _setting(metadata, MAX_SNAPSHOT_AGE), _setting(metadata, MIN_SNAPSHOTS)
    on_branches = set[SnapshotId]()
    for name, ref in refs.items():
        kept.add(ref.snapshot_id)
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            needed = name == MAIN_BRANCH
            own_age_ms = table_age_ms if ref.max_snapshot_age_ms is None else ref.max_snapshot_age_ms
            own_count = table_count if ref.min_snapshots_to_keep is None else ref.min_snapshots_to_keep
            for number, snapshot in enumerate(ancestors(metadata, name)):
                counted = number < max(limits.min_snapshots, own_count or 0)
                young = snapshot.timestamp_ms >= young_from and (most is None or number < most or name != MAIN_BRANCH)
                own = own_age_ms is not None and snapshot.timestamp_ms >= now_ms - own_age_ms
                if needed or counted or young or own:
                    kept.add(snapshot.snapshot_id)
                on_branches.add(snapshot.snapshot_id)
                needed = needed and snapshot.snapshot_id != landing
                if name == MAIN_BRANCH and most is not None:
                    main.add(snapshot.snapshot_id)
    old = [
        one
        for one in metadata.snapshots
        if one.snapshot_id not in kept
        and (
            one.snapshot_id in main
            or one.timestamp_ms < (young_from if one.snapshot_id in on_branches else now_ms - unpublished // MS)
        )
    ]
    return sorted(old, key=lambda snapshot: snapshot.sequence_number or 0)


def _setting(metadata: TableMetadata, name: str) -> int | None:
    """A table property that is a number; None if it is not set."""
    try:
        return property_as_int(metadata.properties, name)
    except ValueError as error:
        raise Misconfigured(f"{error}. Nothing was expired. Set it to a number, or remove it.") from None
