"""SQS on a real server: what it does beyond the suite of all queues."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakehead.clock import SystemClock
from lakehead.consume.queue import Message
from lakehead.consume.queues.sqs_queue import SqsQueue
from lakehead.errors import Misconfigured, Unavailable
from tests.faults.proxy import Fault, Request, answer, loopback, proxy
from tests.servers.sqs import SqsServer
from tests.support.async_tests import async_test

MINUTE = timedelta(minutes=1)
NOW = timedelta(0)
A_SECOND = timedelta(seconds=1)
LONG_POLL = timedelta(seconds=20)


async def received(queue: SqsQueue, count: int) -> Sequence[Message]:
    found: list[Message] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found += await queue.receive(count - len(found), visibility=MINUTE, wait=A_SECOND)
    return found


def requests_of(queue: SqsQueue) -> Counter[str]:
    """Count the requests of a queue by operation."""
    counts: Counter[str] = Counter()
    on_each_request(queue, lambda name: counts.update([name]))
    return counts


def on_each_request(queue: SqsQueue, action: Callable[[str], object]) -> None:
    """Call a function with the name of each operation, in the thread of its request."""

    def act(model: Any, **_: Any) -> None:
        action(model.name)

    for client in (queue._client._client, queue._client._polling):
        client.meta.events.register("before-call.sqs", act)


@async_test
async def test_a_queue_is_found_by_name_or_url_and_tells_how_long_it_keeps_messages(sqs_server: SqsServer) -> None:
    settings = sqs_server.settings(sqs_server.new_queue(MessageRetentionPeriod="86400"))
    by_name = await SqsQueue.open(settings, SystemClock())
    by_url = await SqsQueue.open(replace(settings, queue=by_name.name, endpoint=""), SystemClock())
    await by_name.send([b"x"])

    assert by_name.retention == by_url.retention == timedelta(days=1)
    assert [each.body for each in await received(by_url, 1)] == [b"x"]
    await by_name.close()
    await by_url.close()


@async_test
async def test_a_queue_tells_when_it_takes_messages_away(sqs_server: SqsServer) -> None:
    arn = f"arn:aws:sqs:us-east-1:000000000000:{sqs_server.new_queue()}"
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
    limits = []
    for attributes in ({"RedrivePolicy": policy}, {}):
        queue = await SqsQueue.open(sqs_server.settings(sqs_server.new_queue(**attributes)), SystemClock())
        limits.append(queue.most_receives)
        await queue.close()

    assert limits == [3, None]


@async_test
async def test_a_fifo_queue_takes_the_same_message_again_at_once(sqs_server: SqsServer) -> None:
    name = sqs_server.new_queue(suffix=".fifo", FifoQueue="true", ContentBasedDeduplication="true")
    queue = await SqsQueue.open(sqs_server.settings(name), SystemClock())
    for _ in range(2):
        await queue.send([b"x", b"x"])

    assert [each.body for each in await received(queue, 4)] == [b"x"] * 4
    await queue.close()


@async_test
async def test_no_such_queue_is_for_people_to_correct(sqs_server: SqsServer) -> None:
    with pytest.raises(Misconfigured, match="does not exist"):
        await SqsQueue.open(sqs_server.settings("nobody-made-it"), SystemClock())


@async_test
async def test_a_refused_connection_is_unavailable(sqs_server: SqsServer) -> None:
    with pytest.raises(Unavailable, match="does not respond"):
        await SqsQueue.open(sqs_server.settings("any", port=1), SystemClock())


@async_test
async def test_refused_credentials_are_for_people_to_correct(sqs_server: SqsServer) -> None:
    async def refuse(_: Request) -> bytes:
        return answer(403, b'{"__type": "com.amazonaws.sqs#InvalidClientTokenId", "message": "The token is invalid."}')

    async with loopback(refuse) as endpoint:
        with pytest.raises(Misconfigured, match="does not accept these credentials"):
            await SqsQueue.open(replace(sqs_server.settings("any"), endpoint=endpoint), SystemClock())


@async_test
async def test_many_messages_take_a_request_for_each_ten(sqs_server: SqsServer) -> None:
    queue = await SqsQueue.open(sqs_server.settings(sqs_server.new_queue()), SystemClock())
    counts = requests_of(queue)
    await queue.send([str(number).encode() for number in range(60)])
    held = await queue.receive(60, visibility=MINUTE, wait=A_SECOND)

    assert len(held) == 60
    assert not await queue.extend(held, MINUTE)
    assert not await queue.acknowledge(held)
    assert counts["SendMessageBatch"] == counts["ChangeMessageVisibilityBatch"] == counts["DeleteMessageBatch"] == 6
    assert counts["ReceiveMessage"] <= 8
    await queue.close()


@async_test
async def test_a_request_that_is_lost_is_tried_again_where_settings_say_so(sqs_server: SqsServer) -> None:
    async with proxy(f"http://127.0.0.1:{sqs_server.port}") as between:
        settings = replace(sqs_server.settings(sqs_server.new_queue()), endpoint=between.endpoint, attempts=2)
        queue = await SqsQueue.open(settings, SystemClock())
        await queue.send([b"x"])
        held = await received(queue, 1)

        between.script("POST", [Fault.UNAVAILABLE])
        assert not await queue.acknowledge(held)
        await queue.close()


@async_test
async def test_what_a_cancelled_or_closed_call_receives_too_late_is_given_back(sqs_server: SqsServer) -> None:
    settings = sqs_server.settings(sqs_server.new_queue())
    ours, other = await SqsQueue.open(settings, SystemClock()), await SqsQueue.open(settings, SystemClock())
    polled = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_each_request(ours, lambda name: name == "ReceiveMessage" and loop.call_soon_threadsafe(polled.set))
    for end in ("cancel", "close"):
        polled.clear()
        waiting = asyncio.create_task(ours.receive(1, visibility=timedelta(hours=1), wait=LONG_POLL))
        async with asyncio.timeout(10):
            await polled.wait()
        if end == "cancel":
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            await ours.close()
            assert not await waiting

        await other.send([end.encode()])  # the request that nobody waits for takes it first
        again = await received(other, 1)
        assert again[0].body == end.encode()
        assert not await other.acknowledge(again)
    await other.close()
