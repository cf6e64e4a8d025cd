"""Rebuilding what the state knows of a table, from the table itself and the ledger.

The chain of landings is followed back from main: through snapshots as long as they are there, then through the ledger,
since every landing names the one before it. Only what is on that chain counts as landed: what was rolled back does not.
"""

import asyncio
from dataclasses import dataclass
from itertools import islice

from lakehead.errors import LakeheadError
from lakehead.lake.documents import ledger_folder
from lakehead.lake.landing import Pointer, Snapshot, SnapshotId
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.progress import state_landings
from lakehead.lake.table import IcebergTable, head_of
from lakehead.maintain.lineage import Lineage
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

    Missing ledger entries are written first: once the state is past a landing, nobody else records it. Raises
    `LandingUnknown` where the chain of landings cannot be followed; `said` decides only where main's history is cut off
    before its last landing is found.
    """
    iceberg = table.load()
    lineage, sequences = Lineage(iceberg), await ledger.sequences(table.uuid)
    head = head_of(iceberg.metadata).snapshot
    newest = await _newest(table, lineage, head, sequences, said)
    landings = await _followed(table, lineage, ledger, newest, sequences)
    missing = [snapshot for snapshot in landings if snapshot.id not in sequences]
    if not dry_run:
        for snapshot in missing:
            await ledger.record(table.uuid, snapshot)
        pointer = None if head is None else StatePointer(head, newest)
        told = [landing for snapshot in landings for landing in state_landings(snapshot)]
        state.landings.rebuild(table.uuid, pointer, told)
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
            return _decided(table, at, sequences, said)
        if (await table.told(found)).landing is not None:
            break
        at = lineage.parent(at)
    return at


def _decided(
    table: IcebergTable, gap: SnapshotId, sequences: dict[SnapshotId, int], said: Said | None
) -> SnapshotId | None:
    """The last landing where main's history is cut off before one was found."""
    if not sequences:
        return None  # A table that had a history before anything was landed in it.
    if said is not None and (said.last_landing is None or said.last_landing in sequences):
        return said.last_landing
    newest = max(sequences, key=lambda snapshot: sequences[snapshot])
    raise LandingUnknown(
        f"The history of table {table.name} is cut off at snapshot {gap}, which no metadata file tells of any more, "
        "before its last landing is found. Nothing was changed. The newest landing of the ledger is snapshot "
        f"{newest}: if the table holds its rows, run it again with --last-landing {newest}; otherwise name the landing "
        "that the table was rolled back to, or 'none'."
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
            snapshot = await table.told(found)
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
