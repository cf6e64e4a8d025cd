"""An Iceberg table for the landing protocol: its head, its history, and the commit that moves main."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    UnauthorizedError,
)
from pyiceberg.table import Table as Iceberg
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.lake.commits import SWEEP, Commit, publication, settings_kept, standing
from lakehead.lake.documents import from_summary, to_summary
from lakehead.lake.landing import Head, Landing, Snapshot, SnapshotId
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.lineage import Lineage
from lakehead.lake.merged_files import MergedFiles
from lakehead.lake.ports import CONFIG_OPTION, HistoryBroken, Moved, SourceUnknown, Staged
from lakehead.lake.retries import Retries, unavailable
from lakehead.lake.staged_rows import Branch, NewFiles
from lakehead.retry import Backoff
from lakehead.spark.names import argument, readable
from lakehead.wire.errors import Unreadable

COMMITS = Backoff(attempts=10, first_seconds=0.05, cap_seconds=2.0)
"""Attempts of a commit that the catalog refuses although main has not moved."""

SOURCE = "source-snapshot-id"
"""Iceberg's property of a cherry-picked snapshot: the snapshot that it was picked from."""

WAP = "published-wap-id"
"""Iceberg's property of a cherry-picked snapshot that was staged under a write-audit-publish id. No landing has it."""

FORMAT_VERSION = 2
"""The only supported version: version 1 has no sequence numbers, and PyIceberg does not write later versions."""


class NoTable(Misconfigured):
    """The catalog has no table of that name."""


class IcebergTable:
    """One table. Its metadata is loaded again for each call, so an answer may be outdated a moment later."""

    def __init__(self, catalog: Catalog, name: str, ledger: StoreLedger, retries: Retries | None = None) -> None:
        """Open the table `namespace.table`. Raises `NoTable` if it does not exist, `Misconfigured` if not writable.

        `retries` says for how long this object retries a catalog or store that does not answer.
        """
        self.catalog = catalog
        self.name = name
        self._ledger = ledger
        self._retries = retries or Retries()
        try:
            self._seen = self._load()
        except NoSuchTableError:
            raise NoTable(f"There is no table {name} in the catalog {catalog.name}. Create it first.") from None
        self._uuid = str(self._seen.metadata.table_uuid)
        self._check_format(self._seen.metadata.format_version)

    @classmethod
    def find(cls, catalog: Catalog, name: str, ledger: StoreLedger, retries: Retries) -> "IcebergTable | None":
        """Open the table, as the constructor does; None if there is none."""
        try:
            return cls(catalog, name, ledger, retries)
        except NoTable:
            return None

    @property
    def uuid(self) -> str:
        """The table's permanent identity."""
        return self._uuid

    def load(self) -> Iceberg:
        """Load the table as it is now.

        Raises `HistoryBroken` if it was dropped or another table has its name now, `Misconfigured` if its format
        version was changed, and `Unavailable` if the catalog does not answer.
        """
        try:
            table = self._load()
        except NoSuchTableError:
            raise HistoryBroken(f"The table {self.name} was dropped while it was in use.") from None
        if str(table.metadata.table_uuid) != self._uuid:
            raise HistoryBroken(
                f"The table {self.name} was replaced while it was in use: it is {table.metadata.table_uuid} now, and "
                f"was {self._uuid}. Start again to land in the new one."
            )
        self._check_format(table.metadata.format_version)
        self._seen = table
        return table

    def _check_format(self, version: int) -> None:
        if version < FORMAT_VERSION:
            raise Misconfigured(
                f"The table {self.name} has format version {version}, and landings need {FORMAT_VERSION}: "
                f"ALTER TABLE {readable(self.catalog.name, *self.name.split('.'))} SET TBLPROPERTIES "
                "('format-version' = '2')."
            )
        if version > FORMAT_VERSION:
            raise Misconfigured(
                f"The table {self.name} has format version {version}, and Lakehead writes version {FORMAT_VERSION}. "
                "A table's version cannot be lowered: create another table with TBLPROPERTIES ('format-version' = "
                "'2') and copy the rows there, or rename this one and load it again."
            )

    def _load(self) -> Iceberg:
        return self._retries.call(f"The catalog {self.catalog.name}", lambda: self.catalog.load_table(self.name))

    def seen(self) -> Iceberg:
        """The table as it was last loaded: enough for what does not change during a landing, like its location."""
        return self._seen

    async def head(self) -> Head:
        """The table's current head."""
        return head_of(self.load().metadata)

    async def history(self, after: SnapshotId | None, upto: SnapshotId | None) -> Sequence[Snapshot]:
        """The snapshots after `after` up to and including `upto`, oldest first, with their landings.

        Raises `HistoryBroken` unless they form an unbroken chain of parents.
        """
        table = self._seen
        if upto is None or table.metadata.snapshot_by_id(upto) is None:
            table = self.load()
        # Snapshots that other tools expired are found in older metadata files. Without a state that does not help: it
        # must be rebuilt from the ledger.
        lineage = Lineage(table, older=after is not None)
        chain: list[Snapshot] = []
        at = upto
        while at is not None and at != after:
            found = lineage.find(at)
            if found is None:
                break
            chain.append(await self.read_snapshot(found, lineage))
            at = lineage.parent(at)
        if at != after or (at is None and not _begins(chain, table)):
            raise HistoryBroken(self._broken(table.metadata, after, upto, chain[-1].id if chain else None, missing=at))
        return chain[::-1]

    async def publish(self, staged: Staged[NewFiles | MergedFiles | Branch], at: Head) -> Head:
        """Make staged rows main's next snapshot, in one commit that requires the table's head to be `at`.

        Returns the new head. Raises as `commit` does.
        """
        properties = {} if isinstance(staged.rows, Branch) else await self.summary(staged.landing)
        return head_of(self.commit(at, lambda table: publication(table, staged.rows, properties)).metadata)

    async def summary(self, landing: Landing) -> dict[str, str]:
        """The summary properties that make a snapshot this landing. Stores a long unit list in the ledger first."""
        return to_summary(landing, await self._ledger.keep_units(self._uuid, landing.remainders))

    def commit(self, at: Head | None, changes: Commit, *, as_seen: bool = False) -> Iceberg:
        """Commit changes to the table if its head is still `at`, or at any head if that is None.

        Returns the table after the commit. Each attempt makes the changes anew for the table as it is then; if there
        are none, nothing is committed. With `as_seen` the first attempt uses the table as it was last loaded, for
        changes that move no reference.

        Raises `Moved` if main or the last sweep has moved, `OutcomeUnknown` if the catalog does not say whether the
        commit was made, and `Unavailable` if nothing was changed. Conflicts with other metadata changes are retried.
        """
        refused: str | None = None
        for pause in COMMITS.pauses(self._retries.random):
            self._retries.pause(pause)
            table = self._seen if as_seen and refused is None else self.load()
            head = head_of(table.metadata)
            if at is not None and head != at:
                raise Moved(f"The head of table {self.name} moved from snapshot {at.snapshot} to {head.snapshot}.")
            try:
                updates, requirements = self._retries.call(f"The store of table {self.name}", partial(changes, table))
            except FileNotFoundError as error:
                if head_of(self.load().metadata) == head:
                    raise
                raise Moved(f"The table {self.name} has moved, and its former head has expired ({error}).") from error
            if not updates:
                return table
            required = (AssertTableUUID(uuid=table.metadata.table_uuid), *standing(table.metadata), *requirements)
            refused = self._refusal(table, settings_kept(table.metadata, updates), required)
            if refused is None:
                return table
        raise Unavailable(
            f"The catalog {self.catalog.name} refused {COMMITS.attempts} commits to {self.name}, each made for the "
            f"table as it was then ({refused}). Nothing was published; try again later."
        )

    def remove_branch(self, name: str) -> None:
        """Remove a branch, whatever snapshot it is at. Does nothing if there is none.

        Does not retry a catalog that does not answer: raises `Unavailable` or `OutcomeUnknown`.
        """
        refused: str | None = None
        for pause in COMMITS.pauses(self._retries.random):
            self._retries.pause(pause)
            try:
                table = self.catalog.load_table(self.name)
            except NoSuchTableError:
                return
            except Exception as error:
                raise unavailable(f"The catalog {self.catalog.name}", error) from error
            ref = table.metadata.refs.get(name)
            if ref is None or str(table.metadata.table_uuid) != self._uuid:
                return
            required = (
                AssertTableUUID(uuid=table.metadata.table_uuid),
                AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id),
            )
            refused = self._refusal(table, (RemoveSnapshotRefUpdate(ref_name=name),), required)
            if refused is None:
                return
        raise Unavailable(f"The catalog {self.catalog.name} did not remove branch {name} of {self.name} ({refused}).")

    def _refusal(
        self, table: Iceberg, updates: tuple[TableUpdate, ...], required: tuple[TableRequirement, ...]
    ) -> str | None:
        """Commit once. Returns why the catalog refused it, or None if the commit was made.

        Raises `OutcomeUnknown` if the catalog does not say whether it was made.
        """
        try:
            table._do_commit(updates, required)  # noqa: SLF001 - the public method retries on top of a moved head
        except (CommitFailedException, BadRequestError) as error:
            # Some catalogs answer with the second for a snapshot whose sequence number is no longer the next one.
            return str(error)
        except (ForbiddenError, UnauthorizedError) as error:
            raise Misconfigured(f"The catalog {self.catalog.name} refused a commit to {self.name}: {error}") from None
        except Exception as error:
            raise OutcomeUnknown(
                f"The catalog {self.catalog.name} did not say whether a commit to {self.name} was made ({error}). "
                "Look for its snapshot before trying again."
            ) from error
        return None

    async def read_snapshot(self, found: IcebergSnapshot, lineage: Lineage | None = None) -> Snapshot:
        """Convert a snapshot of PyIceberg's, with the landing that its summary or its cherry-pick source records.

        A cherry-picked landing does not say which one is before it: see `chained`. Raises `HistoryBroken` if there is
        no record any more of which units it holds.
        """
        snapshot = Snapshot(found.snapshot_id, found.parent_snapshot_id, found.sequence_number or 0)
        summary = summary_of(found)
        recorded = from_summary(summary, f"snapshot {snapshot.id} of {self.name}")
        if recorded is None and SOURCE in summary:
            return await self._picked(snapshot, summary, lineage or Lineage(self._seen))
        if recorded is None:
            return snapshot
        landing, kept = recorded
        if kept is None:
            return replace(snapshot, landing=landing)
        try:
            remainders = await self._ledger.kept_units(kept)
            reason = f"its progress object {kept.key} is missing"
        except Unreadable as error:
            remainders, reason = None, str(error)
        if remainders is not None:
            return replace(snapshot, landing=replace(landing, remainders=remainders))
        known = await self._ledger.read(self._uuid, snapshot.id, snapshot.sequence)
        if known is None:
            raise HistoryBroken(
                f"There is no record of which units snapshot {snapshot.id} of {self.name} holds: {reason}, and it is "
                f"not in the ledger. Restore the object from a backup, or roll the table back to before it: "
                f"CALL {readable(self.catalog.name)}.system.rollback_to_snapshot({argument(self.name)}, "
                f"{snapshot.parent})."
            )
        return replace(snapshot, landing=known.landing)

    async def _picked(self, snapshot: Snapshot, summary: Mapping[str, str], lineage: Lineage) -> Snapshot:
        """A cherry-picked snapshot, with its source's landing: Iceberg does not copy the source's properties."""
        source = int(summary[SOURCE])
        known = None
        if not lineage.has(source):
            if WAP in summary:  # staged by other tools for write-audit-publish, so not a landing
                return snapshot
            own = await self._ledger.read(self._uuid, snapshot.id, snapshot.sequence)
            known = own or await self._ledger.find(self._uuid, source)
        if known is None and (found := lineage.find(source)) is not None:
            if (found.sequence_number or 0) >= snapshot.sequence:
                raise Unreadable(f"Snapshot {snapshot.id} of {self.name} names {source} as its source, which is newer.")
            known = await self.read_snapshot(found, lineage)
        if known is not None and known.landing is not None:
            return replace(snapshot, landing=replace(known.landing, before=None), source=source)
        if known is not None:
            return snapshot
        raise SourceUnknown(
            f"Snapshot {snapshot.id} of {self.name} was cherry-picked from snapshot {source}, which has expired, and "
            "neither the ledger nor a metadata file says whether that was a landing. Nothing is landed until you name "
            f"the table's last landing: lakehead state rebuild {self.name} {CONFIG_OPTION} --last-landing ID"
        )

    def _broken(
        self,
        metadata: TableMetadata,
        after: SnapshotId | None,
        upto: SnapshotId | None,
        oldest: SnapshotId | None,
        missing: SnapshotId | None,
    ) -> str:
        catalog, name, gap = readable(self.catalog.name), self.name, missing or oldest
        rebuild = f"lakehead state rebuild {name} {CONFIG_OPTION}"
        accept = f"or accept the table as it is: {rebuild}"
        if after is None:
            return (
                f"The state has no record of table {name}, whose history is cut off before snapshot {gap}, so it is "
                f"unknown what had landed before that. Rebuild the state from the ledger: {rebuild}"
            )
        if metadata.snapshot_by_id(after) is not None and missing is None:
            return (
                f"Table {name} was rolled back or replaced: main is at {upto}, which does not lead back to "
                f"snapshot {after}, up to which its landings are settled. Nothing is landed until you decide. Restore "
                f"it: CALL {catalog}.system.set_current_snapshot({argument(name)}, {after}); {accept}"
            )
        return (
            f"Snapshots of table {name} were expired by another tool, or the table was replaced: main is at {upto} and "
            f"its history is cut off at {gap}, before it reaches snapshot {after}, up to which its landings are "
            "settled; no metadata file goes further back. Nothing is landed until you decide. Expire snapshots with "
            f"lakehead, which keeps those it needs; {accept}"
        )


def _begins(chain: Sequence[Snapshot], table: Iceberg) -> bool:
    """Whether the snapshots, given newest first, go back to before the first landing.

    It is not enough that the oldest has no parent: PyIceberg's expiry removes the parent id from the oldest snapshot
    that it keeps. And the first snapshot of a replaced table never had a parent, though it is not the table's first.
    """
    landings = [snapshot.landing for snapshot in chain if snapshot.landing is not None and snapshot.source is None]
    if landings or not chain:
        return not landings or landings[-1].before is None
    lineage, oldest = Lineage(table), chain[-1].id
    return lineage.parent(oldest) is None and lineage.begins_at(oldest)


def summary_of(snapshot: IcebergSnapshot | None) -> Mapping[str, str]:
    """A snapshot's summary; empty if there is no snapshot, or it has none."""
    return snapshot.summary.additional_properties if snapshot and snapshot.summary else {}


def head_of(metadata: TableMetadata) -> Head:
    """A table's head, from its references."""
    main, sweep = metadata.refs.get(MAIN_BRANCH), metadata.refs.get(SWEEP)
    return Head(main.snapshot_id if main else None, sweep.snapshot_id if sweep else None)
