"""A model of agents: senders that try again, and what must hold of what they were told.

Agent, spool and upload are the real code, on a simulated disk and network. What an agent has answered is written down
as a promise, and every record has a number of its own: it must be accepted once in the end, whatever happened.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from lakehead.agent.agent import Agent
from lakehead.agent.spool_entry import Spooled
from lakehead.agent.spool_errors import KeyReused
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.buffer.errors import InvalidCall
from lakehead.errors import Unavailable
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId
from tests.sim.agent_disk import NO_DISK_FAULTS, PLENTY, Step
from tests.sim.agent_gateways import Gateways, KnownFrame, records
from tests.sim.agent_machine import Machine
from tests.support.simulation import Process, World


class Told(Enum):
    """What a sender knows of its request."""

    ON_DISK = "on disk"
    TRY_AGAIN = "try again"
    KEY_REUSED = "key reused"
    NOTHING = "nothing"


@dataclass(slots=True, eq=False)
class Sent:
    """A request, as a sender has it."""

    kind: FrameKind
    first: int
    count: int
    id: RequestId | None
    first_sent: float | None = None
    """The uptime of the agent at which it came first."""

    is_promised: bool = False

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, kw_only=True)
class AgentParts:
    """The code that is simulated; shorter versions of it are to be caught."""

    agent: type[Agent] = Agent


@dataclass
class AgentSimulation:
    """The machines, gateways and senders of one seed, and what was promised."""

    world: World
    parts: AgentParts
    gateways: Gateways
    machines: list[Machine] = field(default_factory=list)
    promised: dict[int, Machine] = field(default_factory=dict)
    """The records that were promised, and by whom."""

    rotten: set[int] = field(default_factory=set)
    """The records that a bit was flipped in, or in the only thing that tells where they are."""

    deaths: int = 0
    """How often an agent may still die between two steps of its disk."""

    deadly_steps: tuple[Step, ...] = ()
    deadliness: float = 0.0
    """How often one of those steps is deadly."""

    meddling: float = 0.0
    """How often a batch that is sent first meets another machine, or garbage collection."""

    sent: dict[BatchIdentity, KnownFrame] = field(default_factory=dict)
    _boots: dict[tuple[str, str], list[BatchIdentity]] = field(default_factory=dict)
    _operators: dict[str, Process] = field(default_factory=dict)
    is_calm: bool = False

    def start_machine(self, settings: SpoolSettings) -> Machine:
        machine = Machine(self, f"agent-{len(self.machines)}", settings)
        self.machines.append(machine)
        self.world.process(f"machine {len(self.machines)}").spawn(machine.supervise())
        return machine

    # --- senders

    def request(self, machine: Machine, kind: FrameKind, first: int, count: int, *, with_id: bool = True) -> Sent:
        digest = blake2b(f"{machine.name} {first}".encode(), digest_size=16).digest()
        return Sent(kind, first, count, RequestId(digest, digest) if with_id else None)

    def is_known(self, machine: Machine, sent: Sent) -> bool:
        """Whether an agent has promised to know a request: for so much of its uptime."""
        if sent.first_sent is None:
            return True
        return machine.uptime - sent.first_sent < machine.settings.dedupe_seconds - 1

    async def submit(self, machine: Machine, sent: Sent, *, other_body: bool = False) -> Told:
        """Give a request to an agent, and return what it answers; `NOTHING` if no answer arrives."""
        world, agent = self.world, machine.agent
        if agent is None or machine.process is None:
            return Told.NOTHING
        if sent.first_sent is None:
            sent.first_sent = machine.uptime
        answer: asyncio.Future[Told] = world.loop.create_future()
        task = machine.process.spawn(self._serve(agent, machine, sent, answer, other_body=other_body))
        try:
            async with asyncio.timeout(world.random.choice([0.1, 5, 5])):
                told = await answer
        except TimeoutError:
            if world.random.random() < 0.3:  # the server notices that its client is gone
                task.cancel()
            return Told.NOTHING
        return told if self.is_calm or world.random.random() < 0.85 else Told.NOTHING

    async def _serve(
        self, agent: Agent, machine: Machine, sent: Sent, answer: "asyncio.Future[Told]", *, other_body: bool
    ) -> None:
        request, batch = sent.id, records(sent.kind, sent.first, sent.count)
        if other_body:
            assert request is not None
            request, batch = RequestId(request.dedupe_id, bytes(16)), records(sent.kind, -500, 1)
        must_be_known = sent.is_promised and self.is_known(machine, sent) and self.rotten.isdisjoint(sent.numbers)
        try:
            spooled = await agent.append(sent.kind, batch, request)
            told = Told.ON_DISK
            if other_body:
                self.gateways.fail(f"another body was taken under the key of {sent.numbers}")
            self._promise(machine, sent, spooled, must_be_known=must_be_known)
        except KeyReused:
            told = Told.KEY_REUSED
        except (Unavailable, InvalidCall) as error:
            self.world.note(f"{sent.numbers} are not taken: {error}")
            told = Told.TRY_AGAIN
        if not answer.done():
            answer.set_result(told)

    def _promise(self, machine: Machine, sent: Sent, spooled: Spooled, *, must_be_known: bool) -> None:
        self.world.note(f"{machine.name} has {sent.numbers} on disk{' already' if spooled.duplicate else ''}")
        if must_be_known and sent.id is not None and not spooled.duplicate:
            self.gateways.fail(f"{sent.numbers} were promised, and are taken again")
        sent.is_promised = True
        self.promised.update(dict.fromkeys(sent.numbers, machine))

    def flush(self, machine: Machine) -> None:
        """Ask an agent to send all that it has, and check what it says of it."""
        agent = machine.agent
        if agent is not None and machine.process is not None:
            machine.process.spawn(self._flush(agent, machine))

    async def _flush(self, agent: Agent, machine: Machine) -> None:
        before = {number for number, by in self.promised.items() if by is machine}
        with suppress(Unavailable, InvalidCall):
            flushed = await agent.flush(self.world.random.choice([1, 60]))
            done = self.rotten.union(self.gateways.accepted, self._dropped())
            lost = before - done if flushed.is_accepted else None
            if lost:
                self.gateways.fail(f"{sorted(lost)} are flushed, and not accepted")

    # --- what is sent, and what it meets

    def check_sent(self, machine: Machine, frame: KnownFrame) -> None:
        """Check that an identity always has the same bytes, and that no number is used twice."""
        identity, sha256 = frame.submission.identity, frame.submission.sha256
        if (before := self.sent.get(identity)) is not None:
            if before.submission.sha256 != sha256:
                self.gateways.fail(f"{identity} is sent with other bytes: {before.numbers}, then {frame.numbers}")
            return
        if identity.agent_id != machine.name:
            self.gateways.fail(f"{machine.name} sends {identity}")
        of_boot = self._boots.setdefault((identity.agent_id, identity.boot_id), [])
        if overlapping := [each for each in of_boot if each.overlaps(identity)]:
            self.gateways.fail(f"{identity} is sent, and {overlapping} were before")
        of_boot.append(identity)
        self.sent[identity] = frame

    async def meddle(self, frame: KnownFrame) -> None:
        """Let garbage collection or another machine be there first, now and then."""
        world, submitted = self.world, frame.submission
        if not self.meddling or world.random.random() >= self.meddling:
            return
        if world.random.random() < 0.6:
            work = self.gateways.collect(submitted)
        else:
            work = self.gateways.use_identity(submitted.identity, submitted.kind)
        task: asyncio.Task[None] = world.loop.create_task(work, context=world.context)
        with suppress(TimeoutError):
            async with asyncio.timeout(world.random.choice([0, 2, 20])):
                await asyncio.shield(task)

    def decide_later(self, frame: KnownFrame) -> None:
        """Let an operator decide about a conflict, once."""
        sha256, world = frame.submission.sha256, self.world
        if sha256 not in self._operators and (self.is_calm or world.random.random() < 0.5):
            self._operators[sha256] = world.process("operator")
            self._operators[sha256].spawn(self._decide(frame))

    async def _decide(self, frame: KnownFrame) -> None:
        await self.world.clock.sleep(0 if self.is_calm else self.world.random.expovariate(0.1))
        await self.gateways.accept_existing(frame.submission.identity, frame.submission.sha256)

    # --- the end

    def become_calm(self) -> None:
        """No more faults."""
        self.is_calm, self.deaths, self.meddling = True, 0, 0.0
        self.gateways.become_calm()
        for machine in self.machines:
            machine.disk.faults, machine.disk.free = NO_DISK_FAULTS, PLENTY

    def release(self, machine: Machine) -> None:
        """Let an operator release the boots of an agent from quarantine."""
        quarantined = self.gateways.quarantined
        quarantined -= {boot for boot in quarantined if boot[0] == machine.name}

    def undecided(self, *machines: Machine) -> list[KnownFrame]:
        """The frames on the disks of machines that only an operator can do something about."""
        store, quarantined = self.gateways.store, self.gateways.quarantined
        frames = [frame for machine in machines for frame in machine.frames().values()]
        conflicts = {each.sha256 for each in self.gateways.conflicts_of(frame.submission for frame in frames)}
        return [
            frame
            for frame in frames
            if (frame.submission.identity.agent_id, frame.submission.identity.boot_id) in quarantined
            or (
                frame.submission.sha256 in conflicts
                and not store.may_be_dropped(frame.submission.identity, frame.submission.sha256)
            )
        ]

    def left(self) -> list[str]:
        """What is on disk, and could be sent."""
        waiting = {frame.submission.sha256 for frame in self.undecided(*self.machines)}
        found: list[str] = []
        for machine in self.machines:
            frames = machine.frames()
            found += [name for name, frame in frames.items() if frame.submission.sha256 not in waiting]
            found += machine.unfixed()
        return found

    def check_end(self) -> None:
        """All that was promised is accepted, or waits for an operator, or was dropped by one."""
        waiting = {number for frame in self.undecided(*self.machines) for number in frame.numbers}
        lost = set(self.promised) - set(self.gateways.accepted) - waiting - self._dropped()
        if lost - self.rotten:
            self.gateways.fail(f"the records {sorted(lost - self.rotten)} were promised, and are nowhere")
        if lost and not any(machine.has_set_aside() for machine in self.machines):
            self.gateways.fail(f"the records {sorted(lost)} were damaged, and nothing was set aside")
        if not self.rotten:
            for machine in self.machines:
                for frame in machine.frames().values():
                    if frame.submission.identity not in self.sent:
                        self.check_sent(machine, frame)
            for (agent_id, boot_id), identities in self._boots.items():
                self._check_without_gap(agent_id, boot_id, identities)
        for machine in self.machines:
            machine.check_status()

    def _dropped(self) -> set[int]:
        return {
            number
            for frame in self.sent.values()
            for number in frame.numbers
            if self.gateways.store.may_be_dropped(frame.submission.identity, frame.submission.sha256)
        }

    def _check_without_gap(self, agent_id: str, boot_id: str, identities: list[BatchIdentity]) -> None:
        next_sequence = 0
        for each in sorted(identities):
            if each.seq_start != next_sequence:
                self.gateways.fail(f"the boot {boot_id} of {agent_id} has no {next_sequence}: {sorted(identities)}")
            next_sequence = each.seq_end + 1
