"""A void batch is accepted under new numbers exactly once, wherever the agent dies after it was told so."""

import pytest

from lakehead.agent.agent import Agent
from lakehead.wire.batch_identity import BatchIdentity
from tests.sim.agent_disk import SimulatedSpoolDisk, Step
from tests.support.effort import effort
from tests.support.simulation import Process, World
from tests.unit.agent.agents import sample, values
from tests.unit.agent.support import error
from tests.unit.agent.virtual_agents import HOUR, VirtualGateway, in_virtual_time, virtual_agent


class Deaths:
    """A disk whose agent dies at one of its steps, counted from when a test says so."""

    def __init__(self, world: World, *, at: int, power: bool) -> None:
        self.world, self.at, self.power = world, at, power
        self.disk = SimulatedSpoolDisk(world, at_each_step=self._step)
        self.steps: int | None = None
        """How many there were; None before they are counted."""

        self.process: Process | None = None
        self.has_died = False

    async def _step(self, _: Step) -> None:
        if self.steps is None or self.has_died or self.process is None:
            return
        self.steps += 1
        if self.steps > self.at:
            self.has_died = True
            self.process.crash()
            if self.power:
                self.disk.lose_power()
            await self.world.loop.create_future()


class VoidingGateway(VirtualGateway):
    """Answers 413 as long as it is told to, and that the first identity of a value is void."""

    def __init__(self, world: World, deaths: Deaths) -> None:
        super().__init__(world)
        self.deaths = deaths
        self.refuses = False
        self.void: dict[float, BatchIdentity] = {}
        self.bodies: dict[BatchIdentity, bytes] = {}
        self.answer = self._answer  # type: ignore[assignment]  # of the same form

    def _answer(self, identity: BatchIdentity, body: bytes) -> object:
        assert self.bodies.setdefault(identity, body) == body, "the same bytes each time"
        if self.refuses:
            return error(413, "too_large")
        if 1.0 in values(body) and self.void.setdefault(1.0, identity) == identity:
            self.deaths.steps = self.deaths.steps or 0
            return error(410, "identity_void")
        return None


def test_a_batch_that_is_void_again_and_again_waits_longer_each_time_and_holds_up_no_other() -> None:
    async def scenario(world: World) -> None:
        gateway, disk = VirtualGateway(world), SimulatedSpoolDisk(world)
        gateway.answer = lambda _, body: error(410, "identity_void") if values(body) == [1.0] else None
        async with virtual_agent(world, disk, gateway) as agent:
            await agent.add_samples([sample(1)])
            await agent.flush(HOUR)
            assert 10 < agent.counts.requeued < 50
            await agent.add_samples([sample(2)])
            await world.clock.sleep(60)
            assert gateway.values() == [2.0]
            gateway.answer = lambda _, __: None
            assert (await agent.flush(HOUR)).is_accepted
        assert gateway.values() == [1.0, 2.0]

    in_virtual_time(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
@pytest.mark.parametrize("is_parked", [False, True], ids=["waiting", "parked"])
def test_the_records_of_a_void_batch_are_accepted_once_wherever_the_agent_dies(
    power: bool,  # noqa: FBT001 - a parameter of the test
    is_parked: bool,  # noqa: FBT001 - see above
) -> None:
    async def scenario(world: World, at: int) -> bool:
        deaths = Deaths(world, at=at, power=power)
        gateway = VoidingGateway(world, deaths)
        gateway.refuses = is_parked
        promised: set[float] = set()

        async def give(agent: Agent, *given: float) -> None:
            await agent.add_samples([sample(value) for value in given])
            promised.update(given)

        async def first() -> None:
            async with virtual_agent(world, deaths.disk, gateway) as agent:
                await give(agent, 1, 2)
                await agent.flush(60)
                gateway.refuses = False
                await give(agent, 3)
                await world.clock.sleep(2 * HOUR)

        async def second() -> None:
            async with virtual_agent(world, deaths.disk, gateway) as agent:
                await give(agent, 4)
                await world.clock.sleep(HOUR / 2)
                assert (await agent.flush(60)).is_accepted
                assert agent.status().spool.damaged == 0

        deaths.process = world.process("first")
        deaths.process.spawn(first())
        await world.until(deaths.process)
        deaths.process, has_died = None, deaths.has_died
        process = world.process("second")
        process.spawn(second())
        await world.until(process)
        found = gateway.values()
        assert len(set(found)) == len(found), "nothing twice"
        assert promised <= set(found), "nothing lost"
        assert gateway.void[1.0] not in gateway.accepted
        return has_died

    deaths = 0
    for seed in range(effort(1, soak=10)):
        for at in range(100):
            died: list[bool] = []

            async def noted(world: World, at: int = at, died: list[bool] = died) -> None:
                died.append(await scenario(world, at))

            in_virtual_time(noted, seed=seed)
            if died == [False]:
                break
            deaths += 1
        else:
            pytest.fail("there were more steps at which the agent can die")
    assert deaths >= 10, "there are so many writes, flushes and changes of names after a batch is void"
