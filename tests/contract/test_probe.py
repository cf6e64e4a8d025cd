"""The start-up probe against servers that honour preconditions, ignore one, or have never heard of them."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count

import pytest

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import RandomIds
from lakehead.storage.connect import StoreSettings
from lakehead.storage.memory import MemoryStore
from lakehead.storage.opening import open_store
from lakehead.storage.port import Created, Exists
from lakehead.storage.probe import FOLDER, RACERS, probe
from lakehead.storage.proven import Proven
from lakehead.wire.batch import KeyValueEntry
from tests.contract.scene import run
from tests.faults.proxy import Request, answer, failure, loopback
from tests.servers.seaweed import BUCKET


class TinyS3:
    """As much of S3 as the probe needs, honouring preconditions or not."""

    def __init__(self, *, ignored: str | None) -> None:
        self.objects: dict[str, tuple[str, str, bytes]] = {}
        self._ignored = ignored
        self._versions: Iterator[int] = count(1)

    async def handle(self, request: Request) -> bytes:
        match request.method:
            case "PUT":
                return self._put(request)
            case "POST":
                keys = re.findall(r"<Key>([^<]+)</Key>", request.body.decode())
                for key in keys:
                    self.objects.pop(f"/{BUCKET}/{key}", None)
                deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                return answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), Content_Type="application/xml")
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
        yield ObjectStoreConfig(url=f"s3://{BUCKET}", settings=settings)


async def probe_tiny(server: TinyS3) -> None:
    async with serving(server) as where:
        await probe(open_store(where.url, where.settings), ids=RandomIds())


def test_the_probe_accepts_a_server_that_honours_both_preconditions() -> None:
    server = TinyS3(ignored=None)
    run(probe_tiny(server))
    assert server.objects == {}


@pytest.mark.parametrize(
    ("ignored", "deed"), [("if-none-match", "create one object"), ("if-match", "replace one version")]
)
def test_the_probe_refuses_a_server_that_ignores_a_precondition(ignored: str, deed: str) -> None:
    server = TinyS3(ignored=ignored)
    with pytest.raises(Misconfigured, match=f"{RACERS} of {RACERS} writers at once {deed}"):
        run(probe_tiny(server))
    assert server.objects == {}


def test_the_probe_refuses_a_server_that_does_not_know_preconditions() -> None:
    class Old(TinyS3):
        def _put(self, request: Request) -> bytes:
            if request.header("if-none-match") or request.header("if-match"):
                return failure(request, 501, "NotImplemented")
            return super()._put(request)

    with pytest.raises(Misconfigured, match="does not know"):
        run(probe_tiny(Old(ignored=None)))


class Watched(MemoryStore):
    """Counts probes, and fails one where it is told to."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.probes = 0
        self.failure: LakeheadError | None = None

    async def create(self, key: str, body: bytes) -> Created | Exists:
        if key.startswith(FOLDER) and not body:
            self.probes += 1
            failure, self.failure = self.failure, None
            if failure is not None:
                raise failure
        return await super().create(key, body)


def test_a_proven_store_is_probed_once_whoever_writes_first() -> None:
    async def story() -> None:
        watched = Watched()
        store = Proven(watched, RandomIds())

        assert await store.get("nothing") is None
        assert watched.probes == 0, "reading asks nothing of a store"
        await asyncio.gather(*(store.create(f"thing/{number}", b"") for number in range(8)))

        assert watched.probes == 1
        assert [entry.key async for page in store.list() for entry in page] == [f"thing/{n}" for n in range(8)]

    run(story())


@pytest.mark.parametrize("failure", [OutcomeUnknown("who knows"), Unavailable("down"), Misconfigured("no bucket")])
def test_a_store_that_could_not_be_probed_takes_nothing_and_is_probed_again(failure: LakeheadError) -> None:
    async def story() -> None:
        watched = Watched()
        watched.failure = failure
        store = Proven(watched, RandomIds())

        with pytest.raises(Misconfigured if isinstance(failure, Misconfigured) else Unavailable):
            await store.create("thing", b"")
        assert await store.head("thing") is None

        assert isinstance(await store.create("thing", b""), Created)
        assert watched.probes == 2

    run(story())


@pytest.mark.parametrize("ignored", ["if-none-match", "if-match"])
def test_neither_an_ingestor_nor_a_collector_writes_to_a_store_that_ignores_a_precondition(ignored: str) -> None:
    async def story() -> None:
        server = TinyS3(ignored=ignored)
        manifest = f"/{BUCKET}/ingest/manifest.json"
        server.objects[manifest] = ('"0"', "", b'{"pending": ["ingest/a.batch"]}')
        before = dict(server.objects)
        async with serving(server) as where:
            ingestor = Ingestor(IngestorConfig(object_store_config=where), SystemClock())
            watcher = await ingestor.ingest([KeyValueEntry(b"key", b"value")])
            with pytest.raises(Misconfigured, match="Lakehead would lose data there"):
                await ingestor.close()
            assert isinstance(watcher.result(), Misconfigured)

            async with Collector(CollectorConfig(object_store_config=where), SystemClock()) as collector:
                with pytest.raises(Misconfigured, match="Lakehead would lose data there"):
                    await collector.next_batch()
        assert server.objects == before

    run(story())
