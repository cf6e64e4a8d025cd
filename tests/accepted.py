"""Batches that gateways accept, for tests of what lands of them."""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import pyarrow as pa

from lakehead.accept.acceptance import Accepted, Acceptor, Submission
from lakehead.accept.conflicts import Conflicts
from lakehead.buffer.config import IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import SystemClock
from lakehead.gateway.landing_queue import BufferedLandingQueue
from lakehead.ids import RandomIds
from lakehead.storage.open_store import open_store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_keys import raw_blob
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import OverlapManifest
from lakehead.wire.frame import decode_frame, encode_frame, frame_sha256
from lakehead.wire.index_records import QuarantineByBlob
from lakehead.wire.record_schemas import LOGS_V1, SAMPLES_V1, FrameKind
from tests.consumer import Consumer

SAMPLES, LOGS = "metrics.samples", "metrics.logs"
NOON = 1_760_000_000_000_000_000
DAY = 86_400_000_000_000


class Gateway:
    """Accepts batches in a store and puts them on its queue, as a gateway does."""

    def __init__(self, folder: Path) -> None:
        self.url = folder.as_uri()
        self._store = open_store(self.url)

    def accept(self, *frames: bytes) -> list[IdentityManifest]:
        """Accept frames. Returns the identity manifests."""
        acceptor = Acceptor(
            store=self._store, clock=SystemClock(), ids=RandomIds(), random=Random(1), collector_id="gateway-1"
        )

        async def accept(frame: bytes) -> IdentityManifest:
            answer = await acceptor.accept(Submission.of(frame, decode_frame(frame)))
            assert isinstance(answer, Accepted)
            return answer.manifest

        async def all_of_them() -> list[IdentityManifest]:
            return [await accept(frame) for frame in frames]

        return asyncio.run(all_of_them())

    def store_frame(self, frame: bytes) -> None:
        """Store a frame without accepting it."""
        asyncio.run(self._store.put(raw_blob(frame_sha256(frame)), frame))

    def overlaps(self) -> dict[str, OverlapManifest]:
        """The records of overlaps, as operators see them, by the keys of the identity manifests."""
        conflicts = Conflicts(store=self._store, clock=SystemClock(), ids=RandomIds(), collector_id="test")
        page = asyncio.run(conflicts.list())
        return {keys.accepted(each.identity): cast("OverlapManifest", each.manifest) for each in page.conflicts}

    def is_kept(self, manifest: IdentityManifest) -> bool:
        """Whether a reverse reference keeps the frame of a batch."""
        key = keys.quarantine_by_blob(manifest.frame_sha256, manifest.identity)
        found = asyncio.run(self._store.get(key))
        return found is not None and QuarantineByBlob.decode(found.body, key).identity == manifest.identity

    def enqueue(self, *batches: Sequence[IdentityManifest]) -> None:
        """Put accepted batches on the queue; each argument becomes a message."""

        async def put() -> None:
            place = ObjectStoreConfig(url=self.url)
            async with Ingestor(IngestorConfig(object_store_config=place)) as ingestor:
                for each in batches:
                    await BufferedLandingQueue(ingestor).put(each)

        asyncio.run(put())


def samples(start: int, end: int, *, boot: str = "boot-1", other: Collection[int] = ()) -> bytes:
    """A frame of samples with these sequence numbers, both included.

    A record is the same in every frame, but for those of `other`.
    """
    rows = [
        {
            "time": NOON + n * DAY // 8 + 1,
            "metric": f"m{n % 2}",
            "labels": [("n", str(n))],
            "type": "gauge",
            "value": -n if n in other else n,
        }
        for n in range(start, end + 1)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=SAMPLES_V1)
    return encode_frame(BatchIdentity("agent/a", boot, start, end), FrameKind.SAMPLES, batch)


def logs(start: int, end: int, *, said: str = "line") -> bytes:
    none: list[object] = []
    rows = [
        {"time": NOON, "body": f"{said} {n}", "attributes": none, "resource_attributes": none, "scope_attributes": none}
        for n in range(start, end + 1)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=LOGS_V1)
    return encode_frame(BatchIdentity("agent/a", "boot-logs", start, end), FrameKind.LOGS, batch)


def consumer_of(folder: Path, gateway: Gateway, **settings: Any) -> Consumer:
    """A pipeline that lands what a gateway accepts."""
    return Consumer(
        folder,
        {"type": "manifest", "store": gateway.url},
        tables=(
            {"table": SAMPLES, "format": "frames", "kind": "samples"},
            {"table": LOGS, "format": "frames", "kind": "logs"},
        ),
        settings={"messages": "accepted", **settings},
    )
