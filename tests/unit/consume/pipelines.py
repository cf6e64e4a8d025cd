"""A coordinator in virtual time with a queue in memory; everything it works with can be told to fail or to wait."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import wraps
from inspect import Signature, signature
from typing import Any, Concatenate, ParamSpec

from lakehead.consume.coordinator import QueueCoordinator
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.objects import NotUnderstood, ObjectRef
from lakehead.consume.ports import Failure, LandingReport, PartRead, ReadUnit
from lakehead.consume.queue import Message
from lakehead.consume.queues.memory_queue import MemoryMessages, MemoryQueue
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.shared_state import Opened
from lakehead.errors import Unavailable
from lakehead.lake.ports import Overtaken
from lakehead.retry import PollInterval
from lakehead.state.model import FileOutcome
from tests.support.simulation import World

P = ParamSpec("P")
Fault = Callable[[], Awaitable[None]]

SETTINGS = PipelineSettings(
    name="pipeline",
    commit_timeout=timedelta(seconds=10),
    polling=PollInterval(first_seconds=0.5, cap_seconds=5.0),
    poll_wait=timedelta(seconds=20),
)


class Calls:
    """What was called, in order, by everything of one test; and what is to go wrong with the next calls."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.made: list[tuple[str, Any]] = []
        self.faults: dict[str, Fault] = {}

    async def __call__(self, name: str, what: Any = None) -> None:
        self.made.append((name, what))
        if (fault := self.faults.get(name)) is not None:
            await fault()

    def names(self, *of: str) -> list[str]:
        """The names of the calls that were made, perhaps only some of them, each run of equal ones once."""
        names = [name for name, _ in self.made if not of or name in of]
        return [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]

    def count(self, name: str) -> int:
        return sum(made == name for made, _ in self.made)

    def fails(self, name: str, error: Exception) -> None:
        """Let every call fail from now on, until `heal`."""

        async def fail() -> None:
            raise error

        self.faults[name] = fail

    def fails_once(self, name: str, error: Exception) -> None:
        async def fail() -> None:
            self.heal(name)
            raise error

        self.faults[name] = fail

    def takes(self, name: str, seconds: float) -> None:
        """Let every call take so long from now on, until `heal`."""

        async def wait() -> None:
            await self.world.clock.sleep(seconds)

        self.faults[name] = wait

    def heal(self, *names: str) -> None:
        for name in names:
            self.faults.pop(name, None)


class CalledQueue(MemoryQueue):
    """A consumer of a queue in memory whose calls are noted, and may fail."""

    def __init__(self, messages: MemoryMessages, calls: Calls) -> None:
        super().__init__(messages)
        self._calls = calls

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        await self._calls("receive", most)
        return await super().receive(most, visibility=visibility, wait=wait)

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        await self._calls("extend visibility", ([each.id for each in messages], visibility.total_seconds()))
        return await super().extend(messages, visibility)

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        await self._calls("acknowledge", [each.body.decode() for each in messages])
        return await super().acknowledge(messages)


@dataclass
class Shard:
    owner: str | None = None
    lease_until: float = 0.0
    tries: int = 0
    is_done: bool = False
    is_given_up: bool = False
    acknowledged: bool = False


@dataclass
class FakeShared:
    """`SharedState` in memory; all pipelines of a test share the shards."""

    calls: Calls
    token: str
    shards: dict[tuple[str, str], Shard]
    lease: float

    @property
    def now(self) -> float:
        return self.calls.world.clock.monotonic()

    def of(self, table: str, units: Collection[str]) -> dict[str, Shard]:
        """Those of the units that are ours."""
        shards = {unit: self.shards[table, unit] for unit in units if (table, unit) in self.shards}
        return {unit: shard for unit, shard in shards.items() if shard.owner == self.token and not shard.is_done}

    async def open(self, table: str, units: Collection[str]) -> Opened:
        await self.calls("open", sorted(units))
        ours, done, busy, taken_over = dict[str, int](), set[str](), set[str](), 0
        for unit in units:
            shard = self.shards.setdefault((table, unit), Shard())
            if shard.is_done:
                done.add(unit)
            elif shard.owner in (None, self.token) or shard.lease_until <= self.now:
                taken_over += shard.owner not in (None, self.token)
                shard.owner, shard.lease_until = self.token, self.now + self.lease
                ours[unit] = shard.tries
            else:
                busy.add(unit)
        return Opened(ours, frozenset(done), frozenset(busy), taken_over)

    async def extend(self, table: str, units: Collection[str]) -> set[str]:
        await self.calls("extend lease", sorted(units))
        ours = self.of(table, units)
        for shard in ours.values():
            shard.lease_until = self.now + self.lease
        return set(ours)

    async def release(self, table: str, units: Collection[str]) -> None:
        await self.calls("release", sorted(units))
        for shard in self.of(table, units).values():
            shard.owner = None

    async def count_try(self, table: str, tries: Mapping[str, int]) -> Mapping[str, int]:
        await self.calls("count try", sorted(tries))
        ours = self.of(table, tries)
        for unit, shard in ours.items():
            shard.tries = tries[unit]
        await self.calls("count try answer")
        return {unit: shard.tries for unit, shard in ours.items()}

    async def take_back_try(self, table: str, tries: Mapping[str, int]) -> None:
        await self.calls("take back try", sorted(tries))
        for unit, shard in self.of(table, tries).items():
            shard.tries = tries[unit]
        await self.calls("take back try answer")

    async def settled(self, table: str, units: Collection[str]) -> set[str]:
        await self.calls("settled", sorted(units))
        return {unit for unit in units if (shard := self.shards.get((table, unit))) and shard.is_done}

    async def acknowledge(self, table: str, units: Collection[str]) -> None:
        await self.calls("begin windows", sorted(units))
        for unit in units:
            self.shards[table, unit].acknowledged = True

    async def record(self, table: str, outcomes: Sequence[FileOutcome]) -> None:
        await self.calls("record", [(table, each.unit, each.state) for each in outcomes])

    async def prune(self, table: str) -> int | None:
        await self.calls("prune", table)
        return 1

    async def remembered(self, table: str) -> int:
        return sum(of == table for of, _ in self.shards)


@dataclass
class FakeLandings:
    """`UnitLander` in memory: rows of units that were read, in the table if the commit came about."""

    calls: Calls
    shared: FakeShared
    rows: dict[tuple[str, str], int] = field(default_factory=dict)
    """How often each unit is in its table."""
    failures: dict[str, Failure] = field(default_factory=dict)
    hangs_at: str | None = None
    """A unit whose read never ends."""
    read_seconds: float = 0.0
    commit_seconds: float = 0.0
    groups: list[list[str]] = field(default_factory=list)
    """The units of each landing."""
    parts: dict[str, int] = field(default_factory=dict)
    """Units that are too large for one landing, and how many parts of each are still to land."""

    async def uuid(self, table: str) -> str:
        await self.calls("uuid", table)
        return table

    async def land(
        self,
        table: str,
        works: Sequence[Work],
        *,
        is_held: Callable[[UnitKey], bool],
        read: Callable[[Sequence[UnitKey]], None],
    ) -> LandingReport:
        self.groups.append([work.key.unit for work in works])
        await self.calls("read", [work.key.unit for work in works])
        await self.calls(f"read {table}")
        if self.hangs_at in self.groups[-1]:
            await asyncio.Event().wait()
        if self.read_seconds:
            await self.calls.world.clock.sleep(self.read_seconds)
        failed = {work.key: self.failures[work.key.unit] for work in works if work.key.unit in self.failures}
        good = [work.key for work in works if work.key not in failed]
        begun = [key for key in good if self.parts.get(key.unit, 1) > 1]
        read([key for key in good if key not in begun])
        if self.commit_seconds:
            await self.calls.world.clock.sleep(self.commit_seconds)
        ours = self.shared.of(table, [key.unit for key in good])
        good = [key for key in good if key.unit in ours]
        if not all(is_held(key) for key in good):
            raise Overtaken("a message is another consumer's by now")
        await self.calls("commit", [key.unit for key in good])
        begun = [key for key in begun if key in good]
        for key in begun:
            self.parts[key.unit] -= 1
            ours[key.unit].tries = 0
        for key in good:
            if key not in begun:
                self.rows[key.table, key.unit] = self.rows.get((key.table, key.unit), 0) + 1
                ours[key.unit].is_done = True
        await self.calls("answer")
        return LandingReport(
            landed={key: ReadUnit(rows=2, bytes=3) for key in good if key not in begun},
            begun={key: PartRead(f"{key.unit}#{self.parts[key.unit]}", ReadUnit(rows=5, bytes=7)) for key in begun},
            failed=failed,
            snapshot=7,
        )


@dataclass
class FakeDeadLetters:
    calls: Calls
    shared: FakeShared
    letters: dict[str, str] = field(default_factory=dict)

    async def give_up(self, work: Work, table: str, reason: str, tries: int) -> bool:
        await self.calls("give up", work.key.unit)
        del tries
        ours = self.shared.of(table, [work.key.unit])
        self.letters[work.key.unit] = reason
        for shard in ours.values():
            shard.is_done = shard.is_given_up = True
        return bool(ours)

    async def give_up_message(self, message: Message, reason: str) -> None:
        await self.calls("give up message", message.body.decode())
        self.letters[message.body.decode()] = reason

    async def close_landed(self, table: str, units: Collection[str]) -> None:
        await self.calls("close letters", (table, sorted(units)))


def read_message(message: Message, counts: ConsumeCounts) -> Sequence[Work]:
    """A body such as `a other/b:500` announces a unit of the table `table`, and one of `other` with 500 bytes.

    That of `late` cannot be known before its third delivery.
    """
    del counts
    works = []
    for each in message.body.decode().split():
        if each == "?":
            raise NotUnderstood("It says nothing.")
        if each == "late" and message.deliveries < 3:
            raise Unavailable("its bucket does not answer")
        name, _, size = each.partition(":")
        table, _, unit = name.rpartition("/")
        ref = ObjectRef(uri=unit, size=int(size) if size else None)
        works.append(Work(key=UnitKey(table or "table", unit), object=ref, message=message))
    return works


class Pipeline:
    """One coordinator, and what a test wants to know of it."""

    def __init__(self, tested: "Pipelines", token: str, settings: PipelineSettings) -> None:
        self.queue = CalledQueue(tested.messages, tested.calls)
        self.shared = FakeShared(tested.calls, token, tested.shards, settings.lease.total_seconds())
        self.landings = FakeLandings(tested.calls, self.shared, tested.rows)
        self.dead_letters = FakeDeadLetters(tested.calls, self.shared)
        self.coordinator = QueueCoordinator(
            settings,
            self.queue,
            read_message,
            shared=self.shared,
            landings=self.landings,
            dead_letters=self.dead_letters,
            clock=tested.world.clock,
            random=tested.world.random,
        )
        self.running: asyncio.Task[None] | None = None

    @property
    def counts(self) -> ConsumeCounts:
        return self.coordinator.counts

    def start(self) -> "asyncio.Task[None]":
        self.running = asyncio.ensure_future(self.coordinator.run())
        return self.running

    async def stop(self) -> None:
        """Stop it in order, and wait for its end. Raises what it raised."""
        assert self.running is not None
        self.coordinator.stop()
        await self.running


class Pipelines:
    """What the pipelines of one test share."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls = Calls(world)
        self.messages = MemoryMessages(world.clock)
        self.shards: dict[tuple[str, str], Shard] = {}
        self.rows: dict[tuple[str, str], int] = {}
        self.started: list[Pipeline] = []

    def send(self, *bodies: str) -> None:
        self.messages.send([body.encode() for body in bodies])

    def pipeline(self, settings: PipelineSettings = SETTINGS, *, token: str = "us") -> Pipeline:  # noqa: S107 - a publish token is no secret
        """A coordinator that does not run yet."""
        made = Pipeline(self, token, settings)
        self.started.append(made)
        return made

    def start(self, settings: PipelineSettings = SETTINGS, *, token: str = "us") -> Pipeline:  # noqa: S107 - a publish token is no secret
        made = self.pipeline(settings, token=token)
        made.start()
        return made

    async def sleep(self, seconds: float) -> None:
        await self.world.clock.sleep(seconds)

    @property
    def time(self) -> float:
        return self.world.clock.monotonic()

    @property
    def landed(self) -> set[str]:
        assert all(times == 1 for times in self.rows.values()), self.rows
        return {unit for _, unit in self.rows}

    @property
    def queued(self) -> int:
        """How many messages are not acknowledged."""
        return len(self.messages.table)

    @property
    def visible(self) -> int:
        """How many messages a consumer would receive at this moment."""
        at = self.messages.table.next_visible_at()
        return 0 if at is None or at > self.time else len(self.messages.table)


PipelinesTest = Callable[Concatenate[Pipelines, P], Coroutine[Any, Any, None]]


def pipelines_test(test: PipelinesTest[P]) -> Callable[P, None]:
    """Run a coroutine test in virtual time, in a few of the orders that its awaits allow. It must leave no task."""

    async def bounded(tested: Pipelines, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await test(tested, *args, **kwargs)
            for each in tested.started:
                if each.running is not None and not each.running.done():
                    await each.stop()
        finally:
            for each in tested.started:
                if each.running is not None:
                    each.running.cancel()
                    await asyncio.wait([each.running])
        assert asyncio.all_tasks() == {asyncio.current_task()}

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        for seed in range(3):
            world = World(seed)
            world.loop.simulate(bounded(Pipelines(world), *args, **kwargs))

    first, *others = signature(test).parameters.values()
    del first  # the pipelines are ours, not a fixture of pytest
    run.__signature__ = Signature(others)  # type: ignore[attr-defined]  # what pytest reads
    return run
