"""Every kind of queue, for the one suite that all of them must pass."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count, repeat
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import nats
from nats.js.api import RetentionPolicy, StorageType, StreamConfig

from examples.nats_queue import NatsQueue, NatsSettings
from lakehead.buffer.config import IngestorConfig, ObjectStoreConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.manifests import all_pairs
from lakehead.clock import Clock, SystemClock
from lakehead.consume.queue import Message, Queue
from lakehead.consume.queues.file_list_queue import FileListQueue
from lakehead.consume.queues.folder_pass import FolderSettings
from lakehead.consume.queues.folder_queue import FolderQueue
from lakehead.consume.queues.manifest_queue import ManifestQueue, ManifestQueueSettings
from lakehead.consume.queues.memory_queue import MemoryMessages, MemoryQueue
from lakehead.consume.queues.sqs_queue import SqsQueue
from lakehead.errors import Unavailable
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Store, Version
from lakehead.wire.batch import KeyValueEntry
from tests.faults.proxy import Fault, proxy
from tests.servers.nats import NatsServer
from tests.servers.sqs import SqsServer
from tests.support.async_tests import run_bounded
from tests.support.simulation import World

LONG = timedelta(minutes=10)
A_SECOND = timedelta(seconds=1)
DEADLINE_SECONDS = 20


class QueueKind(ABC):
    """One queue, empty at first. The suite sends to it, and opens consumers of it."""

    short: ClassVar[timedelta]
    """A visibility timeout that a test can wait for."""

    look: ClassVar[timedelta]
    """How long a test waits before it says that nothing is visible."""

    clock: Clock

    def __init__(self) -> None:
        self._opened: list[Queue] = []
        self._sender: Queue | None = None

    @abstractmethod
    def run(self, test: Coroutine[Any, Any, None]) -> None:
        """Run a test on a loop of the clock's time."""

    async def send(self, count: int) -> list[bytes]:
        """Send that many messages; return their bodies."""
        bodies = [f"message {number}".encode() for number in range(count)]
        await self.send_bodies(bodies)
        return bodies

    @abstractmethod
    async def connect(self) -> Queue:
        """Open a consumer."""

    async def send_bodies(self, bodies: Sequence[bytes]) -> None:
        """Send messages with these bodies."""
        raise NotImplementedError(bodies)

    def unreachable(self) -> AbstractAsyncContextManager[Queue]:
        """A consumer whose server was there, and is not now."""
        raise NotImplementedError

    async def consumer(self) -> Queue:
        """Open a consumer, which is closed when the test ends."""
        if self._sender is not None:
            sender, self._sender = self._sender, None
            return sender  # opening takes some servers long
        opened = await self.connect()
        self._opened.append(opened)
        return opened

    async def sender(self) -> Queue:
        """A consumer to send by, which the test may get as its own afterwards."""
        self._sender = await self.consumer()
        return self._sender

    async def close(self) -> None:
        for each in self._opened:
            await each.close()

    async def received(self, queue: Queue, count: int, *, visibility: timedelta = LONG) -> list[Message]:
        """Receive until so many messages came."""
        found: list[Message] = []
        ends = self.clock.monotonic() + DEADLINE_SECONDS
        while len(found) < count and self.clock.monotonic() < ends:
            found += await queue.receive(count - len(found), visibility=visibility, wait=timedelta(seconds=1))
        assert len(found) == count
        return found

    async def nothing_is_left(self, queue: Queue) -> bool:
        """Whether nothing is visible."""
        return not await queue.receive(10, visibility=LONG, wait=self.look)

    async def short_passes(self) -> None:
        """Wait until the short visibility timeout is over, with some time for the server to notice."""
        await self.clock.sleep(self.short.total_seconds() + 0.1)


class VirtualKind(QueueKind):
    """A queue without threads and sockets, in virtual time."""

    short = timedelta(seconds=5)
    look = timedelta(seconds=20)

    def __init__(self) -> None:
        super().__init__()
        self.world = World(seed=7)
        self.clock = self.world.clock

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        self.world.loop.simulate(test)


class RealKind(QueueKind):
    """A queue on a server, in real time."""

    short = timedelta(seconds=1)
    look = timedelta(0)
    clock = SystemClock()

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        run_bounded(test)


class MemoryKind(VirtualKind):
    """A queue in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._messages = MemoryMessages(self.clock)

    async def send_bodies(self, bodies: Sequence[bytes]) -> None:
        self._messages.send(bodies)

    async def connect(self) -> Queue:
        return MemoryQueue(self._messages)


class SqsKind(RealKind):
    """A queue of a real server of SQS."""

    def __init__(self, server: SqsServer) -> None:
        super().__init__()
        self._server = server
        self._name = server.new_queue()

    async def send_bodies(self, bodies: Sequence[bytes]) -> None:
        sender = await self.sender()
        assert isinstance(sender, SqsQueue)
        await sender.send(bodies)

    async def connect(self) -> Queue:
        return await SqsQueue.open(self._server.settings(self._name), self.clock)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[Queue]:
        async with proxy(f"http://127.0.0.1:{self._server.port}") as between:
            settings = replace(self._server.settings(self._name), endpoint=between.endpoint)
            queue = await SqsQueue.open(settings, self.clock)
            between.script("POST", repeat(Fault.UNAVAILABLE))
            yield queue
            await queue.close()


class NatsKind(RealKind):
    """The example of a queue that is not ours: a stream of a real NATS server."""

    short = timedelta(milliseconds=300)

    def __init__(self, server: NatsServer, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._settings = NatsSettings(server=server.url, stream=f"s{uuid4().hex}", subject=f"{uuid4().hex}.in")
        self._has_stream = False

    async def send_bodies(self, bodies: Sequence[bytes]) -> None:
        sender = await self.sender()
        assert isinstance(sender, NatsQueue)
        await sender.send(bodies)

    async def connect(self) -> Queue:
        if not self._has_stream:
            await self._make_stream(self._settings.server)
            self._has_stream = True
        return await NatsQueue.open(self._settings, self.clock)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[Queue]:
        server = NatsServer(self._folder)
        server.start()
        try:
            await self._make_stream(server.url)
            queue = await NatsQueue.open(replace(self._settings, server=server.url, timeout=A_SECOND), self.clock)
            server.stop()
            yield queue
            await queue.close()
        finally:
            server.stop()

    async def _make_stream(self, server: str) -> None:
        connection = await nats.connect(server)
        wanted = StreamConfig(
            name=self._settings.stream,
            subjects=[self._settings.subject],
            retention=RetentionPolicy.WORK_QUEUE,
            storage=StorageType.MEMORY,
        )
        await connection.jetstream().add_stream(wanted)
        await connection.close()


class ManifestKind(VirtualKind):
    """A manifest queue with two partitions, on a store in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._inner = MemoryStore(clock=self.clock)
        self._settings = ManifestQueueSettings(object_store_config=ObjectStoreConfig(url="memory://"))

    async def send(self, count: int) -> list[bytes]:
        config = IngestorConfig(object_store_config=self._settings.object_store_config, partitions=2)
        deps: dict[str, Any] = {"store": self._inner, "ids": self.world.ids, "random": self.world.random}
        before = await self._locations()
        async with Ingestor(config, self.clock, **deps) as ingestor:
            for number in range(count):
                await ingestor.ingest([KeyValueEntry(str(number).encode(), b"value")])
                await ingestor.flush()
        return [location.encode() for location in await self._locations() if location not in before]

    async def connect(self) -> Queue:
        return self._queue(self._inner)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[Queue]:
        store = OutageStore(self._inner)
        queue = self._queue(store)
        store.is_down = True
        yield queue
        store.is_down = False
        await queue.close()

    def _queue(self, store: Store) -> Queue:
        return ManifestQueue(self._settings, self.clock, store=store, ids=self.world.ids, random=self.world.random)

    async def _locations(self) -> list[str]:
        deps = BufferDeps(store=self._inner, clock=self.clock, ids=self.world.ids, random=self.world.random)
        pairs = await all_pairs(self._settings.manifest_path, deps)
        return [location for pair in pairs for location in (await pair.producer.read()).manifest.pending]


class FileKind(VirtualKind):
    """A queue of the files of a store."""

    url = "memory://files"

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(clock=self.clock)
        self._numbers = count(1)

    async def send(self, count: int) -> list[bytes]:
        keys = [f"in/file {next(self._numbers):06d}.json" for _ in range(count)]
        for key in keys:
            await self.store.put(key, b"{}")
        await self.clock.sleep(10)  # they rest
        return [f"{self.url}/{key}".encode() for key in keys]

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[Queue]:
        store = OutageStore(self.store)
        store.is_down = True
        queue = self.queue(store)
        yield queue
        await queue.close()

    async def connect(self) -> Queue:
        return self.queue(self.store)

    @abstractmethod
    def queue(self, store: Store) -> Queue:
        """A queue of a store's files."""


class FolderKind(FileKind):
    """A watched folder."""

    def queue(self, store: Store) -> Queue:
        return FolderQueue(store, FolderSettings(url=self.url), self.clock)


class FileListKind(FileKind):
    """A listing of a folder."""

    def queue(self, store: Store) -> Queue:
        return FileListQueue.of_store(store, self.url, self.clock)


class OutageStore:
    """A store that can be unavailable."""

    def __init__(self, inner: Store) -> None:
        self.is_down = False
        self._inner = inner

    async def create(self, key: str, body: bytes) -> Created | Exists:
        self._check()
        return await self._inner.create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        self._check()
        return await self._inner.replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        self._check()
        return await self._inner.put(key, body)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self._check()
        return await self._inner.get(key, start=start, end=end)

    async def head(self, key: str) -> ObjectMeta | None:
        self._check()
        return await self._inner.head(key)

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        self._check()
        async for page in self._inner.list(folder, start_after=start_after):
            yield page

    async def delete(self, key: str) -> None:
        self._check()
        await self._inner.delete(key)

    def _check(self) -> None:
        if self.is_down:
            raise Unavailable("The store is down.")
