"""Expires snapshots and removes the files that only they referred to.

The last landing and all snapshots after it are kept at any age, because fences start from there. Landings are recorded
in the ledger before their snapshots expire.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table import Table as Iceberg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyspark.sql import SparkSession

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.lake.iceberg_table import IcebergTable, head_of
from lakehead.lake.landing import Snapshot, SnapshotId
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.lineage import Lineage
from lakehead.lake.ports import Moved, Progress, SourceUnknown
from lakehead.lake.protocol import fence
from lakehead.maintain.places import check_may_remove
from lakehead.maintain.references import References
from lakehead.maintain.tags import misplaced, put_right
from lakehead.spark.names import argument, quoted
from lakehead.spark.reasons import SPARKS_ERRORS, reason_of

AGE = timedelta(days=5)
AT_ONCE = 500
"""Snapshots that one statement expires: it lists all of their ids."""

NEAR = 1_000
"""Where the landing before the oldest one of main is looked for first: this many sequence numbers back."""

MS = timedelta(milliseconds=1)


class ExpiryFailed(LakeheadError):
    """Spark could not expire snapshots. Those that it had expired before the error are gone; the others remain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """What an expiry has removed, or would remove."""

    table: str
    snapshots: tuple[SnapshotId, ...] = ()
    """Oldest first."""

    files: int = 0
    """Data and delete files, manifests and manifest lists that only these snapshots referred to."""

    kept: int = 0
    no_landing: bool = False
    """Whether main's remaining history has no landing. Then all of it is kept, because it is unknown where it may be
    cut off."""


async def expire(
    table: IcebergTable,
    session: SparkSession,
    progress: Progress,
    ledger: StoreLedger,
    clock: Clock,
    *,
    older_than: timedelta = AGE,
    min_snapshots: int = 1,
    dry_run: bool = False,
) -> Expired:
    """Expire snapshots older than `older_than`, and remove the files that only they referred to.

    Kept are main's last landing and all after it, what a branch or tag points at, the newest `min_snapshots` of every
    branch, and what a branch's own settings keep. Snapshots that no branch leads to expire by their age alone. Our own
    tags are corrected first, so that none of them keeps a snapshot that main no longer has. Raises `HistoryBroken` if
    the table's landings cannot be settled first, `Misconfigured` if removing files is disabled (`gc.enabled`), and
    `ExpiryFailed`.
    """
    check_may_remove(table.load())
    known = await (progress.pointer(table.uuid) if dry_run else fence(table, progress, ledger))
    iceberg = table.load()
    main = list(_ancestors(iceberg.metadata, MAIN_BRANCH))
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
    old = _old(iceberg.metadata, refs, clock.now_ns() // 1_000_000, older_than // MS, min_snapshots, landing)
    if dry_run or not old:
        files = _only_theirs(iceberg, old)
    else:
        await _record(table, ledger, main, lineage, {snapshot.snapshot_id for snapshot in old})
        files = sum(
            _expire(session, table, [snapshot.snapshot_id for snapshot in old[start : start + AT_ONCE]])
            for start in range(0, len(old), AT_ONCE)
        )
    return Expired(
        table=table.name,
        snapshots=tuple(snapshot.snapshot_id for snapshot in old),
        files=files,
        kept=len(iceberg.metadata.snapshots) - len(old),
        no_landing=landing is None and bool(main),
    )


def _ancestors(metadata: TableMetadata, ref: str) -> Iterator[IcebergSnapshot]:
    """The snapshots from a reference back, as far as the history exists."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    at = metadata.refs[ref].snapshot_id if ref in metadata.refs else None
    while at is not None and (found := by_id.get(at)) is not None:
        yield found
        at = found.parent_snapshot_id


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
    age_ms: int,
    min_snapshots: int,
    landing: SnapshotId | None,
) -> list[IcebergSnapshot]:
    """The snapshots that may expire, oldest first."""
    kept: set[SnapshotId] = set()
    for name, ref in refs.items():
        kept.add(ref.snapshot_id)
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            needed = name == MAIN_BRANCH
            own_age_ms = max(age_ms, ref.max_snapshot_age_ms or 0)
            for number, snapshot in enumerate(_ancestors(metadata, name)):
                counted = number < max(min_snapshots, ref.min_snapshots_to_keep or 0)
                if needed or counted or snapshot.timestamp_ms >= now_ms - own_age_ms:
                    kept.add(snapshot.snapshot_id)
                needed = needed and snapshot.snapshot_id != landing
    old = [one for one in metadata.snapshots if one.snapshot_id not in kept and one.timestamp_ms < now_ms - age_ms]
    return sorted(old, key=lambda snapshot: snapshot.sequence_number or 0)


def _only_theirs(table: Iceberg, old: Sequence[IcebergSnapshot]) -> int:
    """How many files only these snapshots hold. Reads every manifest: where files are removed, Spark counts them."""
    if not old:
        return 0
    going = {snapshot.snapshot_id for snapshot in old}
    references = References()
    theirs = references.held(table, old)
    return len(
        theirs - references.held(table, [one for one in table.metadata.snapshots if one.snapshot_id not in going])
    )


def _expire(session: SparkSession, table: IcebergTable, snapshots: Sequence[SnapshotId]) -> int:
    """Expire snapshots. Returns how many files were removed."""
    # Without a timestamp it would also expire by the table's own age setting, and not keep our landing.
    ids = ", ".join(f"{snapshot}L" for snapshot in snapshots)
    try:
        counted = session.sql(
            f"CALL {quoted(table.catalog.name)}.system.expire_snapshots(table => {argument(table.name)}, "
            f"older_than => TIMESTAMP '1970-01-01 00:00:00', snapshot_ids => array({ids}))"
        ).collect()[0]
    except SPARKS_ERRORS as error:
        raise ExpiryFailed(
            f"Expiring {len(snapshots)} snapshots of {table.name} failed: {reason_of(error)}. Run it again: it "
            "continues with the rest."
        ) from error
    return sum(counted.asDict().values())
