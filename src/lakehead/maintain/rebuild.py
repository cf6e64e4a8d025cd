"""Rebuilding what the state knows of a table, from the table itself and the ledger.

The chain of landings is followed back from main: through snapshots as long as they are there, then through the ledger,
since every landing names the one before it. Only what is on that chain counts as landed: what was rolled back does not.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from lakehead.errors import LakeheadError
from lakehead.lake.documents import from_summary, ledger_folder
from lakehead.lake.landing import Pointer, Snapshot, SnapshotId, chained
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.lineage import Lineage
from lakehead.lake.ports import Moved, SourceUnknown
from lakehead.lake.progress import state_landings
from lakehead.lake.table import IcebergTable, head_of
from lakehead.maintain.tags import put_right
from lakehead.state.model import Pointer as StatePointer
from lakehead.state.state import State
from lakehead.wire.errors import Unreadable

AT_ONCE = 32
"""Ledger objects that are read side by side."""


class LandingUnknown(LakeheadError):
    """It cannot be found out what has landed in a table. Nothing was changed; an operator must decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What the state knows of a table after a rebuild, or would know."""

    table: str
    pointer: Pointer
    """Where the table stands, and its last landing: the state is settled up to there."""

    landings: int = 0
    units: int = 0
    recorded: tuple[SnapshotId, ...] = ()
    """Landings that were missing in the ledger and were written to it."""

    left: tuple[SnapshotId, ...] = ()
    """Landings of the ledger that main does not hold, oldest first: their units do not count as landed any more."""


@dataclass(frozen=True, slots=True)
class Said:
    """An operator's word on which landing is main's last, for where nothing else tells. None: there is none."""

    last_landing: SnapshotId | None


async def rebuild(
    table: IcebergTable, state: State, ledger: StoreLedger, *, said: Said | None = None, dry_run: bool = False
) -> Rebuilt:
    """Replace what the state knows of a table by what the table and the ledger say.

    A last landing that nobody settled is written to the ledger first: once the state is past it, nobody else records
    it. Raises `LandingUnknown` where the chain of landings cannot be followed, or where the ledger lacks a landing that
    was settled; `said` decides only where main's history is cut off before its last landing is found.
    """
    iceberg = table.load()
    lineage, sequences = Lineage(iceberg), await ledger.sequences(table.uuid)
    stands = head_of(iceberg.metadata)
    head = stands.snapshot
    settled = state.landings.pointer(table.uuid)
    newest = await _newest(table, lineage, head, sequences, said)
    _check_ledger(table, lineage, newest, settled.last_landing if settled else None, sequences)
    landings = await _followed(table, lineage, ledger, newest, sequences)
    missing = [snapshot for snapshot in landings if snapshot.id not in sequences]
    if not dry_run:
        for snapshot in missing:
            await ledger.record(table.uuid, snapshot)
        pointer = None if head is None else StatePointer(head, newest)
        told = [landing for snapshot in landings for landing in state_landings(snapshot)]
        state.landings.rebuild(table.uuid, pointer, told)
        with suppress(Moved):  # by a landing, which has put its tag right; or the next one will
            put_right(table, stands, newest)
    on_main = {snapshot.id for snapshot in landings}
    return Rebuilt(
        table=table.name,
        pointer=Pointer(head, newest),
        landings=len(landings),
        units=len({share.unit for snapshot in landings if snapshot.landing for share in snapshot.landing.shares}),
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
            if (await table.told(found, lineage)).landing is not None:
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
    """The last landing where main's history is cut off before one was found."""
    known = {snapshot.id: snapshot.sequence for snapshot in _landings_in(table, lineage.every())} | sequences
    if not known:
        return None  # A table that had a history before anything was landed in it.
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
    """The landings among snapshots, without the units whose list is kept elsewhere."""
    found = []
    for one in snapshots:
        summary = one.summary.additional_properties if one.summary else {}
        said = from_summary(summary, f"snapshot {one.snapshot_id} of {table.name}")
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
    """That the ledger has every landing that is known to have been settled: it goes there before anything else.

    Settled is what the state has as its last landing, and what another landing names as the one before it: that one
    was fenced first. Only main's last landing may be missing where its snapshot is still there. Where main has none,
    older metadata files are asked too: an empty ledger would make it look as if nothing had ever landed.
    """
    told = _landings_in(table, lineage.every() if newest is None else lineage.present)
    needed = {one.landing.before: f"landing {one.id} names as the one before it" for one in told if one.landing}
    if settled is not None:
        needed[settled] = "the state has as the last one settled"
    may_be_missing = {None, *(one.id for one in told if one.id == newest)}
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
            snapshot = await table.told(found, lineage)
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
    """All that the ledger has. What cannot be read is an error only for whoever needs it."""
    entries: dict[SnapshotId, Snapshot | BaseException | None] = {}
    places = iter(sequences.items())
    while some := list(islice(places, AT_ONCE)):
        read = (ledger.read(table.uuid, snapshot, sequence) for snapshot, sequence in some)
        found = await asyncio.gather(*read, return_exceptions=True)
        entries.update(zip((snapshot for snapshot, _ in some), found, strict=True))
    return entries
