"""Notifications of S3 become events of a reconciler; what is not understood is told and does not come again."""

import json
from collections.abc import Sequence
from datetime import timedelta

import pytest

from lakehead.consume.queue import Message
from lakehead.errors import Unavailable
from lakehead.run.reconcile_events import QueuedEvents
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import async_test

KEY = keys.accepted(BatchIdentity("agent-a", "boot 1", 10, 20))


class Queue:
    name = "https://sqs.eu-central-1.amazonaws.com/1/accepted"
    retention = longest_visibility = None
    forgets = True

    def __init__(self, *bodies: bytes) -> None:
        self.messages = [Message(id=str(number), body=body) for number, body in enumerate(bodies)]
        self.acknowledged: list[Message] = []
        self.refuses = False

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        assert visibility > wait
        return self.messages[:most]

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        raise AssertionError((messages, visibility))

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        self.acknowledged += messages
        return messages if self.refuses else ()

    async def close(self) -> None:
        pass


def notification(*created: str, bucket: str = "lake") -> bytes:
    records = [
        {
            "eventSource": "aws:s3",
            "eventVersion": "2.1",
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": bucket}, "object": {"key": key.replace("=", "%3D"), "size": 5}},
        }
        for key in created
    ]
    return json.dumps({"Records": records}).encode()


@pytest.mark.parametrize(("url", "prefix"), [("s3://lake", ""), ("s3://lake/prod/eu", "prod/eu/")])
@async_test
async def test_the_keys_of_the_authority_s_store_are_told_relative_to_it(
    url: str, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue(
        notification(prefix + KEY, prefix + "raw-blobs/v1/x"),
        notification(prefix + KEY, bucket="other"),
        notification("elsewhere/" + KEY) if prefix else notification(KEY, bucket="lake2"),
        b'{"Event": "s3:TestEvent"}',
        b"{nonsense",
    )
    events = QueuedEvents(queue, url)

    received = await events.receive()
    await events.acknowledge(received)

    assert [each.keys for each in received] == [(KEY, "raw-blobs/v1/x"), (), (), (), ()]
    assert queue.acknowledged == queue.messages
    assert "The message 4 of" in caplog.text


@async_test
async def test_an_acknowledgement_that_is_refused_is_an_error() -> None:
    queue = Queue(notification(KEY))
    queue.refuses = True
    events = QueuedEvents(queue, "s3://lake")

    with pytest.raises(Unavailable, match="come again"):
        await events.acknowledge(await events.receive())
