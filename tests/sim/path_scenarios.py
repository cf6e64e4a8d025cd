"""Everything behind agents together: gateways, reconcilers, garbage collection, consumers and operators, with faults.

The shorter versions of a reconciler leave batches behind, queue them for ever, or let garbage collection believe what
nobody has seen, and must be caught.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence

from lakehead.maintain.reconcile_cold import ColdScanner
from lakehead.maintain.reconcile_landings import LandingState, LandingTable, MissingLandings
from lakehead.maintain.reconcile_report import ActionKind, ReconcileReport
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.authority_records import AcceptanceMode
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.index_records import AcceptedByTime
from tests.faults.store import Faults
from tests.sim.garbage_scenarios import (
    ROUGH,
    end_acceptance,
    pause_a_gateway,
    restart_gateways,
    start_agents,
    start_gateways,
)
from tests.sim.path_model import DERIVED, PathParts, PathSimulation
from tests.sim.spool_model import Parts
from tests.support.simulation import Process, Scenario, World

LANDED_WITHIN = 600.0
"""How long after the last fault all that was accepted has landed, or was dropped."""


def _run_beside(sim: PathSimulation) -> list[Process]:
    """Two consumers, two reconcilers and an operator."""
    world = sim.world
    processes = [world.process(name) for name in ("consumer 0", "consumer 1", "reconciler 0", "reconciler 1")]
    for each in processes[:2]:
        each.spawn(sim.consume())
    for each in processes[2:]:
        each.spawn(sim.reconcile())
    return processes


async def _decide_now_and_then(sim: PathSimulation) -> None:
    world = sim.world
    while True:
        await world.clock.sleep(world.random.expovariate(0.05))
        try:
            await sim.decide()
        except Exception as error:  # noqa: BLE001 - an operator tries again
            world.note(f"the operator could not: {error}")


async def _disturb(sim: PathSimulation, mode: AcceptanceMode, beside: list[Process]) -> None:
    """Crash and pause gateways, consumers, reconcilers and collectors, and lose what is derived."""
    world = sim.world
    for _ in range(world.random.randrange(6)):
        await world.clock.sleep(world.random.choice([1, 5, 20]))
        match world.random.randrange(6):
            case 0:
                await restart_gateways(sim, mode)
            case 1:
                pause_a_gateway(sim)
            case 2 | 3:
                world.random.choice(beside).crash()
            case 4:
                world.random.choice(beside).pause(world.random.choice([1, 15, 60]))
            case _:
                sim.path.lose_derived(world.random.choice(DERIVED))
                world.note("a derived index is lost")


async def _end(sim: PathSimulation, mode: AcceptanceMode, agents: Sequence[Process], beside: list[Process]) -> None:
    """When faults stop everything lands or was dropped, and from then on nobody finds anything to do."""
    world = sim.world
    sim.become_calm()
    for each in beside:
        each.crash()
    await end_acceptance(sim, mode, agents)
    if world.random.random() < 0.3:
        for folder in DERIVED:
            sim.path.lose_derived(folder)
        world.note("all that is derived is lost")
    ends, beside = world.clock.monotonic() + LANDED_WITHIN, _run_beside(sim)
    while left := sim.unsettled():
        if world.clock.monotonic() > ends:
            sim.fail(f"{left} were accepted, and have not landed within {LANDED_WITHIN:g} s")
        if world.failure is not None:
            raise world.failure
        await world.clock.sleep(5)
        await sim.decide()
    while sim.queue.entries:
        await world.clock.sleep(5)
    for each in beside:
        each.crash()
    for _ in range(2):  # the first goes on where a scan of everything was interrupted
        await sim.reconciled()
    before = sim.path.snapshot()
    report = await sim.reconciled()
    if report.done or sim.queue.entries or sim.path.snapshot() != before:
        sim.fail(f"there is nothing left to do, and a reconciler did {report.actions}")
    sim.check_landed()
    sim.check_end(all_queued=False)


def whole_path(parts: PathParts = PathParts(), *, faults: Faults = ROUGH) -> Scenario:  # noqa: B008 - frozen
    """Gateways in one of both modes, agents, and everything that works behind them."""

    async def scenario(world: World) -> None:
        mode: AcceptanceMode = world.random.choice(["local_spool", "s3_manifest"])
        sim = PathSimulation(world, Parts(), faults, path_parts=parts)
        await sim.set_up(mode)
        start_gateways(sim, mode)
        agents = start_agents(sim)
        if world.random.random() < 0.4:
            sim.bad.update(world.random.sample(sorted(set(sim.garbage.identities.values()), key=str), 1))
        beside = [*_run_beside(sim), world.process("gc"), world.process("operator")]
        beside[-2].spawn(sim.collect_now_and_then(world.random.randint(1, 4)))
        beside[-1].spawn(_decide_now_and_then(sim))
        await _disturb(sim, mode, beside)
        await world.clock.sleep(world.random.choice([5, 60]))
        await _end(sim, mode, agents, beside)

    return scenario


# --- shorter versions that must be caught


class QueuesWithoutLooking(MissingLandings):
    """Queues what it finds, each time."""

    async def settle(
        self, manifests: Iterable[IdentityManifest], report: ReconcileReport
    ) -> dict[BatchIdentity, LandingState]:
        found = list(manifests)
        if found:
            await self.queue.put(found)
        for each in found:
            report.did(ActionKind.ENQUEUED, each.key)
        return {each.identity: LandingState.SETTLED for each in found}


class ForgetsDrops(MissingLandings):
    """Does not ask what operators have decided."""

    async def _given_up(
        self, table: LandingTable, identities: Sequence[BatchIdentity], report: ReconcileReport
    ) -> dict[BatchIdentity, LandingState | None]:
        del table, report
        return dict.fromkeys(identities)


class ScansTheIndex(ColdScanner):
    """Finds batches by the index that it is to repair."""

    async def _pages(self, folders: Sequence[str], last_key: str) -> AsyncGenerator[Sequence[str], None]:
        if keys.ACCEPTED in folders:
            async for page in self.batches.store.list(keys.ACCEPTED_BY_TIME):
                for each in page:
                    found = await self.batches.store.get(each.key)
                    if found is not None:
                        yield [AcceptedByTime.decode(found.body, each.key).accepted_manifest_key]
        async for page_of_keys in super()._pages([each for each in folders if each != keys.ACCEPTED], last_key):
            yield page_of_keys


PATH_SOUND: dict[str, Scenario] = {"path": whole_path()}
PATH_BROKEN: dict[str, Scenario] = {
    "path_queues_without_looking": whole_path(PathParts(landings=QueuesWithoutLooking)),
    "path_forgets_drops": whole_path(PathParts(landings=ForgetsDrops)),
    "path_scans_the_index": whole_path(PathParts(cold=ScansTheIndex)),
}
