"""A model of what a coordinator meets: a queue with faults, shards in a database, dead letters, objects that are bad.

The coordinator and the landing protocol are the real ones. The table is the model of the landings.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.ports import Failure, LandingReport, PartRead, ReadUnit
from lakehead.consume.queue import Message
from lakehead.consume.shared_state import Opened
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.lake.landing import Fence, LandedPart, NewWatermark, Unit, UnitRemainder
from lakehead.lake.ports import Overtaken, Staged
from lakehead.lake.protocol import Audit, Lander
from lakehead.retry import Backoff
from lakehead.state.model import FileOutcome
from tests.sim.landing_model import (
    TABLE,
    Database,
    Files,
    Lake,
    ModelLedger,
    ModelProgress,
    ModelStager,
    ModelTable,
    Row,
    Wire,
    span_of,
)
from tests.support.simulation import Process, Violation, World

NEVER = 1_000
"""How often a unit that can never be read fails."""


@dataclass
class _Stored:
    body: str
    visible_at: float = 0.0
    receipt: int = 0


@dataclass
class ModelQueue:
    """A queue that delivers at least once, in any order, and whose calls take their time and may fail."""

    world: World
    check: Callable[[Sequence[str]], None]
    """Called with the bodies of acknowledged messages: raises if that is too early."""
    faults: float = 0.1
    stored: dict[str, _Stored] = field(default_factory=dict)
    receipts: int = 0
    name: str = "queue"
    retention: timedelta | None = None
    longest_visibility: timedelta | None = None
    forgets: bool = True

    def send(self, name: str, body: str) -> None:
        self.stored[name] = _Stored(body)

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        until = self.world.clock.monotonic() + wait.total_seconds()
        while True:
            await self._delay()
            now = self.world.clock.monotonic()
            ready = [name for name, each in self.stored.items() if each.visible_at <= now]
            chosen = [name for name in ready if self.world.random.random() < 0.7][:most]
            if chosen or now >= until:
                break
            await self.world.clock.sleep(self._next_look(now, until) - now)
        messages = []
        for name in chosen:
            self.receipts += 1
            each = self.stored[name]
            each.visible_at, each.receipt = now + visibility.total_seconds(), self.receipts
            messages.append(Message(id=name, body=each.body.encode(), receipt=self.receipts))
        await self._delay()  # an answer that is lost: the messages come again when their visibility ends
        return messages

    def _next_look(self, now: float, until: float) -> float:
        """When a message is visible next, or may be drawn at last; `until` if there is none before."""
        return min([until, *(max(each.visible_at, now + 0.5) for each in self.stored.values())])

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        await self._delay()
        failed = []
        for message in messages:
            each = self.stored.get(message.id)
            if each is None or each.receipt != message.receipt or self.world.random.random() < self.faults / 10:
                failed.append(message)
            else:
                each.visible_at = self.world.clock.monotonic() + visibility.total_seconds()
        await self._delay()
        return failed

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        await self._delay()
        failed = []
        for message in messages:
            each = self.stored.get(message.id)
            if each is None or each.receipt != message.receipt or self.world.random.random() < self.faults:
                failed.append(message)
            else:
                self.check(each.body.split())
                del self.stored[message.id]
        await self._delay()
        return failed

    async def close(self) -> None:
        pass

    async def _delay(self) -> None:
        await self.world.clock.sleep(min(10.0, 0.05 * self.world.random.paretovariate(1.5)))
        if self.world.random.random() < self.faults / 5:
            raise Unavailable("the queue does not answer")


@dataclass
class ModelShared:
    """`SharedState` over the model's database."""

    database: list[Database]
    wire: Wire
    owner: str
    lease: float
    window: float
    prune_by: str = "acknowledged"
    """What a row's age is counted from: acknowledged; broken on purpose: opened, or any."""

    @property
    def rows(self) -> dict[Unit, Row]:
        return self.database[0].rows

    @property
    def time(self) -> float:
        return self.wire.world.clock.monotonic()

    def row(self, unit: str) -> Row | None:
        return self.rows.get(Unit(unit))

    async def open(self, _table: str, units: Collection[str]) -> Opened:
        await self.wire.delay()
        ours, done, busy = {}, set(), set()
        for unit in units:
            row = self.rows.setdefault(Unit(unit), Row(opened_at=self.time))
            if row.given_up and row.replayed and row.landed is None:
                row.given_up, row.replayed, row.acknowledged, row.tries = False, False, False, 0
            if row.landed is not None or row.given_up:
                done.add(unit)
                row.acknowledged_at = self.time
            elif row.owner in (None, self.owner) or row.lease_until <= self.time:
                row.owner, row.lease_until = self.owner, self.time + self.lease
                ours[unit] = row.tries
            else:
                busy.add(unit)
        await self.wire.delay()
        return Opened(ours, frozenset(done), frozenset(busy))

    def _ours(self, units: Collection[str]) -> dict[str, Row]:
        found = {unit: row for unit in units if (row := self.row(unit)) is not None}
        return {u: r for u, r in found.items() if r.owner == self.owner and r.landed is None and not r.given_up}

    async def extend(self, _table: str, units: Collection[str]) -> set[str]:
        await self.wire.delay()
        ours = self._ours(units)
        for row in ours.values():
            row.lease_until = self.time + self.lease
        return set(ours)

    async def release(self, _table: str, units: Collection[str]) -> None:
        await self.wire.delay()
        for row in self._ours(units).values():
            row.owner = None

    async def count_try(self, _table: str, tries: Mapping[str, int]) -> Mapping[str, int]:
        await self.wire.delay()
        ours = self._ours(tries)
        for unit, row in ours.items():
            row.tries = tries[unit]
        await self.wire.delay()
        return {unit: tries[unit] for unit in ours}

    async def take_back_try(self, _table: str, tries: Mapping[str, int]) -> None:
        await self.wire.delay()
        for unit, row in self._ours(tries).items():
            row.tries = tries[unit]

    async def settled(self, _table: str, units: Collection[str]) -> set[str]:
        await self.wire.delay()
        return {unit for unit in units if (row := self.row(unit)) and (row.landed is not None or row.given_up)}

    async def acknowledge(self, _table: str, units: Collection[str]) -> None:
        await self.wire.delay()
        for unit in units:
            row = self.row(unit)
            if row is not None and not row.acknowledged and (row.landed is not None or row.given_up):
                row.acknowledged, row.acknowledged_at = True, self.time

    async def record(self, _table: str, outcomes: Sequence[FileOutcome]) -> None:
        pass

    async def give_up(self, unit: str) -> bool:
        await self.wire.delay()
        row = self.row(unit)
        if row is None or (row.owner != self.owner and not row.given_up) or row.landed is not None:
            return False
        row.given_up, row.owner, row.replayed = True, None, False
        await self.wire.delay()
        return True

    async def prune(self, _table: str) -> int | None:
        await self.wire.delay()
        pauses = self.database[0].pauses
        for owner in [owner for owner, until in pauses.items() if until <= self.time]:
            del pauses[owner]
        if pauses:
            return 0
        before = self.time - self.window
        old = [unit for unit, row in self.rows.items() if self._is_old(row, before)]
        for unit in old:
            self.wire.world.note(f"{unit.id} is pruned")
            del self.rows[unit]
        return len(old)

    async def remembered(self, _table: str) -> int:
        return len(self.rows)

    def _is_old(self, row: Row, before: float) -> bool:
        match self.prune_by:
            case "opened":
                return (row.landed is not None or row.given_up) and row.opened_at < before
            case "any":
                return row.opened_at < before
            case _:
                return row.acknowledged and row.landed is not None and row.acknowledged_at < before


@dataclass
class Objects:
    """What the units hold: most can be read, some not at first, some never, some kill who reads them."""

    fails: dict[str, int] = field(default_factory=dict)
    temporary: dict[str, int] = field(default_factory=dict)
    """How often the store does not answer when a unit is read."""
    deadly: set[str] = field(default_factory=set)
    large: set[str] = field(default_factory=set)
    """Units that land in parts, of another size each time."""


@dataclass
class _ReadingStager(ModelStager):
    """Reads the units of a landing, and leaves out those that fail."""

    objects: Objects = field(default_factory=Objects)
    process: Process | None = None
    failed: dict[str, Failure] = field(default_factory=dict)

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[Files]:
        for remainder in remainders:
            if remainder.unit.id in self.objects.deadly:
                assert self.process is not None
                self.wire.world.note(f"{remainder.unit.id} kills its reader")
                self.process.crash()
                await self.wire.world.clock.sleep(NEVER)
        parts = [self._part(remainder) for remainder in remainders]
        return await super().stage(parts, token=token, new_watermark=new_watermark, fence=fence)

    def _part(self, remainder: UnitRemainder) -> UnitRemainder:
        """What a landing takes of a unit that is too large for one."""
        start = remainder.landed.bytes if remainder.landed else 0
        end = start + self.wire.world.random.choice([1, 2, NEVER])
        if remainder.unit.id not in self.objects.large or end >= len(span_of(remainder.unit)):
            return remainder
        return replace(remainder, part=LandedPart(start, end, end, "content"))

    def _is_readable(self, remainder: UnitRemainder) -> bool:
        unit = remainder.unit.id
        for counts, temporary in ((self.objects.temporary, True), (self.objects.fails, False)):
            if counts.get(unit, 0) > 0:
                counts[unit] -= 1
                self.failed[unit] = Failure("it cannot be read", temporary)
                return False
        return True


@dataclass
class ModelLandings:
    """`UnitLander` by the real protocol over the model of the table."""

    lake: Lake
    wire: Wire
    progress: ModelProgress
    objects: Objects
    process: Process
    checks: bool = True
    """Whether it is asked before the commit if units are still held."""
    lander: type[Lander[Files]] = Lander
    compare: Audit[Files] | None = None
    """Compares what a landing drops with what has landed, before it is published."""

    async def uuid(self, table: str) -> str:
        await self.wire.delay()
        return table

    async def land(
        self,
        table: str,
        works: Sequence[Work],
        *,
        is_held: Callable[[UnitKey], bool],
        read: Callable[[Sequence[UnitKey]], None],
    ) -> LandingReport:
        keys = {work.key.unit: work.key for work in works}

        def audit(staged: Staged[Files]) -> None:
            if self.checks and not all(is_held(keys[each.unit.id]) for each in staged.landing.remainders):
                raise Overtaken("a message is not held any more")

        def was_read(staged: Staged[Files]) -> None:
            read([keys[each.unit.id] for each in staged.landing.remainders if each.part is None])

        stager = _ReadingStager(
            self.lake,
            self.wire,
            objects=self.objects,
            process=self.process,
        )
        lander = self.lander(
            pipeline="pipeline",
            table=ModelTable(self.lake, self.wire),
            progress=self.progress,
            ledger=ModelLedger(self.lake, self.wire),
            stager=stager,
            audits=[*([self.compare] if self.compare else []), was_read, audit],
            clock=self.wire.world.clock,
            random=self.wire.world.random,
            backoff=Backoff(attempts=8, first_seconds=0.02),
        )
        staged = await lander.land([Unit(unit) for unit in keys])
        remainders = staged.landing.remainders if staged else ()
        published = {each.unit.id for each in remainders}
        return LandingReport(
            landed={UnitKey(table, each.unit.id): ReadUnit(rows=1) for each in remainders if each.part is None},
            begun={
                UnitKey(table, each.unit.id): PartRead(each.recorded.id, ReadUnit(rows=1))
                for each in remainders
                if each.part is not None
            },
            failed={keys[unit]: failure for unit, failure in stager.failed.items() if unit not in published},
        )


@dataclass
class ModelDeadLetters:
    """Dead letters of one pipeline; all of them are kept in one place, for good."""

    wire: Wire
    stored: set[str]
    shared: "ModelShared"

    async def give_up(self, work: Work, table: str, reason: str, tries: int) -> bool:
        del table
        await self._store(work.key.unit, f"{reason} ({tries})")
        return await self.shared.give_up(work.key.unit)

    async def give_up_message(self, message: Message, reason: str) -> None:
        await self._store(message.id, reason)

    async def close_landed(self, table: str, units: Collection[str]) -> None:
        pass

    async def _store(self, name: str, reason: str) -> None:
        await self.wire.delay()
        self.stored.add(name)
        self.wire.world.note(f"{name} is a dead letter: {reason}")
        try:
            await self.wire.delay()
        except Unavailable as error:
            raise OutcomeUnknown("the answer is lost") from error


def must_be_settled(lake: Lake, dead: Collection[str], units: Sequence[str], owner: str = TABLE) -> None:
    """Raise unless each of the units is in the table, or a dead letter."""
    there = lake.records()
    for unit in units:
        start, end = unit.split("-")
        if unit not in dead and any(record not in there for record in range(int(start), int(end))):
            raise Violation(f"{owner}: a message is acknowledged, and {unit} has not landed")
