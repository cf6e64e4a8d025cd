"""Garbage collection beside gateways in both modes: late retries, crashes, every fault, clocks that disagree.

The shorter versions of it lose what was accepted, or delete what is needed, and must be caught.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakehead.accept.acceptance import Submission, Void
from lakehead.accept.voiding import Voiding
from lakehead.maintain.blob_deletion import delete_blob
from lakehead.maintain.blob_references import FoundBlob, FullScan
from lakehead.maintain.blob_requests import CountedStore
from lakehead.maintain.garbage_collection import GarbageCollection
from lakehead.maintain.garbage_report import BlobDecision
from lakehead.maintain.garbage_retention import KeepReason, Retention, RetiringBatch
from lakehead.storage.port import ObjectMeta
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.authority_records import AcceptanceMode
from lakehead.wire.batch_identity import BatchIdentity
from tests.faults.store import Faults
from tests.sim.garbage_model import GarbageParts, GarbageSimulation
from tests.sim.spool_model import Parts, submission
from tests.support.simulation import Process, Scenario, World

ROUGH = Faults.all(0.02)
ENDS_WITHIN = 2_000.0


async def _send(sim: GarbageSimulation, submitted: Submission) -> None:
    """An agent: it may give up after its first attempts, and try again later than the horizon."""
    world = sim.world
    await world.clock.sleep(world.random.expovariate(0.5))
    await _leave_an_orphan(sim, submitted)
    for pause in world.random.choice([[0], [0, 30], [22], [45], [0, 90], []]):
        await world.clock.sleep(pause + world.random.uniform(0, 5))
        if isinstance(await sim.send(submitted), Void):
            return


async def _leave_an_orphan(sim: GarbageSimulation, submitted: Submission) -> None:
    """Sometimes a gateway has stored the blob, and died before the manifest."""
    world = sim.world
    if world.random.random() < 0.6:
        gateway = sim.gateway("s3_manifest", "dying gateway")
        try:
            await gateway.acceptor.store_blob(submitted)
        except Exception as error:  # noqa: BLE001 - it dies anyway
            world.note(f"not even the blob: {error}")


def start_agents(sim: GarbageSimulation) -> list[Process]:
    """Start agents, some of which send other records under the same identity."""
    world, agents = sim.world, list[Process]()
    for number in range(world.random.randint(1, 4)):
        identity = BatchIdentity("agent", "boot", number * 2, number * 2 + 1)
        for content in [1.0, *(world.random.choice([1.0, 2.0]) for _ in range(world.random.randrange(2)))]:
            agent = world.process(f"agent {len(agents)}")
            agent.spawn(_send(sim, sim.knows(submission(identity, content))))
            agents.append(agent)
    return agents


async def _disturb(sim: GarbageSimulation, mode: AcceptanceMode, collectors: Sequence[Process]) -> None:
    """Crash and pause gateways and collectors."""
    world = sim.world
    for _ in range(world.random.randrange(4)):
        await world.clock.sleep(world.random.choice([1, 10, 30]))
        match world.random.randrange(4):
            case 0:
                await restart_gateways(sim, mode)
            case 1:
                pause_a_gateway(sim)
            case 2:
                world.random.choice(collectors).crash()
            case _:
                world.random.choice(collectors).pause(world.random.choice([1, 15, 60]))


def start_gateways(sim: GarbageSimulation, mode: AcceptanceMode) -> None:
    """Start one gateway with a spool, or one or two without."""
    for _ in range(1 if mode == "local_spool" else sim.world.random.randint(1, 2)):
        sim.start_gateway(mode)


async def _complete_voids(sim: GarbageSimulation, agents: Sequence[Process]) -> None:
    """Collect until every agent has its answer: a spool answers 503 until somebody completes a void that was begun."""
    while not all(agent.done for agent in agents):
        await sim.world.clock.sleep(60)
        await sim.collect_once(FullScan(), makes_audit=True)


async def restart_gateways(sim: GarbageSimulation, mode: AcceptanceMode) -> None:
    """Stop all gateways, sometimes by a loss of power, and start others after a while."""
    world = sim.world
    sim.stop_gateways(power=mode == "local_spool" and world.random.random() < 0.5)
    await world.clock.sleep(world.random.choice([0, 0.5, 3]))
    start_gateways(sim, mode)


def pause_a_gateway(sim: GarbageSimulation) -> None:
    """Let one of them stand still for a while."""
    world = sim.world
    world.random.choice(sim.gateways).process.pause(world.random.choice([0.3, 3, 40]))


async def end_acceptance(sim: GarbageSimulation, mode: AcceptanceMode, agents: Sequence[Process]) -> None:
    """Wait, with gateways that were started again, until agents have their answers and spools are empty."""
    world = sim.world
    sim.stop_gateways(power=mode == "local_spool")
    start_gateways(sim, mode)
    last = world.process("last gc")
    last.spawn(_complete_voids(sim, agents))
    await world.until(*agents, last, at_most=ENDS_WITHIN)
    await world.clock.sleep(600)  # also writes that are applied much later have been
    if mode == "local_spool":
        sim.stop_gateways(power=True)
        await sim.drain()


async def _end(sim: GarbageSimulation, mode: AcceptanceMode, agents: Sequence[Process]) -> None:
    """When faults stop every agent has its answer, what was promised is there, and no garbage is left."""
    world = sim.world
    sim.become_calm()
    await end_acceptance(sim, mode, agents)
    sim.check_end(all_queued=False)
    for identity in sorted(sim.promised, key=str):
        sim.land(identity)
    # A blob is not in the index if its gateway died, or its entry was lost: now and then all must be looked at.
    for source in (sim.source(), FullScan()):
        await world.clock.sleep(10_000)  # the index is by hours, of the gateways' clocks
        await sim.audit()
        await world.clock.sleep(1)
        report = await sim.collect_once(source)
        if report is None or report.has_failures:
            sim.fail(f"without faults, garbage collection failed: {report}")
    sim.check_end(all_queued=False)
    sim.check_no_garbage()


def collecting(parts: GarbageParts = GarbageParts(), *, faults: Faults = ROUGH) -> Scenario:  # noqa: B008 - frozen
    """Gateways in one of both modes, agents, two collectors, landings and audits."""

    async def scenario(world: World) -> None:
        mode: AcceptanceMode = world.random.choice(["local_spool", "s3_manifest"])
        sim = GarbageSimulation(world, Parts(), faults, garbage_parts=parts)
        await sim.set_up(mode)
        start_gateways(sim, mode)
        agents = start_agents(sim)
        others = [world.process("gc 0"), world.process("gc 1"), world.process("reconciler"), world.process("landing")]
        for collector in others[:2]:
            collector.spawn(sim.collect_now_and_then(world.random.randint(1, 4)))
        others[2].spawn(sim.audit_now_and_then(world.random.choice([0, 2, 4])))
        others[3].spawn(sim.land_now_and_then(120))
        await _disturb(sim, mode, others[:2])
        await world.until(*others, at_most=ENDS_WITHIN)
        await _end(sim, mode, agents)

    return scenario


# --- shorter versions that must be caught


class NoFence(Voiding):
    """Looks whether the identity is accepted, and takes it for void if it is not."""

    async def void(self, record: IdentityVoid) -> IdentityManifest | IdentityVoid:
        return await self.acceptor.read(record.identity) or record


class AsksNoSpool(Voiding):
    """Creates the void in the store without asking spools."""

    async def void(self, record: IdentityVoid) -> IdentityManifest | IdentityVoid:
        await self.acceptor.store.create(record.key, record.encode())
        return await self.acceptor.read(record.identity) or record


class NeedsNoAudit(GarbageCollection):
    """Believes that what has no reverse reference is not referenced."""

    async def _audited_through_ns(self, now_ns: int) -> int | None:
        del now_ns
        return 2**62

    def retention(self, *, is_dry_run: bool) -> Retention:
        found = super().retention(is_dry_run=is_dry_run)
        return replace(found, store=_SeesNoOverlaps(found.store))


class _SeesNoOverlaps(CountedStore):
    """Asks the reverse references alone, and not the quarantine itself."""

    async def head(self, key: str) -> ObjectMeta | None:
        return None if keys.parse_overlap(key) else await super().head(key)


class RetiresBeforeLanding(GarbageCollection):
    """Retires accepted batches by their age alone."""

    def retention(self, *, is_dry_run: bool) -> Retention:
        found = super().retention(is_dry_run=is_dry_run)
        return Retention(
            store=found.store,
            users=(_NeedsNothing(),),
            discarding_tables=found.discarding_tables,
            name=found.name,
            now_ns=found.now_ns,
            is_dry_run=is_dry_run,
        )


class _NeedsNothing:
    async def still_needed(
        self, batches: Sequence[RetiringBatch], *, done_before_ns: int
    ) -> Mapping[BatchIdentity, KeepReason]:
        del batches, done_before_ns
        return {}


class DeletesBeforeItIsRetired(GarbageCollection):
    """The blob goes before the record says so."""

    def retention(self, *, is_dry_run: bool) -> Retention:
        found = super().retention(is_dry_run=is_dry_run)
        return _DeletesFirst(
            store=found.store,
            users=found.users,
            discarding_tables=found.discarding_tables,
            name=found.name,
            now_ns=found.now_ns,
            is_dry_run=is_dry_run,
        )


class _DeletesFirst(Retention):
    async def _retire(self, blob: FoundBlob, identity: BatchIdentity) -> BlobDecision:
        await delete_blob(self.store, blob.sha256 or "")
        return await super()._retire(blob, identity)


class TrustsItsOwnClock(GarbageCollection):
    """Takes this machine's time for the store's."""

    async def _stored_ns(self, key: str) -> int:
        await super()._stored_ns(key)
        return self.clock.now_ns()


GARBAGE_SOUND: dict[str, Scenario] = {"garbage": collecting()}
GARBAGE_BROKEN: dict[str, Scenario] = {
    "garbage_without_a_fence": collecting(GarbageParts(voiding=NoFence)),
    "garbage_asks_no_spool": collecting(GarbageParts(voiding=AsksNoSpool)),
    "garbage_needs_no_audit": collecting(GarbageParts(collection=NeedsNoAudit)),
    "garbage_retires_before_landing": collecting(GarbageParts(collection=RetiresBeforeLanding)),
    "garbage_deletes_before_it_is_retired": collecting(GarbageParts(collection=DeletesBeforeItIsRetired)),
    "garbage_by_its_own_clock": collecting(GarbageParts(collection=TrustsItsOwnClock)),
}
