"""A model of what a landing meets: a table, a state that can be lost, a ledger, sweeps, rollback and expiry.

The protocol is the real one, `lakehead.lake.protocol`. Everything around it is a few dictionaries behind calls that
take their time, and that may lose their answers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from math import inf

from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.lake.landing import (
    BEGINNING,
    Fence,
    Head,
    Landing,
    NewWatermark,
    Numbers,
    Pointer,
    Snapshot,
    SnapshotId,
    Unit,
    UnitRemainder,
    remainders_of,
)
from lakehead.lake.ports import HistoryBroken, Moved, Staged
from lakehead.state.model import ObjectProgress, Watermark
from tests.support.simulation import Violation, World

TABLE = "table"
LEASE = 1.0
FIRST_FILE = 20
EVEN = 0.5

Files = frozenset[int]


@dataclass
class Lake:
    """The table's metadata and files, and the ledger: what survives everything."""

    world: World
    snapshots: dict[SnapshotId, Snapshot] = field(default_factory=dict)
    added: dict[SnapshotId, Files] = field(default_factory=dict)
    main: SnapshotId | None = None
    sweep: SnapshotId | None = None
    tag: SnapshotId | None = None
    """On the newest landing: nobody's expiry takes that one."""
    older: dict[SnapshotId, Snapshot] = field(default_factory=dict)
    """Expired snapshots that older metadata files still tell of."""
    files: dict[int, Landing] = field(default_factory=dict)
    staged_at: dict[int, float] = field(default_factory=dict)
    ledger: dict[SnapshotId, Snapshot] = field(default_factory=dict)
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    @property
    def head(self) -> Head:
        return Head(self.main, self.sweep)

    def commit(self, at: Head, files: Files, landing: Landing) -> None:
        """Iceberg's compare-and-set, on both references."""
        self._require(at)
        number = self._add(at.snapshot, files, landing)
        self.main = self.tag = number
        self.world.note(f"snapshot {number}: {_units(landing)}")
        self.check()

    def commit_sweep(self, at: Head) -> None:
        """Move the sweep's reference to a snapshot that holds nothing. Main stays, unless it is the table's first."""
        self._require(at)
        self.sweep = self._add(None, frozenset(), None)
        if self.main is None:
            self.main = self.sweep
        self.world.note(f"snapshot {self.sweep}: of a sweep")

    def commit_of_others(self) -> None:
        """Somebody else's snapshot on main, such as a compaction: it changes no row."""
        self.main = self._add(self.main, frozenset(), None)
        self.world.note(f"snapshot {self.main}: somebody else's")

    def _require(self, at: Head) -> None:
        if self.head != at:
            raise Moved(f"the table is at {self.head}, not at {at}")

    def _add(self, parent: SnapshotId | None, files: Files, landing: Landing | None) -> SnapshotId:
        number = next(self.numbers)
        self.snapshots[number] = Snapshot(number, parent, number, landing)
        self.added[number] = files
        return number

    def ancestors(self, of: SnapshotId | None) -> Iterable[SnapshotId]:
        """From a snapshot back, as far as the history goes."""
        while of is not None and of in self.snapshots:
            yield of
            of = self.snapshots[of].parent

    def live_files(self) -> set[int]:
        """What a reader of main reads. Expiry drops snapshots, never the rows of main."""
        return {file for snapshot in self.published for file in self.added[snapshot]}

    @property
    def published(self) -> list[SnapshotId]:
        """Main's ancestors, those that have expired included: parents are remembered by the model."""
        chain, at = [], self.main
        while at is not None:
            chain.append(at)
            at = self.parents[at]
        return chain

    @property
    def parents(self) -> dict[SnapshotId, SnapshotId | None]:
        return {**self.expired, **{number: snapshot.parent for number, snapshot in self.snapshots.items()}}

    expired: dict[SnapshotId, SnapshotId | None] = field(default_factory=dict)

    def expire(self, keep: Iterable[SnapshotId]) -> None:
        """Forget snapshots that no reference is on; their rows stay where main still has them."""
        kept = {*keep, self.main, self.sweep, self.tag}
        for number in [number for number in self.snapshots if number not in kept]:
            self.older[number] = self.snapshots.pop(number)
            self.expired[number] = self.older[number].parent

    def records(self) -> Counter[int]:
        """How often each record is in the table."""
        return Counter(record for file in self.live_files() for record in _records(self.files[file]))

    def owners(self) -> dict[int, str]:
        """The unit that brought each record that is in the table."""
        landed = [each for file in self.live_files() for each in self.files[file].remainders]
        return {record: each.unit.id for each in landed for record in _own(each)}

    def check(self) -> None:
        """What must hold after every change: no record twice, no file of main gone."""
        if gone := self.live_files() - self.files.keys():
            raise Violation(f"files {sorted(gone)} of main are gone")
        if twice := sorted(record for record, times in self.records().items() if times > 1):
            raise Violation(f"records {twice} are in the table twice")


@dataclass
class Row:
    """What the state knows of a unit."""

    owner: str | None = None
    lease_until: float = 0.0
    landed: SnapshotId | None = None
    acknowledged: bool = False
    acknowledged_at: float = 0.0
    opened_at: float = 0.0
    tries: int = 0
    given_up: bool = False
    part: ObjectProgress | None = None
    """How far it has landed, if it lands in parts."""
    replayed: bool = False
    dropped: bool = False
    """Its dead letter is to be tried again, or never."""


@dataclass
class Database:
    """The state: can be lost, or brought back as it was."""

    pointer: Pointer = BEGINNING
    rows: dict[Unit, Row] = field(default_factory=dict)
    ranges: set[int] = field(default_factory=set)
    """Numbered records that have landed: kept for good, unlike rows."""
    pauses: dict[str, float] = field(default_factory=dict)
    """Until when rows are kept for a backfill."""

    def remember(self, snapshot: Snapshot) -> None:
        """Record a landing."""
        for remainder in snapshot.landing.remainders if snapshot.landing else ():
            row = self.rows.setdefault(remainder.unit, Row())
            if (part := remainder.part) is not None:
                row.part, row.tries = ObjectProgress(part.end, part.rows, part.etag), 0
                continue
            row.landed = snapshot.id
            if is_numbered(remainder.unit):
                self.ranges.update(_own(remainder))

    def prune(self) -> None:
        """Forget rows that landed and were acknowledged; the window is over, so they do not come again."""
        self.rows = {unit: row for unit, row in self.rows.items() if row.landed is None or not row.acknowledged}


def span_of(unit: Unit) -> range:
    """The records of a unit, which its id names: `3-7` holds 3 to 6."""
    return span_of_id(unit.id)


@cache
def span_of_id(unit: str) -> range:
    """The records of a unit, by its id."""
    start, end = unit.split("-")
    return range(int(start), int(end))


def is_numbered(unit: Unit) -> bool:
    """Whether a unit's records have numbers that other units may share. The others are files, known by name alone."""
    return span_of(unit).start < FIRST_FILE


def _records(landing: Landing) -> list[int]:
    return [record for remainder in landing.remainders for record in _own(remainder)]


def _own(remainder: UnitRemainder) -> list[int]:
    """The records that a landing holds of a unit."""
    start, end = _whole(remainder.unit)
    if (part := remainder.part) is not None:
        return list(range(start + part.start, start + part.end))
    rest = start + (remainder.landed.bytes if remainder.landed else 0)
    spans = [(rest, end)] if remainder.spans is None else remainder.spans
    return [record for start, end in spans for record in range(start, end)]


def _whole(unit: Unit) -> tuple[int, int]:
    return span_of(unit).start, span_of(unit).stop


def _spans(records: Iterable[int]) -> list[tuple[int, int]]:
    """The records as few spans, each from its first to before its last."""
    spans: list[tuple[int, int]] = []
    for record in sorted(records):
        if spans and spans[-1][1] == record:
            spans[-1] = spans[-1][0], record + 1
        else:
            spans.append((record, record + 1))
    return spans


def _units(landing: Landing | None) -> str:
    return (
        " ".join(f"{remainder.unit.id}:{remainder.spans}" for remainder in landing.remainders) if landing else "empty"
    )


@dataclass
class Wire:
    """Calls take their time each way. A commit's answer may be lost, before or after it was applied, or land late."""

    world: World
    lost: float = 0.0
    silent_until: float = 0.0
    outages: int = 0
    longest: float = inf
    """No call takes longer, in seconds."""
    overtaking: bool = False
    """Whether a commit without an answer may be applied right before the next one, however much later that is."""
    in_flight: list[Callable[[], None]] = field(default_factory=list)
    """Such commits."""

    async def delay(self) -> None:
        """Let a call take its time. Raises `Unavailable` if nobody answers any more: nothing was changed."""
        before = self.outages
        await self.world.clock.sleep(min(self.longest, 0.01 * self.world.random.paretovariate(1.5)))
        if before != self.outages or self.world.clock.monotonic() < self.silent_until:
            raise Unavailable("nobody answers")

    async def answer(self) -> None:
        """Let the answer to a change take its time. Raises `OutcomeUnknown` if it does not arrive."""
        try:
            await self.delay()
        except Unavailable as error:
            raise OutcomeUnknown("the answer is lost") from error

    def apply_in_flight(self) -> None:
        """Apply commits whose answers were lost, each with even chances; the others are still under way."""
        waiting, self.in_flight = self.in_flight, []
        for commit in waiting:
            if self.world.random.random() < EVEN:
                self.in_flight.append(commit)
                continue
            with suppress(Moved):
                commit()

    def be_silent(self, seconds: float) -> None:
        """Answer nobody for a while, and lose what is under way."""
        self.outages += 1
        self.silent_until = self.world.clock.monotonic() + seconds


@dataclass
class ModelTable:
    """`Table` over the model."""

    lake: Lake
    wire: Wire
    uuid: str = TABLE

    async def head(self) -> Head:
        await self.wire.delay()
        head = self.lake.head
        await self.wire.delay()
        return head

    async def history(self, after: SnapshotId | None, upto: SnapshotId | None) -> Sequence[Snapshot]:
        await self.wire.delay()
        told = self.lake.snapshots if after is None else {**self.lake.older, **self.lake.snapshots}
        chain: list[Snapshot] = []
        at = upto
        while at is not None and at != after and at in told:
            chain.append(told[at])
            at = told[at].parent
        if at != after:
            raise HistoryBroken(f"{upto} does not lead back to {after}")
        return chain[::-1]

    async def publish(self, staged: Staged[Files], at: Head) -> Head:
        await self.wire.delay()
        self.wire.apply_in_flight()
        drawn = self.wire.world.random.random()
        if drawn < self.wire.lost:
            fate = self.wire.world.random.choice(["applied", "not applied", "late"])
            if fate == "applied":
                self.lake.commit(at, staged.rows, staged.landing)
            elif fate == "late" and self.wire.overtaking:
                self.wire.in_flight.append(lambda: self.lake.commit(at, staged.rows, staged.landing))
            elif fate == "late":
                self.wire.world.process("late commit").spawn(self._later(staged, at))
            raise OutcomeUnknown(f"commit at {at}: {fate}")
        self.lake.commit(at, staged.rows, staged.landing)
        head = self.lake.head
        await self.wire.answer()
        return head

    async def _later(self, staged: Staged[Files], at: Head) -> None:
        await self.wire.world.clock.sleep(self.wire.world.random.uniform(0, 1))
        try:
            self.lake.commit(at, staged.rows, staged.landing)
        except Moved:
            return


@dataclass
class ModelProgress:
    """`Progress` over the model: what one worker does to the database."""

    database: list[Database]
    wire: Wire
    owner: str
    lease: float = LEASE

    @property
    def now(self) -> Database:
        """The database as it is now: another one after it was lost or restored."""
        return self.database[0]

    async def pointer(self, _table: str) -> Pointer:
        await self.wire.delay()
        pointer = self.now.pointer
        await self.wire.delay()
        return pointer

    async def settle(self, _table: str, *, seen: Pointer, to: Pointer, snapshots: Sequence[Snapshot]) -> bool:
        await self.wire.delay()
        if self.now.pointer != seen:
            return False
        self.record(to, snapshots)
        await self.wire.answer()
        return True

    def record(self, to: Pointer, snapshots: Sequence[Snapshot]) -> None:
        for snapshot in snapshots:
            self.now.remember(snapshot)
        self.now.pointer = to

    async def watermark(self, _table: str) -> Watermark | None:
        raise AssertionError("units of a queue come in any order")

    async def plan(
        self, _table: str, *, at: SnapshotId | None, units: Sequence[Unit]
    ) -> Sequence[UnitRemainder] | None:
        await self.wire.delay()
        if self.now.pointer.snapshot != at:
            return None
        ours = [unit for unit in units if self.holds(unit)]
        for unit in ours:
            self.now.rows[unit].lease_until = self.wire.world.clock.monotonic() + self.lease
        remainders = self.own_records([unit for unit in ours if self.now.rows[unit].landed is None])
        await self.wire.delay()
        return remainders

    def holds(self, unit: Unit) -> bool:
        row = self.now.rows.get(unit)
        return row is not None and row.owner == self.owner and not row.given_up

    def own_records(self, units: Sequence[Unit]) -> list[UnitRemainder]:
        """Give each unit the records that no landing has, nor a unit before it in this one."""
        numbered = [replace(unit, numbers=Numbers("", *_whole(unit))) if is_numbered(unit) else unit for unit in units]
        remainders = remainders_of(numbered, {"": _spans(self.now.ranges)} if self.now.ranges else {})
        return [replace(each, landed=self.now.rows[each.unit].part) for each in remainders]

    async def acknowledge(self, units: Sequence[Unit], queue: set[Unit]) -> None:
        """Take from the queue what has landed."""
        await self.wire.delay()
        for unit in units:
            row = self.now.rows.get(unit)
            if row is not None and row.landed is not None:
                row.acknowledged = True
                queue.discard(unit)

    async def acquire(self, units: Sequence[Unit], queue: set[Unit]) -> list[Unit]:
        """Open the units and take those that nobody holds and that have not landed.

        Only while their messages can still be extended: a message that was acknowledged meanwhile opens nothing.
        """
        await self.wire.delay()
        time, ours = self.wire.world.clock.monotonic(), []
        for unit in sorted(queue.intersection(units)):
            row = self.now.rows.setdefault(unit, Row())
            if row.landed is None and (row.owner in (None, self.owner) or row.lease_until < time):
                row.owner, row.lease_until = self.owner, time + LEASE
                ours.append(unit)
        return ours


@dataclass
class ModelLedger:
    """`Ledger` over the model."""

    lake: Lake
    wire: Wire

    async def record(self, _table: str, snapshot: Snapshot) -> None:
        await self.wire.delay()
        self.lake.ledger.setdefault(snapshot.id, snapshot)


@dataclass
class ModelStager:
    """`Stager` over the model: one file for each landing. It leaves out what cannot be read."""

    lake: Lake
    wire: Wire
    unreadable: dict[str, int] = field(default_factory=dict)
    """How often a unit, by its id, cannot be read yet."""

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[Files]:
        await self.wire.delay()
        landing = Landing(token, tuple(filter(self._is_readable, remainders)), new_watermark=new_watermark)
        number = next(self.lake.numbers)
        self.lake.files[number] = landing
        self.lake.staged_at[number] = self.wire.world.clock.monotonic()
        await self.wire.delay()
        return Staged(frozenset([number]), landing, fence.head)

    def _is_readable(self, remainder: UnitRemainder) -> bool:
        left = self.unreadable.get(remainder.unit.id, 0)
        self.unreadable[remainder.unit.id] = left - 1
        return left <= 0

    def is_publishable_at(self, staged: Staged[Files], at: Head) -> bool:
        return staged.at.sweep == at.sweep

    async def is_still_stored(self, staged: Staged[Files]) -> bool:
        await self.wire.delay()
        there = staged.rows <= self.lake.files.keys()
        await self.wire.delay()
        return there

    async def discard(self, staged: Staged[Files]) -> None:
        pass


async def sweep(lake: Lake, wire: Wire, *, fence_first: bool = True) -> None:
    """Remove files that nobody published: list them, move the sweep's reference, and only then delete."""
    listed = lake.files.keys() - lake.live_files()
    await wire.delay()
    if fence_first:
        try:
            lake.commit_sweep(lake.head)
        except Moved:
            return
        await wire.delay()
    for file in listed - lake.live_files():
        await wire.delay()
        wire.world.note(f"file {file} is swept")
        del lake.files[file]
        lake.check()


def clean_up(lake: Lake, *, older_than: float) -> None:
    """Somebody else removes files that no snapshot has, by their age alone: nobody is fenced off."""
    before = lake.world.clock.monotonic() - older_than
    for file in lake.files.keys() - lake.live_files():
        if lake.staged_at[file] < before:
            lake.world.note(f"file {file} is removed by somebody else")
            del lake.files[file]
    lake.check()


def expire_ours(lake: Lake) -> None:
    """Our own expiry keeps the last landing and all after it."""
    chain = list(lake.ancestors(lake.main))
    landings = [number for number in chain if lake.snapshots[number].landing is not None]
    if landings:
        lake.tag = landings[0]
        lake.expire(chain[: chain.index(landings[0]) + 1])


async def rebuild(
    lake: Lake,
    database: list[Database],
    wire: Wire,
    *,
    ledger: dict[SnapshotId, Snapshot] | None = None,
    record: bool = True,
    check: bool = True,
) -> None:
    """`state rebuild`: follow the chain of landings back from main, through snapshots and then through the ledger.

    It knows what metadata, its log, the state and the ledger tell, no more. Where they do not tell what had landed, it
    refuses. Each read and each write takes its time: others go on meanwhile, and it may die between any two.
    """
    own = lake.ledger if ledger is None else ledger
    await wire.delay()
    main, present, told = lake.main, dict(lake.snapshots), {**lake.older, **lake.snapshots}
    await wire.delay()
    known, settled = dict(own), database[0].pointer.last_landing
    newest = main
    while newest is not None and newest not in known:
        if newest not in told:
            if known or (check and any(snapshot.landing for snapshot in told.values())):
                raise HistoryBroken(f"nobody knows whether {newest} was a landing")
            newest = None
        elif told[newest].landing is not None:
            break
        else:
            newest = told[newest].parent
    if check:
        asked = told if newest is None else present
        needed = {settled, *(one.landing.before for one in asked.values() if one.landing)}
        if lacking := needed - known.keys() - {None} - ({newest} & present.keys()):
            raise HistoryBroken(f"the ledger lacks {sorted(number for number in lacking if number)}")
    chain: list[Snapshot] = []
    at = newest
    while at is not None:
        one = known.get(at) or told.get(at)
        if one is None or one.landing is None:
            raise HistoryBroken(f"landing {at} is neither in a snapshot nor in the ledger")
        chain.append(one)
        at = one.landing.before
    for snapshot in chain:
        # Like every settling, it goes to the ledger first: once the pointer is past a landing, nobody else records it.
        if record and snapshot.id not in own:
            await wire.delay()
            own[snapshot.id] = snapshot
    await wire.delay()
    fresh = Database(rows={unit: replace(row, landed=None) for unit, row in database[0].rows.items()})
    for snapshot in reversed(chain):
        fresh.remember(snapshot)
    fresh.pointer = Pointer(main, newest)
    database[0] = fresh
    wire.world.note(f"the state is rebuilt up to {main}, its last landing is {newest}")
    await wire.delay()
    if lake.main == main:
        lake.tag = newest if newest in lake.snapshots else None


def replace_table(lake: Lake) -> None:
    """Somebody makes the table anew under its name: same uuid, another history, no rows."""
    number = next(lake.numbers)
    lake.snapshots[number] = Snapshot(number, None, number)
    lake.added[number] = frozenset()
    lake.main = number


def backup(database: list[Database]) -> Database:
    """The database as it is now, for a later restore."""
    return deepcopy(database[0])


def unlanded(lake: Lake, units: Iterable[Unit]) -> list[int]:
    """Records of the units that are not in the table."""
    there = lake.records()
    return sorted({record for unit in units for record in span_of(unit)} - there.keys())
