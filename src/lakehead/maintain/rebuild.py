"""Rebuilds the state's records of a table from the table itself, the ledger and the dead letters.

The chain of landings is followed back from main: through snapshots as long as they exist, then through the ledger,
because every landing names the one before it. Only what is on that chain counts as landed; what was rolled back does
not.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from lakehead.errors import LakeheadError
from lakehead.lake.dead_letters import DeadLetters, open_or_dropped
from lakehead.lake.documents import from_summary, ledger_folder
from lakehead.lake.iceberg_table import IcebergTable, head_of, summary_of
from lakehead.lake.landing import Pointer, Snapshot, SnapshotId, Unit, chained
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.lineage import Lineage
from lakehead.lake.ports import Moved, SourceUnknown
from lakehead.lake.state_progress import state_landings
from lakehead.maintain.tags import put_right
from lakehead.state.model import StoredPointer
from lakehead.state.state import State
from lakehead.wire.errors import Unreadable

AT_ONCE = 32
"""Ledger objects that are read concurrently."""


class LandingUnknown(LakeheadError):
    """It cannot be determined what has landed in a table. Nothing was changed; an operator must decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The state's records of a table after a rebuild, or (in a dry run) what they would be."""

    table: str
    pointer: Pointer
    """The table's head and its last landing: the state is settled up to there."""

    landings: int = 0
    units: int = 0
    recorded: tuple[SnapshotId, ...] = ()
    """Landings that were missing in the ledger and were written to it."""

    dead_letters: int = 0
    """Units that stay given up, because their dead letters are open or were dropped."""

    left: tuple[SnapshotId, ...] = ()
    """Landings in the ledger that main does not have, oldest first: their units no longer count as landed."""


@dataclass(frozen=True, slots=True)
class Said:
    """An operator's statement which landing is main's last, for when nothing else shows it. None: there is none."""

    last_landing: SnapshotId | None


async def rebuild(
    table: IcebergTable, state: State, ledger: StoreLedger, *, said: Said | None = None, dry_run: bool = False
) -> Rebuilt:
    """Replace the state's records of a table by what the table, the ledger and the dead letters beside it say.

    A last landing that was not settled is written to the ledger first: once the state is past it, no fence records it.
    Raises `LandingUnknown` if the chain of landings cannot be followed, or if the ledger lacks a landing that was
    settled. `said` is used only if main's history is cut off before its last landing is found.
    """
    iceberg = table.load()
    lineage, sequences = Lineage(iceberg), await ledger.sequences(table.uuid)
    stands = head_of(iceberg.metadata)
    head = stands.snapshot
    settled = state.landings.pointer(table.uuid)
    newest = await _newest(table, lineage, head, sequences, said)
    _check_ledger(table, lineage, newest, settled.last_landing if settled else None, sequences)
    landings = await _followed(table, lineage, ledger, newest, sequences)
    letters = await open_or_dropped(DeadLetters(ledger.store), table.uuid)
    missing = [snapshot for snapshot in landings if snapshot.id not in sequences]
    if not dry_run:
        for snapshot in missing:
            await ledger.record(table.uuid, snapshot)
        pointer = None if head is None else StoredPointer(head, newest)
        records = [record for snapshot in landings for record in state_landings(snapshot)]
        state.landings.rebuild(table.uuid, pointer, records, letters)
        with suppress(Moved):  # by a landing, which has moved the tag itself; or the next landing will
            put_right(table, stands, newest)
    on_main = {snapshot.id for snapshot in landings}
    units = {
        remainder.unit
        for snapshot in landings
        if snapshot.landing
        for remainder in snapshot.landing.remainders
        if remainder.part is None
    }
    return Rebuilt(
        table=table.name,
        pointer=Pointer(head, newest),
        landings=len(landings),
        units=len(units),
        dead_letters=sum(
            (letter.replayed_at is None or letter.dropped_at is not None)
            and Unit(letter.unit, letter.generation) not in units
            for letter in letters
        ),
        recorded=tuple(snapshot.id for snapshot in missing),
        left=tuple(sorted(sequences.keys() - on_main, key=lambda snapshot: (sequences[snapshot], snapshot))),
    )


async def _newest(
    table: IcebergTable, lineage: Lineage, head: SnapshotId | None, sequences: dict[SnapshotId, int], said: Said | None
) -> SnapshotId | None:
    """Main's last landing."""
    at = head
    while at is not None and at not in sequences:
        found = lineage.find(at)
        if found is None:
            return _decided(table, lineage, at, sequences, said)
        try:
            if (await table.read_snapshot(found, lineage)).landing is not None:
                break
        except SourceUnknown:
            if said is None:
                raise
            return _decided(table, lineage, at, sequences, said)
        parent = lineage.parent(at)
        if parent is None and not lineage.begins_at(at):
            return _decided(table, lineage, at, sequences, said)
        at = parent
    return at


def _decided(
    table: IcebergTable, lineage: Lineage, gap: SnapshotId, sequences: dict[SnapshotId, int], said: Said | None
) -> SnapshotId | None:
    """The last landing, if main's history is cut off before one is found. Raises `LandingUnknown` if undecided."""
    known = {snapshot.id: snapshot.sequence for snapshot in _landings_in(table, lineage.every())} | sequences
    if not known:
        return None  # The table had a history before anything was landed in it.
    if said is not None and (said.last_landing is None or said.last_landing in known):
        return said.last_landing
    newest = max(known, key=lambda snapshot: known[snapshot])
    raise LandingUnknown(
        f"The history of table {table.name} is cut off at snapshot {gap}: no metadata file tells any more what came "
        "before, and its last landing is not in what is left. Nothing was changed. The newest landing that is known is "
        f"snapshot {newest}: if the table holds its rows, run it again with --last-landing {newest}; otherwise name "
        "the landing that the table was rolled back to, or 'none'."
    )


def _landings_in(table: IcebergTable, snapshots: Iterable[IcebergSnapshot]) -> list[Snapshot]:
    """The landings among snapshots, without the units of those whose list is stored elsewhere."""
    found = []
    for one in snapshots:
        said = from_summary(summary_of(one), f"snapshot {one.snapshot_id} of {table.name}")
        if said is not None:
            found.append(Snapshot(one.snapshot_id, one.parent_snapshot_id, one.sequence_number or 0, said[0]))
    return found


def _check_ledger(
    table: IcebergTable,
    lineage: Lineage,
    newest: SnapshotId | None,
    settled: SnapshotId | None,
    sequences: dict[SnapshotId, int],
) -> None:
    """Check that the ledger has every landing that is known to be settled, because settling writes it there first.

    Settled are the state's last landing, and each landing that another one names as the one before it, because that
    one was fenced first. Only main's last landing may be missing, if its snapshot still exists. If main has none, older
    metadata files are read too: with an empty ledger it would look as if nothing had ever landed.
    """
    known = _landings_in(table, lineage.every() if newest is None else lineage.present)
    needed = {one.landing.before: f"landing {one.id} names as the one before it" for one in known if one.landing}
    if settled is not None:
        needed[settled] = "the state has as the last one settled"
    may_be_missing = {None, *(one.id for one in known if one.id == newest)}
    lacking = [landing for landing in needed if landing not in sequences and landing not in may_be_missing]
    if lacking:
        has = f"{len(sequences)} landings" if sequences else "no landing"
        raise LandingUnknown(
            f"The ledger has {has} of the table {table.name} and lacks landing {lacking[0]}, which "
            f"{needed[lacking[0]]}. Nothing was changed. Check that --ledger is the one that the landings use; if it "
            f"is, bring its objects below {ledger_folder(table.uuid)}/ back from a backup."
        )


async def _followed(
    table: IcebergTable,
    lineage: Lineage,
    ledger: StoreLedger,
    newest: SnapshotId | None,
    sequences: dict[SnapshotId, int],
) -> list[Snapshot]:
    """Every landing from main's last back to the first, oldest first."""
    kept = await _entries(table, ledger, sequences)
    chain: list[Snapshot] = []
    at = newest
    while at is not None:
        snapshot = kept.get(at)
        if not isinstance(snapshot, Snapshot) and (found := lineage.find(at)) is not None:
            snapshot = await table.read_snapshot(found, lineage)
            if snapshot.source is not None:
                before = await _newest(table, lineage, lineage.parent(at), sequences, None)
                (snapshot,) = chained([snapshot], before)
        if isinstance(snapshot, BaseException):
            raise snapshot
        if snapshot is None or snapshot.landing is None:
            raise LandingUnknown(
                f"The landing {at} of table {table.name} is neither in a snapshot nor in the ledger, so it is not "
                "known which units it brought, nor what landed before it. Nothing was changed. Bring the ledger's "
                f"objects below {ledger_folder(table.uuid)}/ back from a backup."
            )
        if chain and snapshot.sequence >= chain[-1].sequence:
            raise Unreadable(f"Landing {chain[-1].id} of table {table.name} names {at} before it, which is newer.")
        chain.append(snapshot)
        at = snapshot.landing.before
    return chain[::-1]


async def _entries(
    table: IcebergTable, ledger: StoreLedger, sequences: dict[SnapshotId, int]
) -> dict[SnapshotId, Snapshot | BaseException | None]:
    """All entries of the ledger. An unreadable one is returned as its error, and raised only if it is needed."""
    entries: dict[SnapshotId, Snapshot | BaseException | None] = {}
    places = iter(sequences.items())
    while some := list(islice(places, AT_ONCE)):
        read = (ledger.read(table.uuid, snapshot, sequence) for snapshot, sequence in some)
        found = await asyncio.gather(*read, return_exceptions=True)
        entries.update(zip((snapshot for snapshot, _ in some), found, strict=True))
    return entries
