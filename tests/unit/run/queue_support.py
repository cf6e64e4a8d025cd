"""A folder with a queue in it, written by hand or by ingestors and collectors, and the command `lakehead queue`."""

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from lakehead.buffer.collector import CollectedBatch, Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.ingestor import Ingestor
from lakehead.clock import SystemClock
from lakehead.wire.batch import BatchLimits, KeyValueEntry, encode_json

GOLDEN = Path(__file__).parents[2] / "golden" / "buffer"
PRODUCER, CONSUMER = "ingest/manifest.json", "ingest/manifest.consumer.json"
FIRST, SECOND, THIRD = (
    "data/f47ac10b-58cc-4372-a567-0e02b2c3d479.batch",
    "data/9b2e1c4d-83f5-4a1e-b9d7-6f8e2a3c5b10.batch",
    "data/3d6f4a9e-c2b7-41d8-9e5f-7a1b3c8d2e6f.batch",
)
"""In the order of the specification's producer manifest."""
BATCH = encode_json([KeyValueEntry(b"key", b"value")])

T = TypeVar("T")


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Lake:
    """A folder with one queue in it, and the command `lakehead queue` for it."""

    def __init__(self, folder: Path, run: Callable[..., Done]) -> None:
        self.folder, self._run = folder, run
        self.url = f"file://{folder}"
        self.where = ObjectStoreConfig(url=self.url)
        folder.mkdir()

    def queue(self, *arguments: str) -> Done:
        return self._run("queue", *arguments, "--store", self.url)

    def write(self, key: str, body: bytes | dict[str, Any]) -> Path:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body if isinstance(body, bytes) else json.dumps(body).encode())
        return path

    def read(self, key: str) -> Any:
        return json.loads((self.folder / key).read_bytes())

    def change(self, key: str, **changes: Any) -> None:
        self.write(key, {**self.read(key), **changes})

    def everything(self) -> dict[str, tuple[bytes, int]]:
        """Return what is stored, and when; without the store's own files."""
        return {
            str(path.relative_to(self.folder)): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in self.folder.rglob("*")
            if path.is_file() and ".lakehead" not in path.parts
        }

    def batches(self) -> set[str]:
        return {key for key in self.everything() if key.endswith(".batch") and key.count("/") == 1}

    def by_hand(self) -> None:
        """Write the queue of the specification, as other software would."""
        self.write(PRODUCER, (GOLDEN / "producer-manifest.spec.json").read_bytes())
        self.write(CONSUMER, (GOLDEN / "consumer-manifest.spec.json").read_bytes())
        for location in (FIRST, SECOND, THIRD):
            self.write(location, BATCH)

    def ingest(self, *values: str, **settings: Any) -> None:
        """Flush one batch for each value."""

        async def flush_all() -> None:
            config = IngestorConfig(
                object_store_config=self.where, flush_interval=timedelta(milliseconds=1), **settings
            )
            async with Ingestor(config, SystemClock()) as ingestor:
                for value in values:
                    entries = [KeyValueEntry(f"key-{number}".encode(), value.encode()) for number in range(8)]
                    await (await ingestor.ingest(entries)).await_durable()

        asyncio.run(flush_all())

    def collect(
        self,
        work: Callable[[Collector], Coroutine[Any, Any, T]],
        *,
        limits: BatchLimits | None = None,
        **settings: Any,
    ) -> T:
        async def collect() -> T:
            config = CollectorConfig(object_store_config=self.where, **settings)
            async with Collector(config, SystemClock(), limits=limits) as collector:
                return await work(collector)

        return asyncio.run(collect())


async def everything(collector: Collector) -> list[CollectedBatch]:
    """Acknowledge and return all batches."""
    found = []
    while (batch := await collector.next_batch()) is not None:
        found.append(batch)
        await collector.ack(batch)
    return found


def make_older(path: Path, *, hours: float) -> None:
    then = path.stat().st_mtime - hours * 3600
    os.utime(path, (then, then))


async def one_of_three(collector: Collector) -> None:
    """Acknowledge one batch, hold one as if the process had died, and leave one waiting."""
    first = await collector.next_batch()
    await collector.next_batch()
    assert first is not None
    await collector.ack(first)
    for reader in collector._readers.all:
        ahead = [claim.location for claim in reader.consumer.held.values() if not claim.handed_out]
        await reader.consumer.release(ahead)
    collector._readers.all.clear()


def orphan(lake: Lake, name: str, *, hours: float) -> str:
    key = f"ingest/{name}-bbfd-4b2d-9b5d-ab8dfbbd4bed.batch"
    make_older(lake.write(key, BATCH), hours=hours)
    return key


def quarantine_one(lake: Lake) -> str:
    """Move a batch to quarantine that is too large for its collector; return its location."""
    lake.ingest("value")
    [location] = lake.read(PRODUCER)["pending"]
    assert lake.collect(everything, limits=BatchLimits(entries=1)) == []
    return str(location)
