"""A queue that is not part of Lakehead: NATS JetStream. Copy this file to add a queue of your own.

It is one module that implements `lakehead.consume.queue.Queue` (and `SendingQueue`) by the shape of its methods: it
inherits from nothing. It passes the suite that all queues must pass, `tests/contract/test_queues.py`, against a real
server. How to add a queue: `docs/adding-a-queue.md`.

Needs `nats-py`, and a stream that keeps messages until they are acknowledged:

    nats stream add landings --subjects 'landings.>' --retention work

What was worth a thought: JetStream has one redelivery time for all messages of a consumer (`ack_wait`), and a pipeline
asks for one for each message. So `ack_wait` is only for processes that die. While ours lives, it tells the server that
it still works on what it holds, until a message is acknowledged or its own visibility timeout is over.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error, NoServersError
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.client import JetStreamContext
from nats.js.errors import NotFoundError

from lakehead.clock import Clock
from lakehead.consume.queue import Message
from lakehead.consume.queues.pausing import pause
from lakehead.errors import LakeheadError, Misconfigured, Unavailable

SHORTEST_FETCH = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """How to reach a stream."""

    server: str
    """For example `nats://127.0.0.1:4222`."""

    stream: str
    """The stream, which exists."""

    subject: str
    """The subject of the stream that `send` publishes to."""

    durable: str = "lakehead"
    """The name of the consumer that all processes of a pipeline share."""

    lease: timedelta = timedelta(seconds=30)
    """How long after a process has died its messages are delivered again."""

    timeout: timedelta = timedelta(seconds=5)
    """Timeout of a request."""


@dataclass(slots=True, eq=False)
class _Delivery:
    """A message that we hold. Times are of the monotonic clock."""

    message: Msg
    visible_at: float
    refreshed_at: float


class NatsQueue:
    """One consumer of a stream, made by `NatsQueue.open`."""

    longest_visibility: timedelta | None = None
    forgets = True

    def __init__(
        self,
        connection: Client,
        subscription: JetStreamContext.PullSubscription,
        retention: timedelta | None,
        settings: NatsSettings,
        clock: Clock,
    ) -> None:
        """Use `open` instead, which connects first."""
        self.name = f"{settings.server}/{settings.stream}"
        self.retention = retention
        self._connection = connection
        self._stream = connection.jetstream(timeout=settings.timeout.total_seconds())
        self._subscription = subscription
        self._settings = settings
        self._clock = clock
        self._lease = settings.lease.total_seconds()
        self._held: set[_Delivery] = set()
        self._fetching = asyncio.Lock()
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep())

    @classmethod
    async def open(cls, settings: NatsSettings, clock: Clock) -> Self:
        """Connect, and find the stream. Raises `Misconfigured` or `Unavailable`."""
        timeout = settings.timeout.total_seconds()
        try:
            connection = await nats.connect(
                settings.server, connect_timeout=timeout, max_reconnect_attempts=-1, error_cb=_ignore
            )
        except (OSError, NoServersError, TimeoutError) as error:
            raise Unavailable(f"{settings.server} does not respond ({error!r}). Try again later.") from error
        try:
            stream = connection.jetstream(timeout=timeout)
            found = await stream.stream_info(settings.stream)
            wanted = ConsumerConfig(
                durable_name=settings.durable,
                ack_policy=AckPolicy.EXPLICIT,
                ack_wait=settings.lease.total_seconds(),
                max_ack_pending=-1,
            )
            await stream.add_consumer(settings.stream, wanted)
            subscription = await stream.pull_subscribe_bind(durable=settings.durable, stream=settings.stream)
        except Error as error:
            await connection.close()
            raise _explained(error, settings) from error
        retention = timedelta(seconds=found.config.max_age) if found.config.max_age else None
        return cls(connection, subscription, retention, settings, clock)

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        """Return messages that are ready; wait up to `wait` for the first."""
        if self._closing.is_set():
            raise LakeheadError(f"The queue {self.name} is closed. Open it again.")
        async with self._fetching:
            self._check_connected()
            seconds = max(SHORTEST_FETCH, wait.total_seconds())
            fetching = asyncio.create_task(self._subscription.fetch(most, timeout=seconds))
            closing = asyncio.create_task(self._closing.wait())
            try:
                await asyncio.wait([fetching, closing], return_when=asyncio.FIRST_COMPLETED)
                found = fetching.result() if fetching.done() else []
            except TimeoutError:
                found = []
                self._check_connected()
            except Error as error:
                raise _explained(error, self._settings) from error
            finally:
                for task in (fetching, closing):
                    task.cancel()
                await asyncio.gather(fetching, closing, return_exceptions=True)
        now = self._clock.monotonic()
        held = [_Delivery(message, now + visibility.total_seconds(), now) for message in found]
        self._held.update(held)
        self._changed.set()
        return [_message(each) for each in held]

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        """Keep messages invisible for `visibility` from now on; return those that we do not hold any more."""
        now = self._clock.monotonic()
        ours = [message for message in messages if self._holds(message.receipt)]
        for message in ours:
            message.receipt.visible_at = now + visibility.total_seconds()
        self._changed.set()
        await self._refresh([message.receipt for message in ours])
        kept = {message.receipt for message in ours}
        return [message for message in messages if message.receipt not in kept]

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Delete messages for good; return those that we do not hold any more."""
        ours = [message for message in messages if self._holds(message.receipt)]
        timeout = self._settings.timeout.total_seconds()
        await self._all([message.receipt.message.ack_sync(timeout) for message in ours])
        done = {message.receipt for message in ours}
        self._held -= done
        return [message for message in messages if message.receipt not in done]

    async def send(self, bodies: Sequence[bytes]) -> None:
        """Enqueue messages."""
        await self._all([self._stream.publish(self._settings.subject, body) for body in bodies])

    async def close(self) -> None:
        """Give back what is held, and disconnect."""
        self._closing.set()
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        for each in self._held:
            each.visible_at = 0.0
        with suppress(Unavailable):
            await self._refresh(list(self._held))
        self._held.clear()
        await self._connection.close()

    def _check_connected(self) -> None:
        if not self._connection.is_connected:
            raise Unavailable(f"{self.name} is not connected. Try again later.")

    def _holds(self, delivery: _Delivery) -> bool:
        """Whether the server cannot have delivered it to another consumer."""
        return delivery in self._held and self._clock.monotonic() < delivery.refreshed_at + self._lease

    async def _keep(self) -> None:
        """Refresh what is held, and give back what nobody extends."""
        while True:
            self._changed.clear()
            now = self._clock.monotonic()
            soonest = min((each.visible_at for each in self._held), default=now + self._lease)
            await pause(self._clock, min(self._lease / 3, soonest - now), self._changed)
            with suppress(Unavailable):
                await self._refresh(list(self._held))

    async def _refresh(self, held: Sequence[_Delivery]) -> None:
        """Tell the server that we still work on messages, and give back those whose time is over."""
        now = self._clock.monotonic()
        over = [each for each in held if each.visible_at <= now]
        due = [each for each in held if each.visible_at > now and now - each.refreshed_at >= self._lease / 4]
        self._held.difference_update(over)
        await self._all([each.message.nak() for each in over] + [each.message.in_progress() for each in due])
        for each in due:
            each.refreshed_at = now
        if over or due:
            await self._all([self._connection.flush(int(self._settings.timeout.total_seconds()))])

    async def _all(self, calls: Sequence[Awaitable[object]]) -> None:
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(answer, Error):
                raise _explained(answer, self._settings) from answer
            if isinstance(answer, BaseException):
                raise answer


def _message(delivery: _Delivery) -> Message:
    about = delivery.message.metadata
    return Message(
        id=str(about.sequence.stream),
        body=delivery.message.data,
        deliveries=about.num_delivered,
        sent_at=about.timestamp,
        receipt=delivery,
    )


def _explained(error: Error, settings: NatsSettings) -> LakeheadError:
    if isinstance(error, NotFoundError):
        return Misconfigured(f"{settings.server} has no stream {settings.stream!r}. Create it, or correct its name.")
    return Unavailable(f"{settings.server} does not respond ({error!r}). Try again later.")


async def _ignore(error: Exception) -> None:
    """Calls raise what is wrong; the client would log it besides."""
