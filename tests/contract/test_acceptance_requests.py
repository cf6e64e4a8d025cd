"""What acceptance asks an S3 server for, over real HTTP: whole objects under a condition, and nothing else."""

from dataclasses import replace
from random import Random
from uuid import uuid4

from lakehead.accept.acceptance import Accepted, Acceptor, Conflict, Duplicate
from lakehead.clock import SystemClock
from lakehead.gateway.settings import IngestSettings
from lakehead.ids import RandomIds
from lakehead.storage.open_store import open_store
from lakehead.wire import acceptance_keys as keys
from tests.faults.proxy import Proxy, Request, Silence, served
from tests.servers.seaweed import BUCKET, Seaweed
from tests.support.async_tests import async_test
from tests.unit.accept.support import submitted


class Recorder(Proxy):
    """Passes requests on, and remembers them."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint, None)
        self.requests: list[Request] = []

    async def handle(self, request: Request) -> bytes | Silence:
        self.requests.append(request)
        return await super().handle(request)


@async_test
async def test_the_largest_frame_is_one_conditional_put_and_nothing_is_copied_or_sent_in_parts(
    seaweed: Seaweed,
) -> None:
    largest = submitted(Random(1).randbytes(IngestSettings().body_bytes))
    recorder = Recorder(seaweed.endpoint)
    with served(recorder.handle) as endpoint:
        store = open_store(
            f"s3://{BUCKET}/{uuid4().hex}",
            replace(seaweed.settings(), endpoint=endpoint),
            clock=SystemClock(),
            ids=RandomIds(),
            random=Random(1),
        )
        acceptor = Acceptor(store=store, clock=SystemClock(), ids=RandomIds(), random=Random(1), collector_id="gateway")

        assert isinstance(await acceptor.accept(largest), Accepted)

        writes = [each for each in recorder.requests if each.method not in ("GET", "HEAD")]
        assert sorted(folder_of(each) for each in writes) == ["accepted", "raw-blobs", "raw-blobs-by-time"]
        assert folder_of(writes[-1]) == "accepted"
        assert isinstance(await acceptor.accept(largest), Duplicate)
        assert isinstance(await acceptor.accept(submitted(b"others")), Conflict)
        stored = await store.get(keys.raw_blob(largest.sha256))

    assert stored is not None
    assert stored.body == largest.body
    for each in recorder.requests:
        if each.method not in ("GET", "HEAD"):
            assert (each.method, each.header("if-none-match")) == ("PUT", "*")
        assert "upload" not in each.target.partition("?")[2], "sent in parts"
        assert each.header("x-amz-copy-source") is None


def folder_of(request: Request) -> str:
    """The first folder below the store's prefix."""
    return request.target.partition("?")[0].split("/")[3]
