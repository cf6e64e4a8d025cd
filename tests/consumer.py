"""Pipelines that consume a queue, for a test: a configuration, runs of it, and what they made."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from lakehead.buffer.config import ObjectStoreConfig
from lakehead.clock import Clock, SystemClock
from lakehead.consume import coordinator
from lakehead.consume.coordinator import STOP_SECONDS
from lakehead.consume.queue import Queue
from lakehead.consume.queues.manifest_queue import ManifestQueue, ManifestQueueSettings
from lakehead.consume.settings import PipelineSettings
from lakehead.ids import Ids, Random, RandomIds
from lakehead.lake.catalog import open_catalog
from lakehead.lake.dead_letters import DeadLetters
from lakehead.run import consume_pipelines
from lakehead.run.config.config_file import read_config
from lakehead.run.config.consume_config import ConsumeConfig, ManifestQueueConfig
from lakehead.run.consume_wiring import ConsumeWiring, pipeline_settings
from lakehead.run.environment import store_settings
from lakehead.run.resolved_config import ResolvedConfig
from lakehead.spark.settings import EMBEDDED, embedded_catalog
from lakehead.state.opening import open_state
from lakehead.storage.open_store import open_store
from lakehead.wire.dead_letters import DeadLetterObject
from tests.servers.seaweed import ACCESS_KEY, SECRET_KEY, Seaweed
from tests.servers.sqs import REGION, SqsServer

PIPELINE = "files"
TABLE = "raw.files"
HEARTBEAT = timedelta(seconds=2)
NEVER = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickSettings(PipelineSettings):
    """Settings of a test: a failed object comes again at once, and a held one is another's soon."""

    retry_delay: timedelta = timedelta(0)
    longest_retry_delay: timedelta = timedelta(0)
    shortest_lease: timedelta = timedelta(0)

    @property
    def lease(self) -> timedelta:
        """Twice the commit timeout, with a minimum of the test instead of that of production."""
        return max(self.shortest_lease, 2 * self.commit_timeout)


class QuickWiring(ConsumeWiring):
    """The wiring, but that a consumer of a manifest queue that was killed is known to be dead soon."""

    heartbeat_timeout = HEARTBEAT

    async def open_queue(self, config: ConsumeConfig, clock: Clock, ids: Ids, random: Random) -> Queue:
        if not isinstance(config.queue, ManifestQueueConfig):
            return await super().open_queue(config, clock, ids, random)
        store = replace(
            store_settings(config.queue.store, self.environment),
            connect_timeout=self.heartbeat_timeout.total_seconds() / 4,
        )
        given = {"manifest_path": config.queue.manifest_path, "data_path_prefix": config.queue.data_path_prefix}
        settings = ManifestQueueSettings(
            object_store_config=ObjectStoreConfig(url=config.queue.store, settings=store),
            heartbeat_timeout=self.heartbeat_timeout,
            done_cleanup_threshold=NEVER,
            **{name: path for name, path in given.items() if path is not None},
        )
        return ManifestQueue(settings, clock, ids=ids, random=random)


def be_quick(*, heartbeat_timeout: timedelta = HEARTBEAT, **more: Any) -> None:
    """Let pipelines of this process have the settings of a test, from now on."""

    class Wiring(QuickWiring):
        pass

    Wiring.heartbeat_timeout = heartbeat_timeout

    def quick(name: str, config: ConsumeConfig) -> PipelineSettings:
        usual = pipeline_settings(name, config)
        given = {each.name: getattr(usual, each.name) for each in fields(usual) if "retry" not in each.name}
        return QuickSettings(**{**given, **more})

    setattr(coordinator, "STOP_SECONDS", 1.0)  # noqa: B010 - as below
    setattr(consume_pipelines, "pipeline_settings", quick)  # noqa: B010 - a function is replaced, which mypy would not have
    setattr(consume_pipelines, "ConsumeWiring", Wiring)  # noqa: B010 - as above


def be_usual() -> None:
    """Let pipelines of this process have their own settings again."""
    setattr(coordinator, "STOP_SECONDS", STOP_SECONDS)  # noqa: B010 - as above
    setattr(consume_pipelines, "pipeline_settings", pipeline_settings)  # noqa: B010 - as above
    setattr(consume_pipelines, "ConsumeWiring", ConsumeWiring)  # noqa: B010 - as above


@dataclass
class Consumer:
    """A configuration with one pipeline, in a folder of its own with its state and lakehouse."""

    folder: Path
    queue: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    tables: Sequence[Mapping[str, Any]] = ({"table": TABLE, "format": "ndjson"},)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lakehouse(self) -> Path:
        return self.folder / "lakehouse"

    def config(self) -> Path:
        """The configuration's file, written anew."""
        quick = {"commit_timeout_seconds": 0.2, "visibility_seconds": 30.0, "max_tries": 3}
        pipeline = {"queue": dict(self.queue), "tables": [dict(each) for each in self.tables], **quick, **self.settings}
        written = {
            "runtime": {
                "pipeline": "test",
                "state": {"url": self.state_url},
                "logging": {"json": True},
                "heartbeat_seconds": 1,
            },
            "spark": {"lakehouse": str(self.lakehouse), "master": "local[2]"},
            "pipelines": {PIPELINE: pipeline},
        }
        path = self.folder / "config.json"
        path.write_text(json.dumps(written))
        return path

    @property
    def state_url(self) -> str:
        return f"sqlite:///{self.folder}/state.sqlite"

    def run(self, session: SparkSession, **more: Any) -> int:
        """Run it here until its queue is empty; the exit code."""
        file = self.config()
        resolved = ResolvedConfig(read_config(file), self.environment)
        resolved.check()
        be_quick(**more)
        try:
            return consume_pipelines.run_pipelines(
                resolved, [PIPELINE], lambda: session, config_file=file, until_empty=True, metrics_port=None
            )
        finally:
            be_usual()

    # --- what came of it

    def rows(self, table: str = TABLE) -> pa.Table:
        """What a table holds, as PyIceberg reads it; no rows if there is no such table, or it has no columns yet."""
        if self.lakehouse.exists():
            with closing(open_catalog(EMBEDDED, embedded_catalog(self.lakehouse))) as catalog:
                if catalog.table_exists(table):
                    return catalog.load_table(table).scan().to_arrow()
        return pa.table({"_uri": pa.array([], pa.string()), "_row": pa.array([], pa.int64())})

    def counts(self, table: str = TABLE) -> Counter[tuple[str, int]]:
        """How often a table has each row of each object."""
        rows = self.rows(table)
        return Counter(zip(rows["_uri"].to_pylist(), rows["_row"].to_pylist(), strict=True))

    def uuid(self, table: str = TABLE) -> str:
        with closing(open_catalog(EMBEDDED, embedded_catalog(self.lakehouse))) as catalog:
            return str(catalog.load_table(table).metadata.table_uuid)

    def landings(self, table: str = TABLE) -> int:
        """How many snapshots a table has."""
        with closing(open_catalog(EMBEDDED, embedded_catalog(self.lakehouse))) as catalog:
            return len(catalog.load_table(table).history())

    def letters(self, table: str = TABLE) -> list[DeadLetterObject]:
        """The dead letters of a table, in the ledger and in the state, which say the same."""

        async def listed() -> list[DeadLetterObject]:
            letters = DeadLetters(open_store((self.lakehouse / "ledger").as_uri()))
            return [each async for each in letters.list(uuid) if isinstance(each, DeadLetterObject)]

        uuid = self.uuid(table)
        stored = asyncio.run(listed())
        with open_state(self.state_url, SystemClock(), RandomIds()) as state:
            indexed = state.history.dead_letters(uuid)
        assert {(each.unit, each.reason) for each in indexed} == {(each.unit, each.reason) for each in stored}
        return stored


def sqs(server: SqsServer, queue: str) -> dict[str, Any]:
    """A queue of a server, as a configuration has it."""
    return {"type": "sqs", "queue": queue, "endpoint": f"http://127.0.0.1:{server.port}", "region": REGION}


def aws(seaweed: Seaweed | None = None, *, endpoint: str | None = None) -> dict[str, str]:
    """The variables of the AWS tools, for objects of a server."""
    given = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY, "AWS_REGION": REGION}
    where = endpoint or (seaweed.endpoint if seaweed else None)
    return {**given, "AWS_ENDPOINT_URL": where} if where else given


def lines(count: int, *, first: int = 0) -> bytes:
    """An NDJSON object of so many lines."""
    return b"".join(b'{"id": %d, "name": "n%d"}\n' % (number, number) for number in range(first, first + count))
