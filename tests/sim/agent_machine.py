"""A simulated machine with an agent: it dies and loses power between any two steps of its disk, and starts again."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from lakehead.agent.agent import Agent
from lakehead.agent.deps import AgentDeps
from lakehead.agent.gateway_answers import Answered, TryAgain
from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool_disk import SpoolDisk
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import SeededIds
from lakehead.retry import PollInterval
from lakehead.wire.acceptance_records import IdentityVoid
from lakehead.wire.agent_journal import MAGIC, joined_records, read_journal
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.frame import peek_frame
from lakehead.wire.frame_header import has_damaged_version
from tests.sim.agent_disk import SimulatedSpoolDisk, Step
from tests.sim.agent_gateways import ATTEMPT_SECONDS, KnownFrame, known_frame, numbers_in
from tests.support.simulation import Process, SimulatedClock

if TYPE_CHECKING:
    from tests.sim.agent_model import AgentSimulation

T = TypeVar("T")

OFFERED_EVERY = 40.0
"""How often parked batches are offered again, in seconds."""


@dataclass
class Machine:
    """One agent's machine. Whoever holds `agent` uses what runs now."""

    sim: "AgentSimulation"
    name: str
    settings: SpoolSettings
    disk: SimulatedSpoolDisk = field(init=False)
    clock: SimulatedClock = field(init=False)
    process: Process | None = None
    agent: Agent | None = None
    """None unless it is open."""

    received: set[str] = field(default_factory=set)
    """The hashes of frames for which a receipt has come."""

    _uptime: float = 0.0
    _up_since: float | None = None
    _stop: "asyncio.Future[None] | None" = None
    _died: "asyncio.Future[None] | None" = None

    def __post_init__(self) -> None:
        world = self.sim.world
        self.clock = SimulatedClock(world.loop, off_by=world.random.choice([0, 0, -90_000]))
        self.disk = SimulatedSpoolDisk(world, at_each_step=self._risk, watch=self._watch)

    @property
    def uptime(self) -> float:
        """For how long agents have run on it, all starts together."""
        running = 0.0 if self._up_since is None else self.sim.world.loop.time() - self._up_since
        return self._uptime + running

    async def supervise(self) -> None:
        """Start the agent, and again whenever it has ended."""
        world = self.sim.world
        while True:
            self._stop, self._died = world.loop.create_future(), world.loop.create_future()
            self.process, self._up_since = world.process(self.name), world.loop.time()
            self.process.spawn(self._run(self._stop))
            await self._died
            await world.clock.sleep(world.random.choice([0, 0.5, 5]))

    def die(self, *, power: bool) -> None:
        """End as a process does that is killed, alone or with its machine."""
        if self._died is None or self._died.done() or self.process is None:
            return
        self.process.crash()
        if power:
            self.sim.world.note(f"{self.name} loses power")
            self.disk.lose_power()
        self._has_ended()

    def stop(self) -> None:
        """Ask the agent to stop, as a service manager does."""
        if self._stop is not None and not self._stop.done():
            self._stop.set_result(None)

    async def _run(self, stop: "asyncio.Future[None]") -> None:
        process = self.process
        assert process is not None
        try:
            async with self.sim.parts.agent(self._agent_settings(), self._deps()) as agent:
                self.agent = agent
                self.sim.world.note("the agent runs")
                await stop
                self.agent = None
            self.sim.world.note("the agent stops")
        except (Unavailable, OutcomeUnknown) as error:
            self.sim.world.note(f"the agent does not start: {error}")
        process.crash()  # whatever it has left ends with it
        self._has_ended()

    def _agent_settings(self) -> AgentSettings:
        return AgentSettings(
            agent_id=self.name,
            gateways=tuple(map(str, range(len(self.sim.gateways.running)))),
            spool=self.settings,
            in_flight=2,
            attempt_seconds=ATTEMPT_SECONDS,
            gateway_backoff=PollInterval(first_seconds=0.2, cap_seconds=5.0),
            batch_backoff=PollInterval(first_seconds=1.0, cap_seconds=20.0),
            retry_after_seconds=10.0,
            pause_seconds=10.0,
            offer_again_seconds=OFFERED_EVERY,
        )

    def _deps(self) -> AgentDeps:
        random = self.sim.world.random
        return AgentDeps(
            token=self.name,
            clock=self.clock,
            ids=SeededIds(random),
            random=random,
            connect=lambda url, _: Way(self, int(url)),
            open_disk=self._open_disk,
            run_in_thread=_run_here,
        )

    @contextmanager
    def _open_disk(self, _: Path) -> Iterator[SpoolDisk]:
        self.disk.flush_names()  # as whoever opens a spool's folder does
        yield self.disk

    def _has_ended(self) -> None:
        self._uptime, self._up_since, self.agent = self.uptime, None, None
        if self._died is not None and not self._died.done():
            self._died.set_result(None)

    async def _risk(self, step: Step) -> None:
        """Die between two steps of the disk, now and then."""
        sim = self.sim
        if sim.deaths and step in sim.deadly_steps and sim.world.random.random() < sim.deadliness:
            sim.deaths -= 1
            power = sim.world.random.random() < 0.5
            self.die(power=power)
            if not power and sim.world.random.random() < 0.4:  # soon enough to act on what the first blow left
                delay = sim.world.random.uniform(0.05, 1.5)
                sim.world.loop.call_later(delay, partial(self.die, power=True), context=sim.world.context)
            await sim.world.loop.create_future()

    # --- what must hold of its files

    def _watch(self, name: str, before: bytes, after: bytes | None) -> None:
        """Check that a batch leaves only when it may, and changes its identity only if that is void."""
        if not name.startswith(("entries/", "parked/")) or name.endswith(".json"):
            return
        gateways = self.sim.gateways
        if before.startswith(MAGIC):
            # What was damaged may have come again, and its second journal has not been promised.
            kept = self.held(name) | self.sim.rotten
            if after is None and (lost := self.sim.promised.keys() & _in_journal(before) - kept):
                gateways.fail(f"{name} is deleted with {lost}, which were promised")
            return
        if (old := _readable(before)) is None:
            return  # it is set aside
        identity, sha256 = old.submission.identity, old.submission.sha256
        if after is None:
            if sha256 in self.received or gateways.store.may_be_dropped(identity, sha256):
                return
            if not self.held(name).issuperset(old.numbers):
                gateways.fail(f"{identity} leaves {name}, and was neither accepted nor decided about")
        elif after != before:
            new = known_frame(after)
            if not isinstance(gateways.store.at(identity), IdentityVoid):
                gateways.fail(f"{identity} gets other bytes in {name}, and is not void")
            if old.numbers != new.numbers:
                gateways.fail(f"{identity} has {old.numbers}, and becomes {new.numbers} in {name}")

    def rot(self) -> None:
        """Flip a bit of a batch that is on disk, while no agent runs."""
        random = self.sim.world.random
        files = {name: body for name, body in self._batches().items() if body}
        if self._up_since is not None or not files:
            return
        name = random.choice(list(files))
        at = random.randrange(len(files[name]))
        with suppress(Unreadable):
            self.sim.rotten.update(_hit(files[name], at))
        self.sim.world.note(f"a bit of {name} is flipped")
        self.disk.flip_a_bit(name, at)

    def check_status(self) -> None:
        """Check what the agent says of its files, while nothing happens."""
        if self.agent is None:
            return
        status, frames = self.agent.status().spool, self.frames()
        folders = {
            folder: [frame.size for name, frame in frames.items() if name.startswith(folder)]
            for folder in ("entries/", "parked/")
        }
        told = status.entries, status.entry_bytes, status.parked_bytes
        if told != (len(folders["entries/"]), sum(folders["entries/"]), sum(folders["parked/"])):
            self.sim.gateways.fail(f"the agent tells {status}, and has {list(frames)}")

    def held(self, besides: str = "") -> set[int]:
        """The records that were accepted, or are on disk in another file."""
        found = set(self.sim.gateways.accepted)
        for name, body in self._batches().items():
            if name != besides:
                frame = _readable(body)
                found.update(_in_journal(body) if frame is None else frame.numbers)
        return found

    def frames(self) -> dict[str, KnownFrame]:
        """The frames that are on disk, by the names of their files."""
        return {name: frame for name, body in self._batches().items() if (frame := _readable(body)) is not None}

    def unfixed(self) -> list[str]:
        """The names of the batches that are no frames: those that still collect records, or are damaged."""
        return [name for name, body in self._batches().items() if _readable(body) is None and not _looks_newer(body)]

    def has_set_aside(self) -> bool:
        """Whether damage was kept: set aside, or where it is if it looks as if a newer Lakehead had written it."""
        return bool(self.disk.has("damaged")) or any(map(_looks_newer, self._batches().values()))

    def _batches(self) -> dict[str, bytes]:
        files = {**self.disk.has("entries"), **self.disk.has("parked")}
        return {name: body for name, body in files.items() if not name.endswith(".json")}


@dataclass
class Way:
    """A machine's way to a gateway."""

    machine: Machine
    number: int

    @property
    def name(self) -> str:
        return f"gateway {self.number}"

    async def post(self, body: bytes, token: str) -> Answered | TryAgain:
        sim, frame = self.machine.sim, known_frame(body)
        sim.check_sent(self.machine, frame)
        await sim.meddle(frame)
        agent = self.machine.agent
        knows = agent is not None and bool(agent.spool.authority)
        answer = await sim.gateways.post(self.number, body, token, knows_authority=knows)
        if isinstance(answer, Answered):
            if answer.status == 200 and sim.gateways.authority_id.encode() in answer.body:
                self.machine.received.add(frame.submission.sha256)
            elif answer.status == 409:
                sim.decide_later(frame)
        return answer

    async def close(self) -> None:
        pass


async def _run_here(function: Callable[[], T]) -> T:
    return function()


def _readable(body: bytes) -> KnownFrame | None:
    if body.startswith(MAGIC):
        return None
    try:
        return known_frame(body)
    except Unreadable:
        return None


def _looks_newer(body: bytes) -> bool:
    try:
        if body.startswith(MAGIC):
            read_journal(body)
        else:
            peek_frame(body)
    except NewerFormat:
        return not has_damaged_version(pa.py_buffer(body))
    except Unreadable:
        pass
    return False


def _hit(body: bytes, at: int) -> set[int]:
    """The records that may be lost if one byte of a batch is wrong."""
    if not body.startswith(MAGIC):
        return set(known_frame(body).numbers)
    content = read_journal(body)
    if content is None:
        return set()
    hit = [
        item
        for item, stored in zip(content.items, content.log.items, strict=True)
        if stored.start <= at < stored.end or at < content.log.items[0].start
    ]
    return set(numbers_in(joined_records(content.head.kind, [item.encoded for item in hit]))) if hit else set()


def _in_journal(body: bytes) -> set[int]:
    """The records of a batch that is not fixed yet, as far as they can be read."""
    with suppress(Unreadable):
        if (content := read_journal(body)) is not None and content.items:
            return set(numbers_in(joined_records(content.head.kind, [item.encoded for item in content.items])))
    return set()
