"""An Iceberg table, as the landing protocol asks for it: its head, its history, and one commit that moves main."""

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
from lakehead.lake.ports import CONFIG_OPTION, HistoryBroken, Moved, SourceUnknown, Staged
from lakehead.lake.retries import Retries, unavailable
from lakehead.lake.rows import Branch, NewFiles
from lakehead.spark.names import argument, readable
from lakehead.storage.backoff import Backoff
from lakehead.wire.errors import Unreadable

COMMITS = Backoff(attempts=10, first_seconds=0.05, cap_seconds=2.0)
"""Tries of a commit that is refused though nobody has moved main."""

SOURCE = "source-snapshot-id"
"""Iceberg's property of a cherry-picked snapshot: which one it was picked from."""

WAP = "published-wap-id"
"""Iceberg's property of a cherry-picked snapshot that was staged under an id, as no landing is."""

FORMAT_VERSION = 2
"""The only one: earlier ones have no sequence numbers, and PyIceberg does not write later ones."""


class IcebergTable:
    """One table. It is read afresh each time: whatever it tells was true a moment ago."""

    def __init__(self, catalog: Catalog, name: str, ledger: StoreLedger, retries: Retries | None = None) -> None:
        """Open the table `namespace.table`. Raises `Misconfigured` if there is none that can be landed in.

        `retries` says how long a catalog or a store that does not answer is waited for, here and in all that follows.
        """
        self.catalog = catalog
        self.name = name
        self._ledger = ledger
        self._retries = retries or Retries()
        try:
            self._seen = self._load()
        except NoSuchTableError:
            raise Misconfigured(f"There is no table {name} in the catalog {catalog.name}. Create it first.") from None
        self._uuid = str(self._seen.metadata.table_uuid)
        self._check_format(self._seen.metadata.format_version)

    @property
    def uuid(self) -> str:
        """What names the table for good."""
        return self._uuid

    def load(self) -> Iceberg:
        """The table as it is now.

        Raises `HistoryBroken` if another one has taken its name, `Misconfigured` if its format version was changed, and
        `Unavailable` if the catalog does not answer.
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
                "A table's version cannot be lowered: make another table with TBLPROPERTIES ('format-version' = '2') "
                "and copy the rows there, or give this one another name and load it anew."
            )

    def _load(self) -> Iceberg:
        return self._retries.call(f"The catalog {self.catalog.name}", lambda: self.catalog.load_table(self.name))

    def seen(self) -> Iceberg:
        """The table as it was last loaded: good for what does not change under a landing, like where its files go."""
        return self._seen

    async def head(self) -> Head:
        """Where the table stands now."""
        return head_of(self.load().metadata)

    async def history(self, after: SnapshotId | None, upto: SnapshotId | None) -> Sequence[Snapshot]:
        """The snapshots after one up to another, oldest first, with the landings they brought."""
        table = self._seen
        if upto is None or table.metadata.snapshot_by_id(upto) is None:
            table = self.load()
        # What somebody else has expired is found in older metadata. A lost state needs the ledger all the same.
        lineage = Lineage(table, older=after is not None)
        chain: list[Snapshot] = []
        at = upto
        while at is not None and at != after:
            found = lineage.find(at)
            if found is None:
                break
            chain.append(await self.told(found, lineage))
            at = lineage.parent(at)
        if at != after or (at is None and not _begins(chain, table)):
            raise HistoryBroken(self._broken(table.metadata, after, upto, chain[-1].id if chain else None, missing=at))
        return chain[::-1]

    async def publish(self, staged: Staged[NewFiles | Branch], at: Head) -> None:
        """Make staged rows main's next snapshot, in one commit that requires the table to stand there."""
        properties = await self.summary(staged.landing) if isinstance(staged.rows, NewFiles) else {}
        self.commit(at, lambda table: publication(table, staged.rows, properties))

    async def summary(self, landing: Landing) -> dict[str, str]:
        """The properties under which a snapshot is this landing. A long unit list is stored before they are told."""
        return to_summary(landing, await self._ledger.keep_units(self._uuid, landing.shares))

    def commit(self, at: Head, changes: Commit) -> Iceberg:
        """Commit changes to the table as it is where it stands, and nowhere else.

        Raises `Moved` if main or the last sweep is elsewhere, `OutcomeUnknown` for whatever is not a definite answer,
        and `Unavailable` if nothing was changed. While only other metadata is in the way, it tries again.
        """
        refused: str | None = None
        for pause in COMMITS.pauses(self._retries.random):
            self._retries.pause(pause)
            table = self.load()
            stands = head_of(table.metadata)
            if stands != at:
                raise Moved(f"The table {self.name} stands at {stands.snapshot}, no longer at {at.snapshot}.")
            try:
                updates, requirements = self._retries.call(f"The store of table {self.name}", partial(changes, table))
            except FileNotFoundError as error:
                if head_of(self.load().metadata) == at:
                    raise
                raise Moved(f"The table {self.name} has moved, and what it was has expired ({error}).") from error
            required = (AssertTableUUID(uuid=table.metadata.table_uuid), *standing(table.metadata), *requirements)
            refused = self._refusal(table, settings_kept(table.metadata, updates), required)
            if refused is None:
                return table
        raise Unavailable(
            f"The catalog {self.catalog.name} refused {COMMITS.attempts} commits to {self.name} though nobody has "
            f"moved its main branch ({refused}). Nothing was published; try again later."
        )

    def remove_branch(self, name: str) -> None:
        """Remove a branch, wherever it is. One that is gone is fine.

        A catalog that does not answer is not waited for: it raises `Unavailable` or `OutcomeUnknown`.
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
        """Commit once. Why it was refused, or None if it was made; whatever is not definite is `OutcomeUnknown`."""
        try:
            table._do_commit(updates, required)  # noqa: SLF001 - the public one tries again over a head that has moved
        except (CommitFailedException, BadRequestError) as error:
            # The second is what some catalogs say to a snapshot that is no longer the next one.
            return str(error)
        except (ForbiddenError, UnauthorizedError) as error:
            raise Misconfigured(f"The catalog {self.catalog.name} refused a commit to {self.name}: {error}") from None
        except Exception as error:
            raise OutcomeUnknown(
                f"The catalog {self.catalog.name} did not say whether a commit to {self.name} was made ({error}). "
                "Look for its snapshot before trying again."
            ) from error
        return None

    async def told(self, found: IcebergSnapshot, lineage: Lineage | None = None) -> Snapshot:
        """A snapshot in our words, with the landing that it says it is, or that it was cherry-picked from.

        A landing that was cherry-picked does not say which one is before it: see `chained`. Raises `HistoryBroken` if
        nobody knows any more which units it brought.
        """
        snapshot = Snapshot(found.snapshot_id, found.parent_snapshot_id, found.sequence_number or 0)
        summary = found.summary.additional_properties if found.summary else {}
        said = from_summary(summary, f"snapshot {snapshot.id} of {self.name}")
        if said is None and SOURCE in summary:
            return await self._picked(snapshot, summary, lineage or Lineage(self._seen))
        if said is None:
            return snapshot
        landing, kept = said
        if kept is None:
            return replace(snapshot, landing=landing)
        try:
            shares = await self._ledger.kept_units(kept)
            reason = f"its progress object {kept.key} is missing"
        except Unreadable as error:
            shares, reason = None, str(error)
        if shares is not None:
            return replace(snapshot, landing=replace(landing, shares=shares))
        known = await self._ledger.read(self._uuid, snapshot.id, snapshot.sequence)
        if known is None:
            raise HistoryBroken(
                f"Nobody knows any more which units snapshot {snapshot.id} of {self.name} holds: {reason}, and it is "
                f"not in the ledger. Bring the object back from a backup, or roll the table back to before it: "
                f"CALL {readable(self.catalog.name)}.system.rollback_to_snapshot({argument(self.name)}, "
                f"{snapshot.parent})."
            )
        return replace(snapshot, landing=known.landing)

    async def _picked(self, snapshot: Snapshot, summary: Mapping[str, str], lineage: Lineage) -> Snapshot:
        """A cherry-picked snapshot, with the landing that its source is: Iceberg copies none of its properties."""
        source = int(summary[SOURCE])
        known = None
        if not lineage.has(source):
            if WAP in summary:  # what others wrote first and published later is no landing
                return snapshot
            own = await self._ledger.read(self._uuid, snapshot.id, snapshot.sequence)
            known = own or await self._ledger.find(self._uuid, source)
        if known is None and (found := lineage.find(source)) is not None:
            if (found.sequence_number or 0) >= snapshot.sequence:
                raise Unreadable(f"Snapshot {snapshot.id} of {self.name} names {source} as its source, which is newer.")
            known = await self.told(found, lineage)
        if known is not None and known.landing is not None:
            return replace(snapshot, landing=replace(known.landing, before=None), source=source)
        if known is not None:
            return snapshot
        raise SourceUnknown(
            f"Snapshot {snapshot.id} of {self.name} was cherry-picked from snapshot {source}, which has expired, and "
            "neither the ledger nor a metadata file tells whether that was a landing. Nothing is landed until you say "
            f"which landing was the table's last: lakehead state rebuild {self.name} {CONFIG_OPTION} --last-landing ID"
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
                f"The state knows nothing of table {name}, whose history is cut off before snapshot {gap}: it is not "
                f"known what had landed there. Rebuild the state from the ledger: {rebuild}"
            )
        if metadata.snapshot_by_id(after) is not None and missing is None:
            return (
                f"Table {name} was rolled back or replaced: main stands at {upto}, which does not lead back to "
                f"snapshot {after}, up to which its landings are settled. Nothing is landed until you decide. Bring it "
                f"back: CALL {catalog}.system.set_current_snapshot({argument(name)}, {after}); {accept}"
            )
        return (
            f"Somebody has expired snapshots of table {name}, or replaced it: main stands at {upto} and its history is "
            f"cut off at {gap}, before snapshot {after} is reached, up to which its landings are settled; no metadata "
            "file tells more. Nothing is landed until you decide. Expire snapshots with lakehead, which keeps all that "
            f"is needed; {accept}"
        )


def _begins(chain: Sequence[Snapshot], table: Iceberg) -> bool:
    """Whether snapshots, newest first, go back to before the first landing.

    That the oldest has no parent is not enough: PyIceberg's expiry takes the parent from the oldest that it keeps. The
    first one of a table that was replaced never had one, though it is not the table's first.
    """
    landings = [snapshot.landing for snapshot in chain if snapshot.landing is not None and snapshot.source is None]
    if landings or not chain:
        return not landings or landings[-1].before is None
    lineage, oldest = Lineage(table), chain[-1].id
    return lineage.parent(oldest) is None and lineage.begins_at(oldest)


def head_of(metadata: TableMetadata) -> Head:
    """Where a table stands, as its references say."""
    main, sweep = metadata.refs.get(MAIN_BRANCH), metadata.refs.get(SWEEP)
    return Head(main.snapshot_id if main else None, sweep.snapshot_id if sweep else None)
