"""What every queue promises, on every kind of queue."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from lakehead.consume.queue import Message, Queue, SendingQueue
from lakehead.errors import LakeheadError, Unavailable
from tests.support.queue_kinds import (
    LONG,
    FileListKind,
    FolderKind,
    ManifestKind,
    MemoryKind,
    NatsKind,
    QueueKind,
    SqsKind,
)

KINDS = ("memory", "sqs", "manifest", "folder", "file_list", "nats")
NOW = timedelta(0)
A_SECOND = timedelta(seconds=1)


@pytest.fixture(params=KINDS)
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> QueueKind:
    """A new queue of each kind."""
    makers: dict[str, Callable[[], QueueKind]] = {
        "memory": MemoryKind,
        "sqs": lambda: SqsKind(request.getfixturevalue("sqs_server")),
        "manifest": ManifestKind,
        "folder": FolderKind,
        "file_list": FileListKind,
        "nats": lambda: NatsKind(request.getfixturevalue("nats_server"), tmp_path),
    }
    return makers[request.param]()


def queue_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in the time of its queue, and close its consumers."""

    @wraps(test)
    def run(*, queues: QueueKind, **arguments: Any) -> None:
        async def closing() -> None:
            try:
                await test(queues=queues, **arguments)
            finally:
                await queues.close()

        queues.run(closing())

    return run


def gap(kinds: str, reason: str) -> pytest.MarkDecorator:
    """The kinds that do not keep this promise, and why."""
    missing = kinds.split()
    return pytest.mark.parametrize(
        "queues",
        [
            pytest.param(kind, marks=pytest.mark.xfail(reason=reason, strict=True)) if kind in missing else kind
            for kind in KINDS
        ],
        indirect=True,
    )


NO_BROKER = "nothing stands between two processes that list the same files; shards decide who reads one"
NAMES_FILES = "the body of a message is the name of an object"


def bodies(messages: list[Message]) -> list[bytes]:
    return sorted(message.body for message in messages)


@queue_test
async def test_every_message_is_received(queues: QueueKind) -> None:
    sent = await queues.send(25)
    queue = await queues.consumer()

    assert bodies(await queues.received(queue, 25)) == sorted(sent)


@queue_test
async def test_a_received_message_is_invisible(queues: QueueKind) -> None:
    await queues.send(1)
    queue = await queues.consumer()
    await queues.received(queue, 1)

    assert await queues.nothing_is_left(queue)


@gap("folder file_list", NO_BROKER)
@queue_test
async def test_a_received_message_is_invisible_to_other_consumers(queues: QueueKind) -> None:
    await queues.send(1)
    await queues.received(await queues.consumer(), 1)

    assert await queues.nothing_is_left(await queues.consumer())


@queue_test
async def test_a_message_is_delivered_again_when_its_visibility_timeout_is_over(queues: QueueKind) -> None:
    sent = await queues.send(1)
    queue = await queues.consumer()
    [first] = await queues.received(queue, 1, visibility=queues.short)
    [again] = await queues.received(queue, 1)

    assert [again.body] == sent
    assert again.id == first.id
    assert (first.deliveries, again.deliveries) == (1, 2)
    assert not await queue.acknowledge([again])


@queue_test
async def test_an_extended_message_stays_invisible(queues: QueueKind) -> None:
    await queues.send(1)
    queue = await queues.consumer()
    held = await queues.received(queue, 1, visibility=queues.short)

    assert not await queue.extend(held, LONG)
    await queues.short_passes()
    assert await queues.nothing_is_left(queue)
    assert not await queue.acknowledge(held)


@queue_test
async def test_a_message_extended_by_nothing_is_visible_at_once(queues: QueueKind) -> None:
    sent = await queues.send(1)
    queue = await queues.consumer()
    held = await queues.received(queue, 1)

    assert not await queue.extend(held, NOW)
    assert bodies(await queues.received(queue, 1)) == sent


@gap("folder file_list", NO_BROKER)
@queue_test
async def test_a_message_that_is_given_back_goes_to_another_consumer(queues: QueueKind) -> None:
    sent = await queues.send(1)
    first, second = await queues.consumer(), await queues.consumer()
    held = await queues.received(first, 1)
    assert await queues.nothing_is_left(second)

    assert not await first.extend(held, NOW)
    assert bodies(await queues.received(second, 1)) == sent


@queue_test
async def test_an_acknowledged_message_never_comes_again(queues: QueueKind) -> None:
    await queues.send(3)
    queue = await queues.consumer()
    held = await queues.received(queue, 3, visibility=queues.short)

    assert not await queue.acknowledge(held)
    await queues.short_passes()
    assert await queues.nothing_is_left(queue)


@queue_test
async def test_acknowledging_twice_is_harmless(queues: QueueKind) -> None:
    await queues.send(2)
    queue = await queues.consumer()
    held = await queues.received(queue, 2, visibility=LONG)
    assert not await queue.acknowledge(held[:1])

    await queue.acknowledge(held[:1])
    assert not await queue.acknowledge(held[1:])
    assert await queues.nothing_is_left(queue)


@queue_test
async def test_a_stale_receipt_fails_and_disturbs_nobody(queues: QueueKind) -> None:
    await queues.send(1)
    queue = await queues.consumer()
    stale = await queues.received(queue, 1, visibility=queues.short)
    held = await queues.received(queue, 1)

    assert await queue.extend(stale, NOW) == stale
    assert await queue.extend(stale, LONG) == stale
    assert await queue.acknowledge(stale) == stale
    assert await queues.nothing_is_left(queue)
    assert not await queue.extend(held, LONG)
    assert not await queue.acknowledge(held)


@queue_test
async def test_many_messages_are_received_extended_and_acknowledged_at_once(queues: QueueKind) -> None:
    sent = await queues.send(35)
    queue = await queues.consumer()
    stale = await queues.received(queue, 1, visibility=queues.short)
    await queues.short_passes()
    held = await queues.received(queue, 35)

    assert bodies(held) == sorted(sent)
    assert await queue.extend([*held[:20], *stale, *held[20:]], LONG) == stale
    assert await queue.acknowledge([*held[:20], *stale, *held[20:30]]) == stale
    assert not await queue.extend(held[30:], NOW)
    assert bodies(await queues.received(queue, 5)) == bodies(held[30:])


@queue_test
async def test_nothing_to_extend_or_acknowledge_is_no_error(queues: QueueKind) -> None:
    queue = await queues.consumer()

    assert not await queue.extend([], LONG)
    assert not await queue.acknowledge([])


@queue_test
async def test_an_empty_queue_answers_after_the_wait(queues: QueueKind) -> None:
    queue = await queues.consumer()
    began = queues.clock.monotonic()

    assert not await queue.receive(10, visibility=LONG, wait=NOW)
    assert not await queue.receive(10, visibility=LONG, wait=A_SECOND)
    assert queues.clock.monotonic() - began >= 0.99


@gap("file_list", "its listing is over by then")
@queue_test
async def test_a_message_that_is_sent_meanwhile_ends_the_wait(queues: QueueKind) -> None:
    queue = await queues.consumer()
    waiting = asyncio.create_task(queue.receive(1, visibility=LONG, wait=timedelta(seconds=19)))
    await queues.clock.sleep(0.1)

    assert await queues.send(1) == [message.body for message in await waiting]


@gap("manifest folder file_list", NAMES_FILES)
@queue_test
async def test_bodies_come_as_they_were_sent(queues: QueueKind) -> None:
    texts = [
        "ein Gruß 🌊 und\nnoch einer",
        json.dumps({"Records": [{"s3": {"object": {"key": "a+b"}}}]}),
        "x" * 100_000,
    ]
    await queues.send_bodies([text.encode() for text in texts])
    queue = await queues.consumer()

    received = await queues.received(queue, 3)
    assert bodies(received) == sorted(text.encode() for text in texts)
    assert all(message.sent_at is not None for message in received)


@gap("sqs manifest folder file_list", "SQS takes no empty message, and elsewhere a body is a name")
@queue_test
async def test_a_body_may_be_empty(queues: QueueKind) -> None:
    await queues.send_bodies([b""])

    assert bodies(await queues.received(await queues.consumer(), 1)) == [b""]


@gap("folder file_list", NO_BROKER)
@queue_test
async def test_two_consumers_never_hold_the_same_message(queues: QueueKind) -> None:
    sent = await queues.send(40)
    consumers = [await queues.consumer(), await queues.consumer()]
    held: list[Message] = []

    async def drain(queue: Queue) -> None:
        while len(held) < len(sent):
            held.extend(await queue.receive(3, visibility=LONG, wait=queues.look))
            await queues.clock.sleep(0.001)  # the other's turn

    await asyncio.gather(*map(drain, consumers))

    assert bodies(held) == sorted(sent)


@queue_test
async def test_closing_ends_a_waiting_call(queues: QueueKind) -> None:
    queue = await queues.consumer()
    waiting = asyncio.create_task(queue.receive(1, visibility=LONG, wait=timedelta(seconds=20)))
    await queues.clock.sleep(0.1)
    began = queues.clock.monotonic()
    await queue.close()

    assert not await waiting
    assert queues.clock.monotonic() - began < 2
    with pytest.raises(LakeheadError, match="is closed"):
        await queue.receive(1, visibility=LONG, wait=NOW)


@queue_test
async def test_what_a_closed_consumer_held_is_delivered_again(queues: QueueKind) -> None:
    sent = await queues.send(2)
    first = await queues.consumer()
    held = await queues.received(first, 2, visibility=queues.short)
    assert not await first.acknowledge(held[:1])
    await first.close()

    again = await queues.received(await queues.consumer(), 1)
    assert again[0].body in sent


@gap("memory", "it has no server")
@queue_test
async def test_an_unreachable_server_is_unavailable(queues: QueueKind) -> None:
    await queues.send(1)
    async with queues.unreachable() as queue:
        with pytest.raises(Unavailable):
            await queue.receive(1, visibility=LONG, wait=NOW)


@gap("folder file_list", "files are written, not sent")
@queue_test
async def test_what_is_sent_by_a_consumer_is_received(queues: QueueKind) -> None:
    queue = await queues.consumer()
    assert isinstance(queue, SendingQueue)
    await queue.send([f"lost/{number}.json".encode() for number in range(12)])

    received = bodies(await queues.received(queue, 12))
    assert sorted({body.partition(b"#")[0] for body in received}) == sorted(
        f"lost/{n}.json".encode() for n in range(12)
    )


@queue_test
async def test_a_queue_says_what_it_is(queues: QueueKind) -> None:
    queue = await queues.consumer()

    assert queue.name
    assert queue.retention is None or queue.retention > timedelta(hours=1)
    assert queue.longest_visibility is None or queue.longest_visibility >= LONG
    assert queue.forgets is not isinstance(queues, FolderKind | FileListKind)
