"""Authorities of the benchmark of care: batches that were accepted hours ago, and all that is derived of them."""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import msgspec
import pyarrow as pa

from bench.gateway_frames import Frames
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.lake.catalog import open_catalog
from lakehead.run.config.config_file import read_config
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.consume_wiring import ConsumeWiring
from lakehead.run.gc_wiring import GcWiring
from lakehead.run.reconcile_wiring import ReconcileWiring
from lakehead.spark.settings import EMBEDDED, embedded_catalog
from lakehead.state.model import Numbered, StoredLanding, StoredPointer
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.frame import frame_sha256, peek_frame
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime, RawBlobByTime
from lakehead.wire.key_parts import boot_part
from lakehead.wire.spans import merged
from lakehead.wire.utc_hours import HOUR_NS, UtcHour
from tests.support.gateways import gateway_config

TABLE = "bench.samples"
AGENTS = 4
PER_HOUR = 250
"""Batches of all agents that were accepted in an hour."""

WRITES_AT_ONCE = 32
HORIZON_DAYS = 1e-6
"""A tenth of a second: what is stored before garbage collection begins can be an orphan."""


@dataclass
class Authority:
    """A store that is an acceptance authority, with batches in it."""

    folder: Path
    url: str
    env: Mapping[str, str]
    frame_keys: dict[str, str] = field(default_factory=dict)
    """The key of each accepted batch's frame, by that of its identity manifest."""

    _orphans: int = 0

    @cached_property
    def config(self) -> PipelineConfig:
        """The configuration of its gateway, its reconciler, its garbage collection, and a pipeline of what it accepts.

        The pipeline's lakehouse and state are local, wherever the store is.
        """
        gateway = json.loads(gateway_config(self.folder, self.url, collector_id="gateway").read_text())
        queue = {
            "type": "manifest",
            "store": self.url,
            "manifest_path": "landing-queue/manifest.json",
            "data_path_prefix": "landing-queue/data",
        }
        route = {"table": TABLE, "format": "frames", "kind": "samples"}
        file = self.folder / "care.json"
        file.write_text(
            json.dumps(
                {
                    **gateway,
                    "runtime": {"state": {"url": f"sqlite:///{self.folder}/state.sqlite"}},
                    "spark": {"lakehouse": str(self._lakehouse)},
                    "pipelines": {"bench": {"queue": queue, "messages": "accepted", "tables": [route]}},
                    "gc": {"retry_horizon_days": HORIZON_DAYS},
                }
            )
        )
        return read_config(file)

    @property
    def _lakehouse(self) -> Path:
        return self.folder / "lakehouse"

    @cached_property
    def reconciling(self) -> ReconcileWiring:
        """The reconciler, as `lakehead reconcile` opens it."""
        return ReconcileWiring(self.config, self.env)

    @property
    def collecting(self) -> GcWiring:
        """Garbage collection, as `lakehead gc` opens it."""
        return GcWiring(self.config, self.env)

    @property
    def store(self) -> Store:
        """Where everything is, as the reconciler reaches it."""
        return self.reconciling.store

    async def fill(self, batches: int) -> None:
        """Make it an authority that has accepted so many batches, some each hour, the last of them hours ago."""
        gateway = self.reconciling.gateway
        await gateway.store.ensure_probed()
        await gateway.authority.init(gateway.config.ingest.acceptance, by="bench")
        frames, first = Frames(), UtcHour(time.time_ns() // HOUR_NS - batches // PER_HOUR - 3)

        def objects() -> Iterable[dict[str, bytes]]:
            for number in range(batches):
                agent, hour = f"agent-{number % AGENTS:02}", UtcHour(first.number + number // PER_HOUR)
                body = b"".join(map(bytes, frames.frame(agent, "boot", number // AGENTS)))
                yield self._accepted(body, hour.start_ns + number)

        await _put_all(self.store, objects())
        self._land()

    def _land(self) -> None:
        """Note that all batches have landed in a table, which is empty: the reconciler asks the state alone."""
        self._lakehouse.mkdir()
        with closing(open_catalog(EMBEDDED, embedded_catalog(self._lakehouse))) as catalog:
            catalog.create_namespace(TABLE.partition(".")[0])
            schema = pa.schema([pa.field("value", pa.float64())])
            uuid = str(catalog.create_table(TABLE, schema).metadata.table_uuid)
        spans: dict[str, list[tuple[int, int]]] = {}
        for key in self.frame_keys:
            identity = keys.parse_accepted(key)
            if identity is not None:
                stream = boot_part(identity.agent_id, identity.boot_id)
                spans.setdefault(stream, []).append((identity.seq_start, identity.seq_end + 1))
        landing = StoredLanding(
            snapshot=1, units=(), numbered=tuple(Numbered(stream, merged(some)) for stream, some in spans.items())
        )
        with ConsumeWiring(self.config, self.env).open_state(SystemClock(), RandomIds()) as state:
            state.landings.settle(uuid, None, StoredPointer(1, 1), [landing])

    async def add_orphans(self, count: int) -> None:
        """Add frames that were uploaded an hour ago or more, and never accepted."""
        frames, hour = Frames(seed=2), UtcHour(time.time_ns() // HOUR_NS - 2)

        def objects() -> Iterable[dict[str, bytes]]:
            for _ in range(count):
                body = b"".join(map(bytes, frames.frame("agent-lost", "boot", self._orphans)))
                self._orphans += 1
                yield _uploaded(body, hour)

        await _put_all(self.store, objects())

    def _accepted(self, body: bytes, at_ns: int) -> dict[str, bytes]:
        header = peek_frame(body)
        manifest = msgspec.structs.replace(
            IdentityManifest.of(header, frame_sha256(body), accepted_at_unix_ns=at_ns, collector_id="gateway"),
            nonce="0" * 32,
            kind=header.kind.name.lower(),
        )
        by_time, by_blob = AcceptedByTime.of(manifest), AcceptedByBlob.of(manifest)
        self.frame_keys[manifest.key] = manifest.raw_blob_key
        return {
            **_uploaded(body, manifest.hour),
            manifest.key: manifest.encode(),
            by_time.key: by_time.encode(),
            by_blob.key: by_blob.encode(),
        }


def _uploaded(body: bytes, hour: UtcHour) -> dict[str, bytes]:
    sha256 = frame_sha256(body)
    entry = RawBlobByTime.of(peek_frame(body).identity, sha256, len(body))
    return {keys.raw_blob(sha256): body, entry.key_in(hour): entry.encode()}


async def _put_all(store: Store, batches: Iterable[Mapping[str, bytes]]) -> None:
    left = iter(batches)

    async def put_some() -> None:
        for objects in left:
            for key, body in objects.items():
                await store.put(key, body)

    await asyncio.gather(*(put_some() for _ in range(WRITES_AT_ONCE)))
