"""Requests to one SQS queue. Every call blocks. Needs boto3: import this module only where SQS is used."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from lakehead.consume.queues.sqs_errors import explained
from lakehead.consume.queues.sqs_settings import BATCH, LONGEST_POLL_SECONDS, SqsSettings
from lakehead.errors import Misconfigured, Unavailable

ENTRY_ATTEMPTS = 2
"""How often a message of a batch is tried for which SQS, and not the request, was at fault."""


@dataclass(frozen=True, slots=True)
class SqsClient:
    """A queue that was found. Any thread may use it."""

    url: str
    retention: timedelta
    most_receives: int | None
    """After so many receives the queue moves a message to its own dead-letter queue; None: never."""
    _client: Any
    _polling: Any
    """Another client, which has time to wait for messages."""

    @classmethod
    def connect(cls, settings: SqsSettings) -> "SqsClient":
        """Find the queue and read its attributes. Raises `Misconfigured` or `Unavailable`."""
        with _explained_errors(settings.queue):
            session = boto3.session.Session()
            client = _client(session, settings, settings.request_timeout)
            polling = _client(session, settings, settings.request_timeout + LONGEST_POLL_SECONDS)
            url = settings.queue if settings.is_url else client.get_queue_url(QueueName=settings.queue)["QueueUrl"]
            named = ["MessageRetentionPeriod", "RedrivePolicy"]
            found = client.get_queue_attributes(QueueUrl=url, AttributeNames=named)["Attributes"]
            redrive = json.loads(found.get("RedrivePolicy") or "{}")
            most_receives = int(redrive["maxReceiveCount"]) if redrive.get("maxReceiveCount") else None
        return cls(url, timedelta(seconds=int(found["MessageRetentionPeriod"])), most_receives, client, polling)

    def receive(self, most: int, *, visibility: int, wait: int) -> Sequence[Mapping[str, Any]]:
        """Return messages as SQS describes them, at most ten. Times are in seconds."""
        with _explained_errors(self.url):
            found = self._polling.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=min(most, BATCH),
                VisibilityTimeout=visibility,
                WaitTimeSeconds=wait,
                MessageSystemAttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
            )
        messages: Sequence[Mapping[str, Any]] = found.get("Messages", [])
        return messages

    def change_visibility(self, handles: Sequence[str], seconds: Sequence[int]) -> set[int]:
        """Set the visibility timeouts of at most ten messages; return the positions of those for which it failed."""
        entries = [
            {"ReceiptHandle": handle, "VisibilityTimeout": timeout}
            for handle, timeout in zip(handles, seconds, strict=True)
        ]
        return set(self._batch(self._client.change_message_visibility_batch, entries))

    def delete(self, handles: Sequence[str]) -> set[int]:
        """Delete at most ten messages; return the positions of those for which it failed."""
        return set(self._batch(self._client.delete_message_batch, [{"ReceiptHandle": each} for each in handles]))

    def send(self, bodies: Sequence[str], *, unique: str) -> None:
        """Enqueue at most ten messages. Raises `Misconfigured` or `Unavailable` if some are not stored.

        `unique` is another text for each call. A FIFO queue drops a message that it had within five minutes, unless it
        has another id; and the messages of a group come one by one, so each has a group of its own.
        """
        entries = [{"MessageBody": each} for each in bodies]
        if self.url.endswith(".fifo"):
            for number, each in enumerate(entries):
                each["MessageGroupId"] = each["MessageDeduplicationId"] = f"{unique}-{number}"
        failed = self._batch(self._client.send_message_batch, entries)
        for entry in failed.values():
            problem = f"The queue {self.url} did not take a message ({entry['Code']}: {entry.get('Message', '')})."
            raise (Misconfigured(problem) if entry["SenderFault"] else Unavailable(f"{problem} Try again later."))

    def close(self) -> None:
        """Close connections that are not in use."""
        self._client.close()
        self._polling.close()

    def _batch(
        self, request: Callable[..., Mapping[str, Any]], entries: Sequence[Mapping[str, Any]]
    ) -> dict[int, Mapping[str, Any]]:
        """Send entries in one request, again those for which SQS was at fault; return the failures by position."""
        left = {str(number): entry for number, entry in enumerate(entries)}
        failed: dict[int, Mapping[str, Any]] = {}
        for attempt in range(1, ENTRY_ATTEMPTS + 1):
            with _explained_errors(self.url):
                answer = request(QueueUrl=self.url, Entries=[{"Id": name, **entry} for name, entry in left.items()])
            found = {each["Id"]: each for each in answer.get("Failed", [])}
            last = attempt == ENTRY_ATTEMPTS
            failed |= {int(name): each for name, each in found.items() if last or each["SenderFault"]}
            left = {name: left[name] for name, each in found.items() if not each["SenderFault"]}
            if not left:
                break
        return failed


def _client(session: Any, settings: SqsSettings, read_timeout: float) -> Any:
    return session.client(
        "sqs",
        endpoint_url=settings.effective_endpoint,
        region_name=settings.effective_region,
        aws_access_key_id=settings.credentials.get("access_key_id"),
        aws_secret_access_key=settings.credentials.get("secret_access_key"),
        aws_session_token=settings.credentials.get("session_token"),
        config=Config(
            connect_timeout=settings.connect_timeout,
            read_timeout=read_timeout,
            retries={"total_max_attempts": settings.attempts, "mode": "standard"},
            max_pool_connections=settings.requests_at_once,
        ),
    )


@contextmanager
def _explained_errors(queue: str) -> Iterator[None]:
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise explained(error, queue) from error
    except ValueError as error:  # such as an endpoint that is no URL
        raise Misconfigured(f"The queue {queue} cannot be used ({error}). Correct its settings.") from error
