"""A simulated world: processes that crash and pause, clocks that disagree, and a log of what happened."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from itertools import count
from math import inf
from random import Random
from typing import Any, TypeVar
from zlib import crc32

from lakehead.ids import SeededIds
from lakehead.storage.memory_store import MemoryStore
from tests.faults.store import Faults, FaultStore
from tests.support.simulated_loop import OWNER, Handle, SimulatedLoop, Unseen

T = TypeVar("T")

START_NS = 1_800_000_000 * 10**9
"""The wall time at which every simulation starts."""

MAX_LOG_LINES = 2_000
LOG = logging.getLogger("lakehead")


class Violation(AssertionError):
    """An invariant was violated."""


class SimulatedClock:
    """The loop's time. Wall time may be wrong and may jump; monotonic time does not."""

    def __init__(self, loop: SimulatedLoop, *, off_by: float = 0.0) -> None:
        self._loop = loop
        self._off_by_ns = int(off_by * 1e9)

    def now_ns(self) -> int:
        return START_NS + self._off_by_ns + int(self._loop.time() * 1e9)

    def jump(self, seconds: float) -> None:
        """Shift wall time by that much, as when a clock is set."""
        self._off_by_ns += int(seconds * 1e9)

    def monotonic(self) -> float:
        return self._loop.time()

    def sleep(self, seconds: float) -> Awaitable[None]:
        return self._loop.sleep(seconds)


class Process:
    """Tasks that live and die together. A crash runs no `finally` block."""

    def __init__(self, name: str, number: int, world: "World") -> None:
        self.name = name
        self.number = number
        self.alive = True
        self.is_running = True
        self._world = world
        self._kept: list[Handle] | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self._context = copy_context()
        self._context.run(OWNER.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task of this process. If it raises, the simulation fails."""
        task = self._world.loop.create_task(work, name=self.name, context=self._context.copy())
        task.add_done_callback(self._world.look_at, context=self._world.context)
        self._tasks.append(task)
        return task  # type: ignore[no-any-return]  # the loop's signature is asyncio's

    def crash(self) -> None:
        """Stop at once. Requests that were already sent to a store are still carried out."""
        self._world.note(f"{self.name} crashes")
        self.alive = self.is_running = False
        self._world.changed()

    def pause(self, seconds: float) -> None:
        """Run nothing for some time, as under a long garbage collection, and then go on."""
        if self._kept is None:
            self._world.note(f"{self.name} pauses for {seconds:.3f} s")
            self._kept, self.is_running = [], False
            self._world.loop.call_later(seconds, self._resume, context=self._world.context)

    @property
    def done(self) -> bool:
        """Whether it has crashed, or all its tasks have ended."""
        return not self.alive or all(task.done() for task in self._tasks)

    def withholds(self, handle: Handle) -> bool:
        if not self.alive:
            return True
        if self._kept is None:
            return False
        self._kept.append(handle)
        return True

    def _resume(self) -> None:
        kept, self._kept = self._kept or [], None
        if self.alive:
            self.is_running = True
            self._world.note(f"{self.name} goes on")
            self._world.loop.make_ready(kept)


class World:
    """What a scenario gets: randomness of one seed, a clock, processes and stores."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.loop = SimulatedLoop(self.random)  # type: ignore[abstract]  # sockets and signals are not simulated
        self.clock = SimulatedClock(self.loop)
        self.ids = SeededIds(self.random)
        self.context = copy_context()
        self.log: list[str] = []
        self.failure: BaseException | None = None
        self._numbers = count(1)
        self._change: asyncio.Future[None] | None = None

    def process(self, name: str) -> Process:
        """Return a new process, which has nothing in common with an earlier one of that name."""
        return Process(name, next(self._numbers), self)

    def faulty(self, inner: MemoryStore, faults: Faults) -> FaultStore:
        """Return a client's view of a shared store, over a network with faults."""
        return FaultStore(inner, faults, random=self.random, clock=self.clock, ids=self.ids, note=self.note)

    def note(self, what: str) -> None:
        """Log an event: for the trace, and for replaying the seed."""
        self.loop.mark(crc32(what.encode()))
        if len(self.log) < MAX_LOG_LINES:
            owner = OWNER.get()
            who = owner.name if isinstance(owner, Process) else "world"
            self.log.append(f"{self.loop.time():10.4f} s  {who:<12} {what}")

    def look_at(self, task: "asyncio.Task[Any]") -> None:
        """Keep the error of the first task that raised."""
        if not task.cancelled() and (error := task.exception()) is not None and self.failure is None:
            self.failure = error
        self.changed()

    async def until(self, *processes: Process, at_most: float | None = None) -> None:
        """Wait until the processes are done or one has failed, at most `at_most` seconds if given."""
        deadline = self.clock.monotonic() + (at_most or inf)
        # Without a deadline no timer is set, so that processes that wait for each other are found as a deadlock.
        alarm = self.loop.call_at(deadline, self.changed, context=self.context) if at_most else None
        while self.failure is None and not all(process.done for process in processes):
            if self.clock.monotonic() >= deadline:
                raise Violation(f"not done after {at_most} s: {[p.name for p in processes if not p.done]}")
            self._change = self.loop.create_future()
            await self._change
        if alarm is not None:
            alarm.cancel()
        if self.failure is not None:
            raise self.failure

    def changed(self) -> None:
        """Wake `until`."""
        if self._change is not None and not self._change.done():
            self._change.set_result(None)


Scenario = Callable[[World], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one seed."""

    seed: int
    trace: str
    steps: int
    seconds: float
    log: list[str]
    failure: BaseException | None


def simulate(scenario: Scenario, seed: int) -> Report:
    """Run a scenario with one seed. The report has what it raised."""
    world = World(seed)
    failure: BaseException | None = None
    level = LOG.level
    LOG.setLevel(logging.CRITICAL)  # thousands of seeds would log the injected faults
    try:
        world.loop.simulate(scenario(world))
    except Exception as error:  # noqa: BLE001 - whatever was raised is the finding
        failure = world.failure if isinstance(error, Unseen) and world.failure is not None else error
    finally:
        LOG.setLevel(level)
    return Report(seed, world.loop.trace_hash(), world.loop.steps, world.loop.time(), world.log, failure)


async def until_sure(look: Callable[[], Awaitable[T]], clock: SimulatedClock, *, on: type[Exception]) -> T:
    """Call `look` again, with a pause, until it does not raise."""
    while True:
        try:
            return await look()
        except on:
            await clock.sleep(0.05)
