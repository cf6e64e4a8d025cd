"""Agents that are killed, lose power and run out of disk, between senders that try again and gateways that fail.

The shorter versions of an agent lose or double records, and must be caught.
"""

from collections.abc import Sequence

from lakehead.agent.spool_settings import SpoolSettings
from lakehead.wire.agent_spool_records import ENTRIES
from lakehead.wire.record_schemas import FrameKind
from tests.faults.store import Faults
from tests.sim.agent_broken import BROKEN_AGENTS
from tests.sim.agent_disk import PLENTY, DiskFaults, Step
from tests.sim.agent_gateways import Gateways
from tests.sim.agent_machine import Machine
from tests.sim.agent_model import AgentParts, AgentSimulation, Sent, Told
from tests.support.simulation import Process, Scenario, World

ROUGH = Faults.all(0.01)
DRAINED_WITHIN = 600.0
"""How long after the last fault every sender is answered, and all that can be is accepted."""

LOOKS_EVERY = 5.0
DEADLY_STEPS: Sequence[tuple[Step, ...]] = (("written",), ("named",), ("before", "written", "named"))


async def _send(sim: AgentSimulation, machine: Machine, sent: Sent) -> None:
    """Send a request until it is answered, and some again, much later: as one whose answer was lost."""
    world = sim.world
    await world.clock.sleep(world.random.expovariate(0.3))
    await _until_answered(sim, machine, sent)
    for _ in range(world.random.choice([0, 0, 1, 2]) if sent.id else 0):
        await world.clock.sleep(world.random.choice([0, 0.5, 3, 20, 100]))
        if not sim.is_known(machine, sent):
            return
        # A damaged journal has forgotten its keys.
        if sent.is_promised and sim.rotten.isdisjoint(sent.numbers) and world.random.random() < 0.1:
            await sim.submit(machine, sent, other_body=True)
        await _until_answered(sim, machine, sent)


async def _until_answered(sim: AgentSimulation, machine: Machine, sent: Sent) -> None:
    world = sim.world
    while sim.is_known(machine, sent):
        told = await sim.submit(machine, sent)
        if told is Told.ON_DISK or (sent.id is None and told is Told.NOTHING):
            return
        await world.clock.sleep(world.random.uniform(0, world.random.choice([0.2, 2, 10])))


def _senders(sim: AgentSimulation) -> list[Process]:
    world, senders, first = sim.world, list[Process](), 0
    for _ in range(world.random.randint(2, 6)):
        machine = world.random.choice(sim.machines)
        kind = FrameKind.LOGS if world.random.random() < 0.15 else FrameKind.SAMPLES
        sent = sim.request(machine, kind, first, world.random.randint(1, 3), with_id=world.random.random() < 0.9)
        first += sent.count
        sender = world.process(f"sender {len(senders)}")
        sender.spawn(_send(sim, machine, sent))
        senders.append(sender)
    return senders


async def _disturb(sim: AgentSimulation, blows: int) -> None:
    """Kill and pause agents and gateways, and let the rest of the world go wrong for a while."""
    world, random = sim.world, sim.world.random
    for _ in range(blows):
        await world.clock.sleep(random.expovariate(0.5))
        machine = random.choice(sim.machines)
        match random.randrange(12):
            case 0 | 1:
                machine.die(power=random.random() < 0.5)
            case 2:
                machine.stop()
            case 3:
                processes = [machine.process, *(process for process, _ in sim.gateways.running)]
                if (paused := random.choice(processes)) is not None:
                    paused.pause(random.choice([0.3, 3, 20]))
            case 4:
                machine.clock.jump(random.choice([-1, 1]) * random.choice([60, 7_200, 10**6]))
            case 5:
                sim.gateways.restart(random.randrange(len(sim.gateways.running)))
            case 6:
                _for_a_while(world, sim.gateways, "knows_no_token", value=True, after=False)
            case 7:
                _for_a_while(world, machine.disk, "free", value=random.randrange(4_000), after=PLENTY)
            case 8:
                sim.gateways.refused_numbers.add(random.randrange(8))
            case 9:
                machine.die(power=random.random() < 0.5)
                machine.rot()
            case 10:
                sim.flush(machine)
            case _:
                if sim.sent:
                    identity = random.choice(list(sim.sent))
                    sim.gateways.quarantined.add((identity.agent_id, identity.boot_id))


def _for_a_while(world: World, where: object, name: str, *, value: object, after: object) -> None:
    world.note(f"{name} is {value}")
    setattr(where, name, value)
    world.loop.call_later(world.random.expovariate(0.1), setattr, where, name, after, context=world.context)


async def _end(sim: AgentSimulation, senders: Sequence[Process]) -> None:
    """When faults stop every sender gets its answer, and all is accepted, also after a last loss of power."""
    world, decides = sim.world, sim.world.random.random() < 0.7
    sim.become_calm()
    for machine in sim.machines:
        machine.die(power=True)
    operator = world.process("operator of full spools")
    operator.spawn(_decide_where_spools_are_full(sim))
    await world.until(*senders, at_most=DRAINED_WITHIN)
    operator.crash()
    if decides:
        sim.gateways.quarantined.clear()
    for machine in sim.machines:
        machine.die(power=world.random.random() < 0.7)
    ends = world.clock.monotonic() + DRAINED_WITHIN
    await world.clock.sleep(LOOKS_EVERY)
    while left := sim.left():
        if world.clock.monotonic() > ends:
            sim.gateways.fail(f"{left} were not sent within {DRAINED_WITHIN:g} s")
        if decides:
            for frame in sim.undecided(*sim.machines):
                sim.decide_later(frame)
        await world.clock.sleep(LOOKS_EVERY)
    await world.clock.sleep(LOOKS_EVERY)  # what was removed is known to be
    if world.failure is not None:
        raise world.failure
    sim.check_end()


async def _decide_where_spools_are_full(sim: AgentSimulation) -> None:
    """A spool that is full of batches which gateways refuse takes nothing, and tells an operator so."""
    while True:
        await sim.world.clock.sleep(LOOKS_EVERY)
        for machine in sim.machines:
            refused = sim.undecided(machine)
            waiting = {frame.submission.sha256 for name, frame in machine.frames().items() if name.startswith(ENTRIES)}
            # Those that are in the folder for parked batches must not keep the spool from taking more.
            if (
                len(waiting.intersection(frame.submission.sha256 for frame in refused))
                >= machine.settings.spool_entries
            ):
                sim.release(machine)
                for frame in refused:
                    sim.decide_later(frame)


def agents(parts: AgentParts = AgentParts(), *, faults: Faults = ROUGH) -> Scenario:  # noqa: B008 - frozen
    """One or two machines with an agent each, and one or two gateways."""

    async def scenario(world: World) -> None:
        random = world.random
        gateways = Gateways(world, faults, random.randint(1, 2), random.choice([0, 0.1, 0.3]))
        sim = AgentSimulation(world, parts, gateways)
        await gateways.set_up()
        sim.meddling = random.choice([0, 0.3, 0.7])
        sim.deaths, sim.deadliness = random.randrange(4), random.choice([0.05, 0.15, 0.5])
        sim.deadly_steps = random.choice(DEADLY_STEPS)
        for _ in range(random.choice([1, 1, 1, 2])):
            machine = sim.start_machine(_settings(world))
            machine.disk.faults = random.choice([DiskFaults(), DiskFaults(), DiskFaults(0.02, 0.05)])
        senders = _senders(sim)
        await _disturb(sim, random.randrange(6))
        await world.clock.sleep(random.expovariate(0.2))
        await _end(sim, senders)

    return scenario


def _settings(world: World) -> SpoolSettings:
    draw = world.random.choice
    return SpoolSettings(
        batch_seconds=draw([0.2, 1.0, 3.0]),
        batch_records=draw([4, 100]),
        spool_entries=draw([3, 1_000]),
        parked_bytes=draw([1_000, 1 << 20, 1 << 20]),
        reserve_bytes=draw([0, 4_000, 4_000]),
        dedupe_seconds=draw([60.0, 3_600.0]),
    )


AGENT_SOUND: dict[str, Scenario] = {"agents": agents()}
AGENT_BROKEN: dict[str, Scenario] = {f"agents_{name}": agents(parts) for name, parts in BROKEN_AGENTS.items()}
