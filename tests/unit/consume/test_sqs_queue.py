"""SQS: settings, what its errors mean, and the times that SQS does not tell."""

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ReadTimeoutError,
)

from lakehead.buffer.errors import InvalidCall
from lakehead.clock import SystemClock
from lakehead.consume.messages import announced
from lakehead.consume.objects import MessageFormat, NotUnderstood
from lakehead.consume.queues.sqs_errors import explained
from lakehead.consume.queues.sqs_queue import SqsQueue
from lakehead.consume.queues.sqs_settings import SqsSettings
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.ids import RandomIds
from lakehead.run.consume_pipelines import receives_warning
from tests.support.async_tests import async_test

MINUTE = timedelta(minutes=1)
NOW = timedelta(0)


class MovedClock(SystemClock):
    """The machine's clock, which a test moves on."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class Client:
    """A queue that always delivers and does what it is told."""

    url = "https://sqs.eu-west-1.amazonaws.com/1/q"
    retention = timedelta(days=4)
    most_receives: int | None = None

    def __init__(self) -> None:
        self.timeouts: list[int] = []
        self.batches: list[int] = []
        self.names: list[str] = []

    def receive(self, most: int, **_: int) -> Sequence[dict[str, Any]]:
        return [{"MessageId": str(n), "ReceiptHandle": str(n), "Body": "b"} for n in range(most)]

    def change_visibility(self, _handles: Sequence[str], seconds: Sequence[int]) -> set[int]:
        self.timeouts += seconds
        return set()

    def delete(self, handles: Sequence[str]) -> set[int]:
        self.batches.append(len(handles))
        return {0}

    def send(self, bodies: Sequence[str], *, unique: str) -> None:
        assert unique not in self.names
        self.names.append(unique)
        self.batches.append(len(bodies))

    def close(self) -> None:
        pass


def a_queue() -> tuple[SqsQueue, Client, MovedClock]:
    client, clock = Client(), MovedClock()
    return SqsQueue(client, SqsSettings(queue="q"), clock, RandomIds()), client, clock  # type: ignore[arg-type]  # its shape


@pytest.mark.parametrize(
    ("settings", "region", "endpoint"),
    [
        (SqsSettings(queue="orders"), None, None),
        (SqsSettings(queue="orders", region="eu-west-1", endpoint="http://e"), "eu-west-1", "http://e"),
        (SqsSettings(queue="https://sqs.eu-central-1.amazonaws.com/123/orders"), "eu-central-1", None),
        (SqsSettings(queue="https://sqs.cn-north-1.amazonaws.com.cn/123/orders"), "cn-north-1", None),
        (SqsSettings(queue="https://eu-west-1.queue.amazonaws.com/123/orders"), "eu-west-1", None),
        (SqsSettings(queue="http://127.0.0.1:4566/000/orders"), None, "http://127.0.0.1:4566"),
    ],
)
def test_a_url_tells_region_or_endpoint(settings: SqsSettings, region: str | None, endpoint: str | None) -> None:
    assert (settings.effective_region, settings.effective_endpoint) == (region, endpoint)


def test_all_errors_of_settings_are_told_at_once_and_secrets_never() -> None:
    with pytest.raises(Misconfigured, match=r"attempts is 0.*queue is empty.*unknown name 'key'"):
        SqsSettings(queue="", attempts=0, credentials={"key": "secret"})
    assert "secret" not in repr(SqsSettings(queue="q", credentials={"secret_access_key": "secret"}))


@async_test
async def test_without_boto3_people_are_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lakehead.consume.queues.sqs_client", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)

    with pytest.raises(Misconfigured, match=r"needs boto3\. Install lakehead\[sqs\]"):
        await SqsQueue.open(SqsSettings(queue="q"), SystemClock())


def answer(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "said"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "x"
    )


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (answer("AWS.SimpleQueueService.NonExistentQueue", 400), Misconfigured, "does not exist"),
        (answer("QueueDoesNotExist", 400), Misconfigured, "Check its name or URL"),
        (answer("AccessDenied", 403), Misconfigured, "Allow these credentials sqs:GetQueueUrl"),
        (answer("AccessDeniedException", 400), Misconfigured, "refuses access"),
        (answer("InvalidClientTokenId", 403), Misconfigured, "Renew or correct them"),
        (answer("ExpiredToken", 403), Misconfigured, "Renew or correct them"),
        (answer("InvalidParameterValue", 400), Misconfigured, "InvalidParameterValue: said"),
        (answer("RequestThrottled", 403), Unavailable, "Try again later"),
        (answer("ThrottlingException", 400), Unavailable, "Try again later"),
        (answer("OverLimit", 403), Unavailable, "Try again later"),
        (answer("", 503), Unavailable, "Try again later"),
        (EndpointConnectionError(endpoint_url="http://e"), Unavailable, "does not respond"),
        (ConnectTimeoutError(endpoint_url="http://e"), Unavailable, "does not respond"),
        (ReadTimeoutError(endpoint_url="http://e"), Unavailable, "does not respond"),
        (NoCredentialsError(), Misconfigured, "AWS_ACCESS_KEY_ID"),
        (NoRegionError(), Misconfigured, "Set its region"),
    ],
)
def test_an_error_says_what_to_do(error: Any, kind: type[LakeheadError], words: str) -> None:
    told = explained(error, "q")

    assert type(told) is kind
    assert words in str(told)


@async_test
async def test_a_message_stays_invisible_for_12_hours_at_most() -> None:
    queue, client, clock = a_queue()
    messages = await queue.receive(1, visibility=timedelta(hours=20), wait=NOW)

    clock.ahead += 11.5 * 3600
    assert not await queue.extend(messages, timedelta(hours=2))
    assert 1_790 < client.timeouts[-1] <= 1_800
    clock.ahead += 1_800
    assert await queue.extend(messages, MINUTE) == messages


@async_test
async def test_a_message_whose_time_is_over_counts_as_failed_whatever_sqs_says() -> None:
    queue, client, clock = a_queue()
    first, second, third = await queue.receive(3, visibility=MINUTE, wait=NOW)
    assert not await queue.extend([third], timedelta(hours=1))
    clock.ahead += 61

    assert await queue.extend([first, second, third], MINUTE) == [first, second]
    assert await queue.acknowledge([third, second]) == [third, second]  # the server refuses the first of a batch
    assert client.batches == [2]


@async_test
async def test_bodies_are_sent_ten_at_a_time_and_not_too_many_bytes() -> None:
    queue, client, _ = a_queue()
    await queue.send([b"small"] * 12 + [b"x" * 200_000] * 3)

    assert sorted(client.batches) == [1, 1, 3, 10]
    for body in (b"", b"\xff"):
        with pytest.raises(InvalidCall):
            await queue.send([body])


@async_test
async def test_a_body_that_is_no_unicode_is_delivered_and_not_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, client, _ = a_queue()
    odd = [{"MessageId": "1", "ReceiptHandle": "1", "Body": "s3://bucket/\ud800"}]
    monkeypatch.setattr(client, "receive", lambda *_, **__: odd)

    [message] = await queue.receive(1, visibility=MINUTE, wait=NOW)

    with pytest.raises(NotUnderstood, match="not UTF-8"):
        announced(message.body, MessageFormat.AUTO)


@pytest.mark.parametrize(("most", "warned"), [(None, False), (5, True), (99, True), (100, False)])
def test_a_queue_that_takes_messages_away_early_is_told_of(most: int | None, warned: bool) -> None:  # noqa: FBT001 - a column of the table
    queue, _, _ = a_queue()
    queue.most_receives = most

    assert ("maxReceiveCount" in (receives_warning(queue) or "")) is warned
