"""The start-up probe against servers that honour preconditions, ignore one, or have never heard of them."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from uuid import uuid4

import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import RandomIds
from lakehead.storage.connect import StoreSettings
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Created, Exists, ListedObject
from lakehead.storage.probe import FOLDER, MIN_LEFTOVER_AGE_NS, RACERS, probe
from lakehead.storage.probed_store import ProbedStore
from lakehead.wire.batch import KeyValueEntry
from tests.faults.proxy import Request, answer, failure, loopback
from tests.servers.seaweed import BUCKET
from tests.support.async_tests import async_test, run_bounded
from tests.support.state_tools import HandClock


class TinyS3:
    """As much of S3 as the probe needs, honouring preconditions or not."""

    def __init__(self, *, ignored: str | None) -> None:
        self.objects: dict[str, tuple[str, str, bytes]] = {}
        self.probes = 0
        self._ignored = ignored
        self._versions: Iterator[int] = count(1)

    async def handle(self, request: Request) -> bytes:
        match request.method:
            case "PUT":
                self.probes += f"/{FOLDER}/" in request.target and not request.body
                return self._put(request)
            case "POST":
                keys = re.findall(r"<Key>([^<]+)</Key>", request.body.decode())
                for key in keys:
                    self.objects.pop(f"/{BUCKET}/{key}", None)
                deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                return answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), Content_Type="application/xml")
            case _ if "?list-type=2" in request.target or "&list-type=2" in request.target:
                return answer(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")
            case _:
                return self._get(request)

    def _put(self, request: Request) -> bytes:
        there = self.objects.get(request.target)
        for name, holds in (
            ("if-none-match", there is None),
            ("if-match", there is not None and there[0] == request.header("if-match")),
        ):
            if name != self._ignored and request.header(name) and not holds:
                return failure(request, 412, "PreconditionFailed")
        e_tag = f'"{next(self._versions)}"'
        self.objects[request.target] = (e_tag, request.header("x-amz-meta-nonce") or "", request.body)
        return answer(200, ETag=e_tag)

    def _get(self, request: Request) -> bytes:
        if request.target not in self.objects:
            return failure(request, 404, "NoSuchKey")
        e_tag, nonce, body = self.objects[request.target]
        headers = {
            "ETag": e_tag,
            "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "x_amz_meta_nonce": nonce,
            "Content_Length": str(len(body)),
        }
        if request.header("range"):  # we only ask for ranges that reach to the end of these small objects
            return answer(206, body, Content_Range=f"bytes 0-{len(body) - 1}/{len(body)}", **headers)
        return answer(200, b"" if request.method == "HEAD" else body, **headers)


@asynccontextmanager
async def serving(server: TinyS3) -> AsyncIterator[ObjectStoreConfig]:
    async with loopback(server.handle) as endpoint:
        credentials = {"access_key_id": "any", "secret_access_key": "any"}
        settings = StoreSettings(endpoint=endpoint, region="us-east-1", credentials=credentials)
        yield ObjectStoreConfig(url=f"s3://{BUCKET}/{uuid4()}", settings=settings)


async def probe_tiny(server: TinyS3) -> None:
    async with serving(server) as where:
        await probe(open_store(where.url, where.settings), ids=RandomIds())


def test_the_probe_accepts_a_server_that_honours_both_preconditions() -> None:
    server = TinyS3(ignored=None)
    run_bounded(probe_tiny(server))
    assert server.objects == {}


@pytest.mark.parametrize(
    ("ignored", "operation"), [("if-none-match", "create one object"), ("if-match", "replace one version")]
)
def test_the_probe_refuses_a_server_that_ignores_a_precondition(ignored: str, operation: str) -> None:
    server = TinyS3(ignored=ignored)
    with pytest.raises(Misconfigured, match=f"{RACERS} of {RACERS} concurrent writers {operation}"):
        run_bounded(probe_tiny(server))
    assert server.objects == {}


def test_the_probe_refuses_a_server_that_does_not_know_preconditions() -> None:
    class Old(TinyS3):
        def _put(self, request: Request) -> bytes:
            if request.header("if-none-match") or request.header("if-match"):
                return failure(request, 501, "NotImplemented")
            return super()._put(request)

    with pytest.raises(Misconfigured, match="does not implement"):
        run_bounded(probe_tiny(Old(ignored=None)))


class Watched(MemoryStore):
    """Counts probes, and fails one where it is told to."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.probes = 0
        self.failure: LakeheadError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(self, key: str, body: bytes) -> Created | Exists:
        if key.startswith(FOLDER) and not body:
            self.probes += 1
            await self.gate.wait()
            failure, self.failure = self.failure, None
            if failure is not None:
                raise failure
        return await super().create(key, body)


@async_test
async def test_a_proven_store_is_probed_once_whoever_writes_first() -> None:
    watched = Watched()
    store = ProbedStore(watched, RandomIds(), uuid4())

    assert await store.get("nothing") is None
    assert watched.probes == 0, "reading asks nothing of a store"
    await asyncio.gather(*(store.create(f"thing/{number}", b"") for number in range(8)))

    assert watched.probes == 1
    assert [entry.key async for page in store.list() for entry in page] == [f"thing/{n}" for n in range(8)]


def test_a_store_is_proved_once_in_a_process_however_often_and_wherever_it_is_opened() -> None:
    watched, identity = Watched(), uuid4()

    async def open_several() -> None:
        await asyncio.gather(*(ProbedStore(watched, RandomIds(), identity).ensure_probed() for _ in range(8)))

    run_bounded(open_several())
    run_bounded(open_several())
    with ThreadPoolExecutor(1) as thread:
        thread.submit(run_bounded, open_several()).result()
    assert watched.probes == 1

    run_bounded(ProbedStore(watched, RandomIds(), uuid4()).ensure_probed())
    assert watched.probes == 2, "another store is another proof"


@async_test
async def test_whoever_waits_for_a_probe_that_fails_is_told_of_it_and_the_next_one_probes_again() -> None:
    watched = Watched()
    watched.failure = Unavailable("down")
    store = ProbedStore(watched, RandomIds(), uuid4())

    watched.gate.clear()
    proofs = [asyncio.create_task(store.ensure_probed()) for _ in range(4)]
    await asyncio.sleep(0)
    watched.gate.set()
    told = await asyncio.gather(*proofs, return_exceptions=True)
    assert [type(each) for each in told] == [Unavailable] * 4
    assert watched.probes == 1

    await store.ensure_probed()
    assert watched.probes == 2


@async_test
async def test_a_probe_that_is_cancelled_is_made_by_whoever_waited_for_it() -> None:
    watched = Watched()
    watched.gate.clear()
    store = ProbedStore(watched, RandomIds(), uuid4())
    first, second = asyncio.create_task(store.ensure_probed()), asyncio.create_task(store.ensure_probed())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not second.done()
    watched.gate.set()
    await second
    assert watched.probes == 2


@async_test
async def test_whoever_stops_waiting_for_a_probe_does_not_stop_it() -> None:
    watched = Watched()
    watched.gate.clear()
    store = ProbedStore(watched, RandomIds(), uuid4())
    first, second = asyncio.create_task(store.ensure_probed()), asyncio.create_task(store.ensure_probed())
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    watched.gate.set()
    await first
    assert watched.probes == 1


@pytest.mark.parametrize("failure", [OutcomeUnknown("who knows"), Unavailable("down"), Misconfigured("no bucket")])
@async_test
async def test_a_store_that_could_not_be_probed_takes_nothing_and_is_probed_again(failure: LakeheadError) -> None:
    watched = Watched()
    watched.failure = failure
    store = ProbedStore(watched, RandomIds(), uuid4())

    with pytest.raises(Misconfigured if isinstance(failure, Misconfigured) else Unavailable):
        await store.create("thing", b"")
    assert await store.head("thing") is None

    assert isinstance(await store.create("thing", b""), Created)
    assert watched.probes == 2


# --- ingestors and collectors


@pytest.mark.parametrize("ignored", ["if-none-match", "if-match"])
@async_test
async def test_neither_an_ingestor_nor_a_collector_opens_on_a_store_that_ignores_a_precondition(ignored: str) -> None:
    server = TinyS3(ignored=ignored)
    async with serving(server) as where:
        prefix = where.url.removeprefix("s3:/")
        server.objects[f"{prefix}/ingest/manifest.json"] = ('"0"', "", b'{"pending": ["ingest/a.batch"]}')
        before = dict(server.objects)
        ingestor = Ingestor(IngestorConfig(object_store_config=where), SystemClock())
        collector = Collector(CollectorConfig(object_store_config=where), SystemClock())
        openings: list[Callable[[], Awaitable[object]]] = [
            ingestor.__aenter__,
            collector.__aenter__,
            collector.next_batch,
        ]
        for opening in openings:
            with pytest.raises(Misconfigured, match="Lakehead would lose data there"):
                await opening()
        watcher = await ingestor.ingest([KeyValueEntry(b"key", b"value")])  # which never waits for the store
        with pytest.raises(Misconfigured, match="Lakehead would lose data there"):
            await watcher.await_durable()
        await ingestor.close()
        await collector.close()
    assert server.objects == before


@async_test
async def test_a_store_is_probed_when_an_ingestor_or_collector_opens_and_never_again() -> None:
    server = TinyS3(ignored=None)
    async with serving(server) as where:
        async with Ingestor(IngestorConfig(object_store_config=where), SystemClock()):
            assert server.probes == 1
        async with Collector(CollectorConfig(object_store_config=where), SystemClock()) as collector:
            assert await collector.next_batch() is None
        ingestor = Ingestor(IngestorConfig(object_store_config=where), SystemClock())
        await (await ingestor.ingest([KeyValueEntry(b"key", b"value")])).await_durable()
        await ingestor.close()
    assert server.probes == 1


@async_test
async def test_a_store_that_is_passed_in_is_not_probed() -> None:
    watched = Watched()
    where = ObjectStoreConfig(url="memory://")
    async with Ingestor(IngestorConfig(object_store_config=where), SystemClock(), store=watched) as ingestor:
        await (await ingestor.ingest([KeyValueEntry(b"key", b"value")])).await_durable()
    async with Collector(CollectorConfig(object_store_config=where), SystemClock(), store=watched) as collector:
        assert await collector.next_batch() is not None
    assert watched.probes == 0


# --- what a probe leaves behind


class Aging(MemoryStore):
    """Lets time pass, and fails deletes and listings where it is told to."""

    def __init__(self) -> None:
        self.hand = HandClock()
        super().__init__(clock=self.hand)
        self.failure: LakeheadError | None = None

    async def delete(self, key: str) -> None:
        if self.failure is not None:
            raise self.failure
        await super().delete(key)

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        if self.failure is not None:
            raise self.failure
        async for page in super().list(folder, start_after=start_after):
            yield page


@async_test
async def test_a_probe_deletes_what_crashed_ones_left_an_hour_ago_and_nothing_else() -> None:
    store = Aging()
    old, young = (f"{FOLDER}/{uuid4()}" for _ in range(2))
    others = [f"{FOLDER}/notes", f"{FOLDER}/{uuid4()}/inner", f"elsewhere/{uuid4()}"]
    for key in (old, *others):
        await store.put(key, b"")
    store.hand.at += timedelta(microseconds=MIN_LEFTOVER_AGE_NS // 1000)
    await store.put(young, b"")
    store.hand.at += timedelta(seconds=1)

    await probe(store, ids=RandomIds())

    assert sorted([entry.key async for page in store.list() for entry in page]) == sorted([young, *others])


@pytest.mark.parametrize("failure", [OutcomeUnknown("who knows"), Unavailable("down"), Misconfigured("not allowed")])
def test_a_probe_that_cannot_clean_up_still_proves_the_store_and_says_so(
    failure: LakeheadError, caplog: pytest.LogCaptureFixture
) -> None:
    store = Aging()
    store.failure = failure

    run_bounded(probe(store, ids=RandomIds()))

    assert "could not delete _probe/" in caplog.text
    assert "Could not list objects under" in caplog.text
    assert str(failure) in caplog.text


def test_a_clean_up_that_fails_does_not_hide_what_is_wrong_with_the_store() -> None:
    class Careless(Aging):
        async def create(self, key: str, body: bytes) -> Created | Exists:
            return Created(await self.put(key, body))

    store = Careless()
    store.failure = Unavailable("down")

    with pytest.raises(Misconfigured, match="create one object"):
        run_bounded(probe(store, ids=RandomIds()))
