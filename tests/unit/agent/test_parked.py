"""Parked batches are offered again: when the agent starts and every hour that it runs, whatever its clock says."""

import asyncio

import httpx
import pytest

from lakehead.agent.alerts import AlertKind
from lakehead.wire.batch_identity import BatchIdentity
from tests.sim.agent_disk import SimulatedSpoolDisk
from tests.support.simulation import World
from tests.unit.agent.agents import sample, values
from tests.unit.agent.support import error
from tests.unit.agent.virtual_agents import HOUR, VirtualGateway, conflict, in_virtual_time, virtual_agent

TOO_LARGE = error(413, "too_large")


def test_a_conflict_is_offered_every_hour_until_an_operator_has_decided() -> None:
    async def scenario(world: World) -> None:
        gateway, disk = VirtualGateway(world), SimulatedSpoolDisk(world)
        gateway.answer = lambda _, body: conflict(body) if values(body) == [1.0] else None
        async with virtual_agent(world, disk, gateway) as agent:
            await agent.add_samples([sample(1)])
            assert len((await agent.flush(60)).parked) == 1
            await world.clock.sleep(3 * HOUR)
            world.clock.jump(-30 * 24 * HOUR)
            await world.clock.sleep(1.5 * HOUR)
            gateway.answer = lambda _, body: conflict(body, "accept_existing")
            assert (len(agent.parked.list()), agent.counts.parked) == (1, {"identity_conflict": 1})

            await world.clock.sleep(HOUR)

            assert (agent.parked.list(), agent.counts.dropped, agent.counts.accepted) == ((), 1, 0)
            assert agent.status().alerts == ()
            await world.clock.sleep(5 * HOUR)
        first, *offers = [at for at, _ in gateway.asked]
        assert first < 5
        assert [round(at / HOUR, 2) for at in offers] == [1, 2, 3, 4, 5]
        assert disk.has("parked") == {}

    in_virtual_time(scenario)


def test_all_that_is_parked_is_offered_when_the_agent_starts() -> None:
    async def scenario(world: World) -> None:
        gateway, disk = VirtualGateway(world), SimulatedSpoolDisk(world)
        gateway.answer = lambda _, __: TOO_LARGE
        async with virtual_agent(world, disk, gateway) as agent:
            for value in range(3):
                await agent.add_samples([sample(value)])
                await agent.flush(60)
        before = len(gateway.asked)
        async with virtual_agent(world, disk, gateway) as agent:
            await world.clock.sleep(10)
            assert len(agent.parked.list()) == 3
            assert sorted(gateway.asked[before:]) == gateway.asked[before:]
            assert len(gateway.asked) == 2 * before
        gateway.answer = lambda _, __: None
        async with virtual_agent(world, disk, gateway) as agent:
            await world.clock.sleep(10)
            assert agent.parked.list() == ()
        assert gateway.values() == [0, 1, 2]

    in_virtual_time(scenario)


def test_an_operator_can_have_them_offered_at_once() -> None:
    async def scenario(world: World) -> None:
        gateway, disk = VirtualGateway(world), SimulatedSpoolDisk(world)
        gateway.answer = lambda _, __: TOO_LARGE
        async with virtual_agent(world, disk, gateway) as agent:
            await agent.add_samples([sample(1)])
            await agent.flush(60)
            await world.clock.sleep(1)
            gateway.answer = lambda _, __: None

            agent.parked.offer_now()
            await world.clock.sleep(1)

            assert (agent.parked.list(), gateway.values()) == ((), [1.0])

    in_virtual_time(scenario)


def test_a_parked_batch_that_became_void_is_sent_under_new_numbers_from_where_it_lies() -> None:
    async def scenario(world: World) -> None:
        gateway, disk = VirtualGateway(world), SimulatedSpoolDisk(world)
        void: set[BatchIdentity] = set()
        gateway.answer = lambda identity, _: error(410, "identity_void") if identity in void else TOO_LARGE
        async with virtual_agent(world, disk, gateway) as agent:
            await agent.add_samples([sample(1)])
            [parked] = (await agent.flush(60)).parked
            void.add(parked.identity)
            await world.clock.sleep(HOUR + 1)
            [again] = agent.parked.list()
            assert again.identity == BatchIdentity(parked.identity.agent_id, parked.identity.boot_id, 1, 1)
            assert (again.number, agent.counts.requeued) == (parked.number, 1)
            assert [each for _, each in gateway.asked] == [parked.identity, parked.identity, again.identity]
            gateway.answer = lambda _, __: None
            await world.clock.sleep(HOUR + 1)
        assert list(gateway.accepted) == [again.identity]

    in_virtual_time(scenario)


def test_one_whose_new_identity_nobody_can_answer_is_offered_again_before_the_hour_is_over() -> None:
    async def scenario(world: World) -> None:
        gateway, disk = VirtualGateway(world), SimulatedSpoolDisk(world)
        gateway.answer = lambda _, __: TOO_LARGE
        async with virtual_agent(world, disk, gateway) as agent:
            await agent.add_samples([sample(1)])
            [parked] = (await agent.flush(60)).parked
            later = iter([error(410, "identity_void"), error(503, "stopping"), None])
            gateway.answer = lambda _, __: next(later)
            await world.clock.sleep(1.4 * HOUR)

            assert agent.parked.list() == ()
        assert [each.seq_start for _, each in gateway.asked] == [0, 0, 1, 1]
        assert [each.boot_id for each in gateway.accepted] == [parked.identity.boot_id]

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    "answer", [error(500, "internal_error"), error(503, "stopping"), httpx.Response(404)], ids=repr
)
def test_one_that_nobody_can_answer_holds_up_no_other(answer: httpx.Response) -> None:
    async def scenario(world: World) -> None:
        gateway, disk = VirtualGateway(world), SimulatedSpoolDisk(world)
        gateway.answer = lambda _, __: TOO_LARGE
        async with virtual_agent(world, disk, gateway) as agent:
            for value in range(3):
                await agent.add_samples([sample(value)])
                await agent.flush(60)
            gateway.answer = lambda _, body: answer if values(body) == [0.0] else None
            await world.clock.sleep(1.5 * HOUR)

            assert gateway.values() == [1, 2]
            assert len(agent.parked.list()) == 1
            await agent.add_samples([sample(9)])
            assert (await agent.flush(60)).waiting == 0
        assert gateway.values() == [1, 2, 9]

    in_virtual_time(scenario)


def test_they_wait_while_no_gateway_can_be_asked_and_are_offered_then() -> None:
    async def scenario(world: World) -> None:
        gateway, disk = VirtualGateway(world), SimulatedSpoolDisk(world)
        gateway.answer = lambda _, __: TOO_LARGE
        async with virtual_agent(world, disk, gateway) as agent:
            await agent.add_samples([sample(1)])
            await agent.flush(60)
            gateway.answer = lambda _, __: error(401, "unauthenticated")
            await agent.add_samples([sample(2)])
            await world.clock.sleep(0.9 * HOUR)
            assert agent.status().paused
            assert [alert.kind for alert in agent.status().alerts] == [AlertKind.PARKED, AlertKind.PAUSED]
            await world.clock.sleep(0.2 * HOUR)
            gateway.answer = lambda _, __: None
            await world.clock.sleep(0.1 * HOUR)

            assert gateway.values() == [1, 2]
            assert agent.status().alerts == ()

    in_virtual_time(scenario)


def test_another_gateway_is_asked_than_the_one_that_refused_it_last() -> None:
    async def scenario(world: World) -> None:
        old, new = VirtualGateway(world, "old"), VirtualGateway(world, "new")
        disk = SimulatedSpoolDisk(world)
        old.answer = new.answer = lambda _, __: error(400, "newer_format")
        async with virtual_agent(world, disk, old, new) as agent:
            await agent.add_samples([sample(1)])
            await agent.flush(60)
            await world.clock.sleep(3.5 * HOUR)
        assert (len(old.asked), len(new.asked)) in ((2, 2), (3, 1), (1, 3))
        assert old.asked
        assert new.asked

    in_virtual_time(scenario)


def test_what_is_dropped_while_it_is_offered_is_gone() -> None:
    async def scenario(world: World) -> None:
        gateway, disk = VirtualGateway(world), SimulatedSpoolDisk(world)
        gateway.answer = lambda _, __: TOO_LARGE
        async with virtual_agent(world, disk, gateway) as agent:
            await agent.add_samples([sample(1)])
            [parked] = (await agent.flush(60)).parked
            await world.clock.sleep(1)
            agent.parked.offer_now()
            await asyncio.gather(world.clock.sleep(0.005), agent.parked.drop([parked.number]))
            await world.clock.sleep(1)
            assert agent.parked.list() == ()
            assert disk.has("parked") == {}

    for seed in range(20):
        in_virtual_time(scenario, seed=seed)
