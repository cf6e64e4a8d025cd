"""What the parts of the consume benchmark share: a lakehouse, objects of each format, and pipelines on it."""

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.landing import SCHEMA, made
from lakehead.clock import SystemClock
from lakehead.consume.coordinator import QueueCoordinator
from lakehead.consume.queue import Queue
from lakehead.ids import RandomIds, system_random
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.consume_wiring import ConsumeWiring, PipelineDeps, pipeline_settings
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.stopping import StopSignal
from lakehead.spark.jobs import ThreadSessions
from lakehead.spark.session import build_session, stop_session
from lakehead.spark.settings import EMBEDDED
from lakehead.state.state import State
from lakehead.wire.batch import KeyValueEntry
from lakehead.wire.compact import encode_compact

CLOCK = SystemClock()
CHECK_SECONDS = 0.01

TYPES = {
    "id": "long",
    "customer": "long",
    "product": "int",
    "quantity": "int",
    "price": "decimal(12,2)",
    "paid": "boolean",
    "ordered": "timestamptz",
    "day": "date",
    "status": "string",
    "note": "string",
}
COLUMNS = [{"name": name, "type": kind} for name, kind in TYPES.items()]
SQL_TYPES = {"long": "bigint", "timestamptz": "timestamp"}
SPARK_COLUMNS = ", ".join(f"{name} {SQL_TYPES.get(kind, kind)}" for name, kind in TYPES.items())


def json_rows(first: int, rows: int) -> list[bytes]:
    """Rows as JSON objects: decimals as numbers, times as text, as most producers write them."""
    table = pa.Table.from_batches(made(first, rows), SCHEMA)
    encoder = msgspec.json.Encoder(decimal_format="number")
    return [encoder.encode(row) for row in table.to_pylist()]


def write_objects(folder: Path, name: str, objects: int, rows: int) -> list[str]:
    """Write objects of some rows each. Returns their URIs."""
    target = folder / name
    target.mkdir()
    uris = []
    for number in range(objects):
        path, first = target / f"{number:05}.{name}", number * rows
        if name == "parquet":
            pq.write_table(pa.Table.from_batches(made(first, rows), SCHEMA), path)
        elif name == "ndjson":
            path.write_bytes(b"\n".join(json_rows(first, rows)) + b"\n")
        else:
            path.write_bytes(encode_compact([KeyValueEntry(b"", row) for row in json_rows(first, rows)]))
        uris.append(path.as_uri())
    return uris


@dataclass
class Lakehouse:
    """A lakehouse in a folder with a session, and pipelines on it."""

    folder: Path
    session: SparkSession
    state: State

    def __post_init__(self) -> None:
        self.numbers = count()

    @cached_property
    def deps(self) -> PipelineDeps:
        """What pipelines share."""
        return PipelineDeps(
            state=self.state,
            sessions=ThreadSessions(self.session),
            run="bench",
            clock=CLOCK,
            ids=RandomIds(),
            random=system_random(),
            stop=StopSignal(),
            waiting=print,
        )

    def check_rows(self, table: str, rows: int) -> None:
        """End the benchmark if a table has other than so many rows: a message is also acknowledged without landing."""
        found = self.session.table(f"{EMBEDDED}.{table}").count()
        if found != rows:
            sys.exit(f"The table {table} has {found:,} rows instead of {rows:,}.")

    def pipeline(self, queue: dict[str, Any], table: dict[str, Any], **settings: Any) -> "Pipeline":
        """A pipeline into one table."""
        return Pipeline(self, _wiring(self.folder, {"queue": queue, "tables": [table], **settings}))


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that can be run once or several times."""

    lakehouse: Lakehouse
    wiring: ConsumeWiring

    def run(self, is_done: Callable[[QueueCoordinator, Queue], bool]) -> None:
        """Run until it is done."""
        asyncio.run(self.run_until(is_done))

    async def run_until(self, is_done: Callable[[QueueCoordinator, Queue], bool]) -> None:
        """Run until it is done, beside other tasks."""
        config, deps = self.wiring.config.pipelines["bench"], self.lakehouse.deps
        async with AsyncExitStack() as opened:
            queue = await self.wiring.open_queue(config, deps.clock, deps.ids, deps.random)
            opened.push_async_callback(queue.close)
            coordinator = self.wiring.coordinator(pipeline_settings("bench", config), config, queue, deps, opened)
            running = asyncio.ensure_future(coordinator.run())
            while not is_done(coordinator, queue) and not running.done():  # noqa: ASYNC110 - counts set no event
                await asyncio.sleep(CHECK_SECONDS)
            coordinator.stop()
            await running


@contextmanager
def open_lakehouse(folder: Path) -> Iterator[Lakehouse]:
    """Open a lakehouse in a folder, with a Spark session on two cores."""
    wiring = _wiring(folder, None)
    session = build_session(wiring.spark_settings, say=print)
    try:
        with wiring.open_state(CLOCK, RandomIds()) as state:
            yield Lakehouse(folder, session, state)
    finally:
        stop_session(session)


def _wiring(folder: Path, pipeline: dict[str, Any] | None) -> ConsumeWiring:
    config = PipelineConfig.model_validate(
        {
            "runtime": {"state": {"url": f"sqlite:///{folder}/state.sqlite"}},
            "sinks": {"lake": {"type": "iceberg"}},
            "spark": {"lakehouse": str(folder / "lakehouse"), "master": "local[2]"},
            "pipelines": {} if pipeline is None else {"bench": pipeline},
        }
    )
    wiring = ConsumeWiring(config, ENVIRONMENT)
    wiring.check()
    return wiring
