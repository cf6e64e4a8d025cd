"""Queues in memory: what simulations rely on beyond the suite of all queues."""

from datetime import timedelta
from random import Random

from lakehead.consume.queues.delivery_table import DeliveryTable
from lakehead.consume.queues.memory_queue import MemoryMessages, MemoryQueue
from tests.support.simulation import World

MINUTE = timedelta(minutes=1)
NOW = timedelta(0)


def test_messages_come_in_the_order_of_sending_without_randomness_and_shuffled_with_it() -> None:
    world = World(1)
    sent = [str(number).encode() for number in range(50)]

    async def order(random: Random | None) -> list[bytes]:
        messages = MemoryMessages(world.clock, random=random)
        messages.send(sent)
        return [each.body for each in await MemoryQueue(messages).receive(50, visibility=MINUTE, wait=NOW)]

    async def test() -> None:
        assert await order(None) == sent
        shuffled = await order(Random(1))
        assert shuffled != sent
        assert sorted(shuffled) == sorted(sent)

    world.loop.simulate(test())


def test_some_deliveries_end_too_early_and_then_the_receipt_of_the_first_is_stale() -> None:
    world = World(1)

    async def test() -> None:
        messages = MemoryMessages(world.clock, random=Random(3), early_chance=0.5)
        messages.send([b"x"] * 100)
        queue = MemoryQueue(messages)
        first = list(await queue.receive(100, visibility=MINUTE, wait=NOW))
        await world.clock.sleep(59)
        again = list(await queue.receive(100, visibility=MINUTE, wait=NOW))

        assert 20 < len(again) < 80
        failed = list(await queue.acknowledge(first))
        assert {each.id for each in failed} == {each.id for each in again}
        await queue.close()

    world.loop.simulate(test())


def test_a_message_older_than_the_retention_is_gone() -> None:
    world = World(1)

    async def test() -> None:
        messages = MemoryMessages(world.clock, retention=timedelta(hours=1))
        messages.send([b"old"])
        await world.clock.sleep(3_599)
        messages.send([b"new"])
        await world.clock.sleep(2)

        found = await MemoryQueue(messages).receive(10, visibility=MINUTE, wait=NOW)
        assert [each.body for each in found] == [b"new"]

    world.loop.simulate(test())


def test_a_thousand_extensions_leave_nothing_in_memory() -> None:
    world = World(1)

    async def test() -> None:
        table = DeliveryTable(world.clock)
        table.add("a", b"")
        held = table.take(1, MINUTE)
        for _ in range(1_000):
            await world.clock.sleep(1)
            assert not table.extend(held, MINUTE)
        assert len(table._waiting) < 100
        assert not table.take(1, MINUTE)
        await world.clock.sleep(60)
        [again] = table.take(1, MINUTE)
        assert again.deliveries == 2

    world.loop.simulate(test())
