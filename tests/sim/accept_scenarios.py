"""Acceptance by several gateways: sound under every fault, and shorter versions of it that must be caught."""

import asyncio
from dataclasses import dataclass

from lakehead.accept.acceptance import Accepted, Acceptor, Answer, Duplicate, Submission
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.port import Created, Exists, Version
from lakehead.storage.reliable_writes import WriteRefused
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.batch_identity import BatchIdentity
from tests.faults.store import Faults, FaultStore
from tests.sim.accept_model import AcceptanceSimulation, Gateway, submission
from tests.support.simulation import Process, Scenario, Violation, World

ROUGH = Faults.all(0.03)
ALL_ANSWERED_SECONDS = 300.0
"""How long after the last fault every client has its answer."""


async def _clients(sim: AcceptanceSimulation) -> list[Process]:
    """Start clients that send batches of a few identities: some the same bytes, some other bytes."""
    world, clients = sim.world, list[Process]()
    for number in range(world.random.randint(1, 3)):
        identity = BatchIdentity("agent", "boot", number * 10, number * 10 + 9)
        contents = ["a", *(world.random.choice(["a", "a", "b"]) for _ in range(world.random.randrange(3)))]
        for content in contents:
            client = world.process(f"client {len(clients)}")
            client.spawn(_send_twice(sim, submission(identity, content)))
            clients.append(client)
        if world.random.random() < 0.2:
            collector = world.process("gc")
            collector.spawn(_void(sim, submission(identity, "a")))
    return clients


async def _send_twice(sim: AcceptanceSimulation, submitted: Submission) -> None:
    """Send a batch, and sometimes again, much later: as an agent that did not see its answer."""
    await sim.world.clock.sleep(sim.world.random.expovariate(1))
    first = await sim.send(submitted)
    if sim.world.random.random() < 0.5:
        await sim.world.clock.sleep(sim.world.random.choice([0, 1, 600]))
        again = await sim.send(submitted)
        expected = Duplicate if isinstance(first, Accepted) else type(first)
        if type(again) is not expected:
            raise Violation(f"{submitted.identity}: first {first}, then {again}")


async def _void(sim: AcceptanceSimulation, submitted: Submission) -> None:
    """Garbage collection declares an identity void, unless it is accepted."""
    identity, clock = submitted.identity, sim.world.clock
    store = sim.connect(clock)
    await clock.sleep(sim.world.random.expovariate(1))
    record = IdentityVoid(
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_sha256=submitted.sha256,
        voided_at_unix_ns=clock.now_ns(),
        voided_by="gc",
        nonce=sim.world.ids.uuid(),
    )
    try:
        await store.create(record.key, record.encode())
    except OutcomeUnknown:
        sim.world.note("it is not known whether the identity is void")
    except Unavailable:  # as after refusals alone; garbage collection keeps the blob and comes again
        sim.world.note("the identity is not void")


def acceptance(
    *,
    gateway: type[Gateway] = Gateway,
    acceptor: type[Acceptor] = Acceptor,
    network: type[FaultStore] = FaultStore,
    faults: Faults = ROUGH,
) -> Scenario:
    """Gateways that crash and pause accept what clients send. When faults stop, everybody gets an answer."""

    async def scenario(world: World) -> None:
        sim = AcceptanceSimulation(world, gateway, acceptor, network, faults)
        for _ in range(world.random.randint(1, 3)):
            sim.start_gateway()
        clients = await _clients(sim)
        for _ in range(world.random.randrange(4)):
            await world.clock.sleep(world.random.expovariate(2))
            victim = world.random.choice(sim.gateways)
            if world.random.random() < 0.5:
                victim.process.crash()
                sim.gateways.remove(victim)
                sim.start_gateway()
            else:
                victim.process.pause(world.random.choice([0.3, 3, 90]))
        await world.clock.sleep(world.random.expovariate(0.5))
        sim.become_calm()
        await world.until(*clients, at_most=ALL_ANSWERED_SECONDS + 1_200)

    return scenario


# --- shorter versions that must be caught


class TakesConflictForExistence(FaultStore):
    """A 409 is taken for a 412, without looking: nothing was written, and the key may be absent."""

    async def create(self, key: str, body: bytes) -> Created | Exists:
        try:
            return Created(await self.network.write_once(key, body, nonce="", expected=None))
        except WriteRefused:
            return Exists(Version("unseen"))


class AnswersBeforeTheManifest(Acceptor):
    """The blob is stored, and the manifest will be."""

    async def accept(self, submission: Submission) -> Answer:
        await self.store_blob(submission)
        manifest = self.manifest_of(submission)
        asyncio.ensure_future(self._create(manifest)).add_done_callback(lambda task: task.exception())
        return Accepted(manifest)


class TakesDoubtForDuplicate(Acceptor):
    """An unknown outcome is taken for the existence of a manifest that is like ours."""

    async def accept(self, submission: Submission) -> Answer:
        try:
            return await super().accept(submission)
        except OutcomeUnknown:
            return Duplicate(self.manifest_of(submission))


class AcceptsWithoutNonce(Acceptor):
    """A manifest with our hash is taken for our own: whoever meets it has accepted the batch first."""

    async def accept(self, submission: Submission) -> Answer:
        answer = await super().accept(submission)
        return Accepted(answer.manifest) if isinstance(answer, Duplicate) else answer


class StoresManifestFirst(Acceptor):
    """The manifest is created before the blob is stored."""

    async def accept(self, submission: Submission) -> Answer:
        found = await self._create(manifest := self.manifest_of(submission))
        await self.store_blob(submission)
        return await super().accept(submission) if found is not manifest else Accepted(manifest)


class StaleManifestRead(Acceptor):
    """After a create in doubt the key is not read: the same batch may have been accepted with other bytes."""

    async def _create(self, manifest: IdentityManifest) -> IdentityManifest | IdentityVoid:
        try:
            await self.store.create(manifest.key, manifest.encode())
        except OutcomeUnknown:
            return manifest
        return manifest


@dataclass
class SideEffectsFirst(Gateway):
    """What follows an acceptance is begun before it."""

    async def answer(self, submitted: Submission, sim: AcceptanceSimulation) -> Answer:
        self.effects.start(self.acceptor.manifest_of(submitted))
        answer = await self.acceptor.accept(submitted)
        sim.check(submitted, answer)
        return answer


ACCEPT_SOUND: dict[str, Scenario] = {"acceptance": acceptance()}
ACCEPT_BROKEN: dict[str, Scenario] = {
    "acceptance_conflict_taken_for_existence": acceptance(network=TakesConflictForExistence),
    "acceptance_answered_before_the_manifest": acceptance(acceptor=AnswersBeforeTheManifest),
    "acceptance_doubt_taken_for_duplicate": acceptance(acceptor=TakesDoubtForDuplicate),
    "acceptance_without_nonce": acceptance(acceptor=AcceptsWithoutNonce),
    "acceptance_manifest_before_blob": acceptance(acceptor=StoresManifestFirst),
    "acceptance_manifest_not_read": acceptance(acceptor=StaleManifestRead),
    "acceptance_side_effects_first": acceptance(gateway=SideEffectsFirst),
}
