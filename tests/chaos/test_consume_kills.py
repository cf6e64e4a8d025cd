"""Two consumers of one queue that are killed and paused at random: each object lands once, each broken one is kept."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from lakehead.buffer.config import IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import SystemClock
from lakehead.consume.queues.manifest_queue import ManifestQueue, ManifestQueueSettings
from lakehead.ids import RandomIds
from lakehead.state.model import ShardState
from lakehead.state.opening import open_state
from lakehead.wire.batch import KeyValueEntry
from tests.chaos.consume_checker import faults, stored
from tests.chaos.consume_child import Consuming, Order
from tests.consumer import HEARTBEAT, TABLE, Consumer, aws, lines, sqs
from tests.lakehouse import Lakehouse
from tests.servers.sqs import SqsServer
from tests.support.effort import effort
from tests.support.spark import Borrowed, shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(effort(300, soak=3_000))]

BLOWS = effort(3, soak=60)
"""How often a consumer is killed, and another started in its place, or paused for longer than it may be."""

OBJECTS = effort(4, soak=8)
"""How many objects are announced before each blow."""

ROWS = 3
BROKEN_EVERY = effort(6, soak=40)
VISIBILITY = timedelta(seconds=2)
COMMIT = timedelta(seconds=effort(0.3, soak=1.0))
PAUSE = timedelta(seconds=2.5)
MAX_TRIES = effort(4 + BLOWS, soak=20)
"""A good object may be tried anew after each blow until it lands, so it must not be given up for a few of them."""

SETTINGS = {
    "commit_timeout_seconds": COMMIT.total_seconds(),
    "visibility_seconds": VISIBILITY.total_seconds(),
    "max_tries": MAX_TRIES,
}
MOST_SECONDS = effort(100, soak=1_000)


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Borrowed:
    return Borrowed.of(shared_session(Lakehouse.settings(tmp_path_factory.mktemp("spark"))))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    server = SqsServer(tmp_path_factory.mktemp("sqs"))
    server.start()
    yield server
    server.stop()


class Chaos:
    """Two consumers, of which one after the other is struck."""

    def __init__(self, consumer: Consumer, jvm: Borrowed, opened: ExitStack, seed: int) -> None:
        self.random = Random(seed)
        self._consumer = consumer
        self._jvm = jvm
        self._opened = opened
        self._running = [self._start(), self._start()]
        self._paused: dict[int, float] = {}
        self._until = time.monotonic() + MOST_SECONDS

    def strike(self, number: int) -> None:
        """Kill one of the two, or pause it; every fourth time at least it is a pause."""
        time.sleep(self.random.uniform(0, 2 * COMMIT.total_seconds()))  # chance: nothing waits for anything
        self._wake(force=False)
        place = self.random.randrange(2)
        if place in self._paused:
            place = 1 - place
        if number % 4 == 1 and not self._paused:
            self._running[place].signal(signal.SIGSTOP)
            self._paused[place] = time.monotonic() + PAUSE.total_seconds()
            return
        self._running[place].kill()
        self._running[place] = self._start()

    def finish(self, done: Callable[[], bool]) -> None:
        """Let the two work until everything is done, and stop them."""
        while not done():
            self._wake(force=False)
            said = [each.said[-1_000:] for each in self._running]
            assert all(each.is_alive for each in self._running), said
            assert time.monotonic() < self._until, said
            time.sleep(0.05)  # how often is asked; nothing depends on it
        self._wake(force=True)
        for each in self._running:
            each.stop()

    def _start(self) -> Consuming:
        started = Consuming(self._consumer, self._jvm, Order())
        self._opened.callback(started.close)
        return started

    def _wake(self, *, force: bool) -> None:
        for place, at in list(self._paused.items()):
            if force or time.monotonic() >= at:
                self._running[place].signal(signal.SIGCONT)
                del self._paused[place]


def settled(consumer: Consumer, uris: set[str]) -> bool:
    """Whether the state has each of these objects as landed or given up."""
    if not consumer.lakehouse.exists() or not len(consumer.rows()):
        return False
    with open_state(consumer.state_url, SystemClock(), RandomIds()) as state:
        shards = state.shards.read(consumer.uuid(), uris)
    return {shard.unit for shard in shards if shard.state is ShardState.COMPLETED} == uris


@pytest.mark.parametrize("seed", effort([1], soak=[1, 2, 3]))
def test_two_consumers_of_an_sqs_queue_that_are_killed_and_paused_lose_and_double_nothing(
    server: SqsServer, jvm: Borrowed, tmp_path: Path, seed: int
) -> None:
    queue = server.new_queue()
    consumer = Consumer(tmp_path, sqs(server, queue), aws(), settings={**SETTINGS, "messages": "raw_uri"})
    good, broken = list[str](), list[str]()
    with ExitStack() as opened:
        chaos = Chaos(consumer, jvm, opened, seed)
        for blow in range(BLOWS):
            for number in range(blow * OBJECTS, (blow + 1) * OBJECTS):
                is_broken = number % BROKEN_EVERY == 1
                uri = stored(tmp_path / "in", f"{number}.json", b'{"id": 1}\n{"id"\n' if is_broken else lines(ROWS))
                (broken if is_broken else good).append(uri)
                server.send(queue, *[uri] * chaos.random.choice([1, 1, 2]))
            chaos.strike(blow)
        chaos.finish(lambda: server.left(queue) == (0, 0))

    assert faults(consumer, good, broken, rows=ROWS) == []
    assert server.left(queue) == (0, 0)


@pytest.mark.parametrize("seed", effort([2], soak=[1, 2, 3]))
def test_two_consumers_of_a_manifest_queue_that_are_killed_and_paused_lose_and_double_nothing(
    jvm: Borrowed, tmp_path: Path, seed: int
) -> None:
    root = tmp_path / "store"
    url = root.as_uri()
    consumer = Consumer(
        tmp_path,
        {"type": "manifest", "store": url},
        tables=[{"table": TABLE, "format": "key_value"}],
        settings=SETTINGS,
    )
    good, broken = list[str](), list[str]()
    with ExitStack() as opened:
        chaos = Chaos(consumer, jvm, opened, seed)
        for blow in range(BLOWS):
            asyncio.run(ingest(url, OBJECTS))
            known = {*good, *broken}
            new = [uri for uri in batches(root) if uri not in known]
            assert len(new) == OBJECTS
            good += new
            asyncio.run(announce_again(url, [uri.removeprefix(f"{url}/") for uri in new[: OBJECTS // 3]]))
            chaos.strike(blow)
        broken.append(stored(root / "ingest", "broken.batch", b"no batch"))
        asyncio.run(announce_again(url, ["ingest/broken.batch"]))
        chaos.finish(lambda: settled(consumer, {*good, *broken}))

    assert faults(consumer, good, broken, rows=ROWS) == []
    assert asyncio.run(left(url)) == 0


async def ingest(url: str, count: int) -> None:
    """Write batches as their users do."""
    async with Ingestor(IngestorConfig(object_store_config=ObjectStoreConfig(url=url)), SystemClock()) as ingestor:
        for _ in range(count):
            await ingestor.ingest([KeyValueEntry(b"key", b"%d" % number) for number in range(ROWS)])
            await ingestor.flush()


async def announce_again(url: str, keys: list[str]) -> None:
    queue = ManifestQueue(queue_settings(url), SystemClock())
    await queue.send([key.encode() for key in keys])
    await queue.close()


async def left(url: str) -> int:
    """How many messages a queue still has, of those that nobody holds."""
    queue = ManifestQueue(queue_settings(url), SystemClock())
    found = await queue.receive(1_000, visibility=timedelta(minutes=1), wait=timedelta(0))
    await queue.close()
    return len(found)


def queue_settings(url: str) -> ManifestQueueSettings:
    where = ObjectStoreConfig(url=url)
    return ManifestQueueSettings(object_store_config=where, heartbeat_timeout=HEARTBEAT)


def batches(root: Path) -> list[str]:
    """The URIs of the batches in a store."""
    return [path.as_uri() for path in sorted(root.rglob("*.batch"))]
