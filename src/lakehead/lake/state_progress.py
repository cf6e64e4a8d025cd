"""`Progress` of the landing protocol, stored in the state database."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby

from lakehead.errors import LakeheadError
from lakehead.lake.landing import BEGINNING, Pointer, Snapshot, SnapshotId, Unit, UnitRemainder, remainders_of
from lakehead.lake.leased import LEASE, WorkProgress, no_sign, renewed
from lakehead.lake.ports import UnitsGone
from lakehead.state.model import Numbered, ObjectProgress, PointerMoved, Spans, StoredLanding, StoredPointer, Watermark
from lakehead.state.owners import is_gone
from lakehead.state.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class StateProgress:
    """The progress of tables, as read and written by one owner. An owner is one start of one process."""

    state: State
    owner: str
    lease: timedelta = LEASE
    work: WorkProgress = no_sign
    """How far the work under the leases is: they are renewed only while it makes progress."""

    def take(self, table: str, units: Iterable[Unit]) -> list[Unit]:
        """Open the units and take those that have not landed and that no other owner holds, in the order given."""
        ours: set[Unit] = set()
        wanted = list(units)
        for generation, theirs in _by_generation(wanted):
            names = [unit.id for unit in theirs]
            self.state.shards.open(table, names, token=self.owner, generation=generation)
            until = self.state.now() + self.lease
            got = self.state.shards.acquire(table, names, owner=self.owner, lease_until=until, generation=generation)
            if len(got) < len(set(names)) and self._release_of_the_dead(table, names, generation):
                got |= self.state.shards.acquire(
                    table, names, owner=self.owner, lease_until=until, generation=generation
                )
            ours |= {Unit(name, generation) for name in got}
        return [unit for unit in wanted if unit in ours]

    def _release_of_the_dead(self, table: str, names: Sequence[str], generation: int) -> int:
        """Release the units of processes of this machine that are known to have ended. Returns how many."""
        shards = self.state.shards
        held = {shard.owner for shard in shards.read(table, names, generation=generation) if shard.owner}
        return sum(shards.release(table, names, owner=owner, generation=generation) for owner in held if is_gone(owner))

    @contextmanager
    def holding(self, table: str, units: Sequence[Unit]) -> Iterator[None]:
        """Renew the leases on units while the work on them lasts, then release those that have not landed."""
        try:
            with renewed(lambda: self._extend(table, units), self.lease, progress=self.work):
                yield
        finally:
            for generation, theirs in _by_generation(units):
                names = [unit.id for unit in theirs]
                with suppress(LakeheadError):  # then other owners wait until the lease expires
                    self.state.shards.release(table, names, owner=self.owner, generation=generation)

    def _extend(self, table: str, units: Sequence[Unit]) -> None:
        for generation, theirs in _by_generation(units):
            names, until = [unit.id for unit in theirs], self.state.now() + self.lease
            self.state.shards.extend(table, names, owner=self.owner, lease_until=until, generation=generation)

    async def pointer(self, table: str) -> Pointer:
        """The last settled snapshot of the table."""
        return _pointer(self.state.landings.pointer(table))

    async def settle(self, table: str, *, seen: Pointer, to: Pointer, snapshots: Sequence[Snapshot]) -> bool:
        """Record the landings among the snapshots and move the pointer to `to`. False if it is no longer `seen`."""
        landings = [landing for snapshot in snapshots for landing in state_landings(snapshot)]
        moved = _stored(to)
        if moved is None:
            return False  # a table that had snapshots and has none now: reading its history raises the error for that
        return self.state.landings.settle(table, _stored(seen), moved, landings)

    async def watermark(self, table: str) -> Watermark | None:
        """The table's watermark after the settled landings."""
        return self.state.progress.watermark(table)

    async def plan(self, table: str, *, at: SnapshotId | None, units: Sequence[Unit]) -> Sequence[UnitRemainder] | None:
        """What is still to be landed of these units, read in a transaction that sees the pointer at this snapshot."""
        fenced_at = self.state.now()
        taken: set[Unit] = set()
        landed: dict[str, Spans] = {}
        begun: dict[Unit, ObjectProgress] = {}
        for generation, theirs in _by_generation(units):
            names = [unit.id for unit in theirs]
            until = self.state.now() + self.lease
            self.state.shards.extend(table, names, owner=self.owner, lease_until=until, generation=generation)
            planned = self.state.landings.plan(
                table,
                at,
                names,
                owner=self.owner,
                fenced_at=fenced_at,
                generation=generation,
                streams={unit.numbers.stream for unit in theirs if unit.numbers},
            )
            if isinstance(planned, PointerMoved):
                return None
            if planned.gone:
                raise UnitsGone(
                    f"The state has no row for {len(planned.gone)} units of table {table}, such as "
                    f"{planned.gone[0]!r}: they may have landed and been pruned since. Look for their rows before "
                    "you open them again."
                )
            taken |= {Unit(name, generation) for name in planned.taken}
            landed |= planned.ranges
            begun |= {Unit(name, generation): reached for name, reached in planned.begun.items()}
        remainders = remainders_of((unit for unit in units if unit in taken), landed)
        return [replace(each, landed=begun.get(each.unit)) for each in remainders] if begun else remainders


def state_landings(snapshot: Snapshot) -> list[StoredLanding]:
    """The state's records of a snapshot's landing: one for each generation of its units."""
    landing = snapshot.landing
    if landing is None:
        return []
    return [
        StoredLanding(
            snapshot=snapshot.id,
            units=tuple(each.unit.id for each in remainders if each.part is None),
            begun={
                each.unit.id: ObjectProgress(each.part.end, each.part.rows, each.part.etag)
                for each in remainders
                if each.part is not None
            },
            generation=generation,
            watermark=landing.new_watermark.watermark,
            slice=landing.new_watermark.slice,
            load_date=landing.new_watermark.load_date,
            read_by=landing.new_watermark.read_by,
            numbered=tuple(
                Numbered(
                    numbers.stream, ((numbers.start, numbers.end),) if remainder.spans is None else remainder.spans
                )
                for remainder in remainders
                if (numbers := remainder.unit.numbers)
            ),
        )
        for generation, remainders in _of_generations(landing.remainders)
    ]


def _by_generation(units: Iterable[Unit]) -> Iterator[tuple[int, list[Unit]]]:
    ordered = sorted(units, key=lambda unit: unit.generation)
    for generation, theirs in groupby(ordered, key=lambda unit: unit.generation):
        yield generation, list(theirs)


def _of_generations(remainders: Iterable[UnitRemainder]) -> Iterator[tuple[int, list[UnitRemainder]]]:
    ordered = sorted(remainders, key=lambda each: each.unit.generation)
    for generation, theirs in groupby(ordered, key=lambda each: each.unit.generation):
        yield generation, list(theirs)


def _pointer(stored: StoredPointer | None) -> Pointer:
    return BEGINNING if stored is None else Pointer(stored.snapshot, stored.last_landing)


def _stored(pointer: Pointer) -> StoredPointer | None:
    return None if pointer.snapshot is None else StoredPointer(pointer.snapshot, pointer.last_landing)
