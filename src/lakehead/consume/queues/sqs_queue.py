"""An SQS queue, by boto3."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lakehead.buffer.errors import InvalidCall
from lakehead.clock import Clock
from lakehead.consume.queue import Message
from lakehead.consume.queues.daemon_pool import DaemonPool
from lakehead.consume.queues.sqs_settings import (
    BATCH,
    LONGEST_POLL_SECONDS,
    LONGEST_VISIBILITY_SECONDS,
    SEND_BYTES,
    SqsSettings,
)
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.ids import Ids, RandomIds

if TYPE_CHECKING:
    from lakehead.consume.queues.sqs_client import SqsClient

T = TypeVar("T")

CLOSE_SECONDS = 1.0
"""How long `close` waits for requests that give messages back."""


@dataclass(slots=True)
class _Delivery:
    """What we know of one delivery: its receipt. Times are of the monotonic clock."""

    handle: str
    received_at: float
    invisible_until: float


class SqsQueue:
    """One consumer of an SQS queue, made by `SqsQueue.open`.

    Times are rounded up to whole seconds, as SQS has them. A message whose visibility timeout is over by our clock
    counts as failed when it is extended or acknowledged: another consumer may have it, and SQS does not tell. It is
    deleted all the same if no other has it. A message that a cancelled or closed `receive` gets too late is given back.
    """

    longest_visibility: timedelta | None = timedelta(seconds=LONGEST_VISIBILITY_SECONDS)
    forgets = True

    def __init__(self, client: "SqsClient", settings: SqsSettings, clock: Clock, ids: Ids) -> None:
        """Use `open` instead, which finds the queue first."""
        self.name = client.url
        self.retention: timedelta | None = client.retention
        self.most_receives = client.most_receives
        self._ids = ids
        self._client = client
        self._clock = clock
        self._polls_at_once = settings.requests_at_once
        # Two pools: a request that waits for messages must not hold up one that extends some.
        self._polls = DaemonPool(settings.requests_at_once, "sqs-receive")
        self._requests = DaemonPool(settings.requests_at_once, "sqs-request")
        self._closing = asyncio.Event()
        self._late_polls: list[Future[None]] = []
        """Requests for messages that nobody waits for any more. Each is done when what it found is being given back."""
        self._returns: list[Future[set[int]]] = []
        """Requests that give back messages which came too late."""
        self._gave_back = False

    @classmethod
    async def open(cls, settings: SqsSettings, clock: Clock, ids: Ids | None = None) -> Self:
        """Find the queue, and read how long it keeps messages. Raises `Misconfigured` or `Unavailable`."""
        try:
            from lakehead.consume.queues.sqs_client import SqsClient  # noqa: PLC0415 - an extra, not always installed
        except ModuleNotFoundError as error:
            raise Misconfigured(
                f"The queue {settings.queue} is of SQS, which needs {error.name}. Install lakehead[sqs]."
            ) from error
        client = await asyncio.wrap_future(DaemonPool(1, "sqs-open").submit(lambda: SqsClient.connect(settings)))
        return cls(client, settings, clock, ids or RandomIds())

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        """Return messages that are ready; wait up to `wait` for the first.

        A long poll that finds ten is followed by several requests at once, while messages keep coming.
        """
        self._check_open()
        ends = self._clock.monotonic() + wait.total_seconds()
        hidden = min(LONGEST_VISIBILITY_SECONDS, ceil(visibility.total_seconds()))
        found: list[Message] = []
        try:
            while not self._closing.is_set():
                left = max(0.0, ends - self._clock.monotonic())
                await self._poll(min(most, BATCH), hidden, found, wait=min(LONGEST_POLL_SECONDS, ceil(left)))
                if found or self._clock.monotonic() >= ends:
                    break
            more = len(found) == BATCH
            while more and len(found) < most and not self._closing.is_set():
                more = await self._poll_several(most - len(found), hidden, found)
        except asyncio.CancelledError:
            self._make_visible([message.receipt.handle for message in found])
            raise
        return found

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        """Keep messages invisible for `visibility` from now on, at most 12 h after they were received.

        With zero they are visible at once. Returns the messages for which that failed.
        """
        self._check_open()
        now = self._clock.monotonic()
        wanted = ceil(visibility.total_seconds())
        failed = [each for each in messages if _is_overdue(each, now)]
        allowed = [
            (each, min(wanted, int(each.receipt.received_at + LONGEST_VISIBILITY_SECONDS - now)))
            for each in messages
            if not _is_overdue(each, now)
        ]
        sent = [(each, seconds) for each, seconds in allowed if seconds > 0 or not wanted]
        failed += [each for each, seconds in allowed if seconds <= 0 and wanted]

        def change(batch: Sequence[tuple[Message, int]]) -> set[int]:
            handles = [message.receipt.handle for message, _ in batch]
            return self._client.change_visibility(handles, [seconds for _, seconds in batch])

        refused = await self._in_batches(sent, change)
        self._gave_back = self._gave_back or bool(sent and not wanted)
        for position, (message, seconds) in enumerate(sent):
            if position in refused:
                failed.append(message)
            else:
                message.receipt.invisible_until = now + seconds
        return failed

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Delete messages for good. Returns those for which that failed, or may have failed."""
        self._check_open()
        now = self._clock.monotonic()
        refused = await self._in_batches(
            messages, lambda batch: self._client.delete([message.receipt.handle for message in batch])
        )
        return [each for position, each in enumerate(messages) if position in refused or _is_overdue(each, now)]

    async def send(self, bodies: Sequence[bytes]) -> None:
        """Enqueue messages. Raises `InvalidCall` for a body that is empty or no text, which SQS does not take."""
        self._check_open()
        texts = [_text(body) for body in bodies]
        batches = [(batch, f"lakehead-{self._ids.uuid()}") for batch in _send_batches(texts)]
        await self._all(
            [self._requests.submit(partial(self._client.send, batch, unique=unique)) for batch, unique in batches]
        )

    async def close(self) -> None:
        """End waiting calls at once. What was received is delivered again when its visibility timeout is over.

        A message that was just given back may be delivered to a request of our own that nobody waits for any more. It
        is given back again, for which this waits a moment.
        """
        self._closing.set()
        if self._gave_back:
            await asyncio.to_thread(wait_for_all, self._late_polls, CLOSE_SECONDS)
        await asyncio.to_thread(wait_for_all, self._returns, CLOSE_SECONDS)
        self._client.close()

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise InvalidCall(f"The queue {self.name} is closed. Open it again.")

    # --- receiving

    async def _poll(self, most: int, hidden: int, found: list[Message], *, wait: int) -> bool:
        """Add to `found` what one request finds, and return whether it found something. Times are in seconds."""
        call = self._polls.submit(partial(self._client.receive, most, visibility=hidden, wait=wait))
        answer = asyncio.wrap_future(call)
        closed = asyncio.create_task(self._closing.wait())
        waiting: list[asyncio.Future[Any]] = [answer, closed]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self._give_back_late(call)
                return False
        except asyncio.CancelledError:
            self._give_back_late(call)
            raise
        finally:
            answer.cancel()
            closed.cancel()
            await asyncio.gather(closed, return_exceptions=True)
        messages = self._messages(answer.result(), hidden)
        found += messages
        return bool(messages)

    async def _poll_several(self, most: int, hidden: int, found: list[Message]) -> bool:
        """Add to `found` what several requests find that do not wait; return whether more may come."""
        wanted = [min(BATCH, most - start) for start in range(0, most, BATCH)][: self._polls_at_once]
        polls = [self._poll(each, hidden, found, wait=0) for each in wanted]
        for answer in (answers := await asyncio.gather(*polls, return_exceptions=True)):
            # What was found must not be lost: an outage is raised by the next call.
            if isinstance(answer, BaseException) and not isinstance(answer, LakeheadError):
                raise answer
        return all(answer is True for answer in answers)

    def _messages(self, found: Sequence[Mapping[str, Any]], hidden: int) -> list[Message]:
        now = self._clock.monotonic()
        messages = []
        for each in found:
            attributes = each.get("Attributes", {})
            sent_ms = attributes.get("SentTimestamp")
            messages.append(
                Message(
                    id=each["MessageId"],
                    body=each["Body"].encode(errors="surrogatepass"),  # which is not understood, and must not raise
                    deliveries=int(attributes.get("ApproximateReceiveCount", 1)),
                    sent_at=None if sent_ms is None else datetime.fromtimestamp(int(sent_ms) / 1000, UTC),
                    receipt=_Delivery(each["ReceiptHandle"], now, now + hidden),
                )
            )
        return messages

    def _give_back_late(self, call: Future[Sequence[Mapping[str, Any]]]) -> None:
        """Give back what a request finds that nobody waits for any more."""

        done: Future[None] = Future()

        def ended(late: Future[Sequence[Mapping[str, Any]]]) -> None:
            if not late.cancelled() and late.exception() is None:
                self._make_visible([each["ReceiptHandle"] for each in late.result()])
            done.set_result(None)

        self._late_polls = [each for each in self._late_polls if not each.done()] + [done]
        call.add_done_callback(ended)

    def _make_visible(self, handles: Sequence[str]) -> None:
        """Make messages visible in the background. If it fails they become visible when their time is over."""
        for start in range(0, len(handles), BATCH):
            batch = handles[start : start + BATCH]
            call = self._requests.submit(partial(self._client.change_visibility, batch, [0] * len(batch)))
            self._returns = [each for each in self._returns if not each.done()] + [call]

    # --- batches

    async def _in_batches(self, items: Sequence[T], request: Callable[[Sequence[T]], set[int]]) -> set[int]:
        """Send items ten at a time, side by side; return the positions of those for which it failed."""
        starts = range(0, len(items), BATCH)
        batches = [items[start : start + BATCH] for start in starts]
        answers = await self._all([self._requests.submit(partial(request, batch)) for batch in batches])
        return {start + position for start, failed in zip(starts, answers, strict=True) for position in failed}

    async def _all(self, calls: Sequence[Future[T]]) -> list[T]:
        """Return what the calls return, when all have ended. Raises the first error."""
        answers = [asyncio.wrap_future(call) for call in calls]
        if answers:
            await asyncio.wait(answers)
        errors = [error for each in answers if (error := each.exception()) is not None]
        if errors:
            raise errors[0]
        return [each.result() for each in answers]


def _is_overdue(message: Message, now: float) -> bool:
    return bool(message.receipt.invisible_until <= now)


def _text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise InvalidCall(f"A message of SQS is text, and this is not UTF-8 ({error}).") from None
    if not text:
        raise InvalidCall("A message of SQS cannot be empty.")
    return text


def _send_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield at most ten messages at a time, and not too many bytes."""
    batch: list[str] = []
    size = 0
    for text in texts:
        length = len(text.encode())
        if batch and (len(batch) == BATCH or size + length > SEND_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += length
    if batch:
        yield batch
