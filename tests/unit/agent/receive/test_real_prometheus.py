"""A real Prometheus writes to an agent that refuses for a while: each of its samples is in the spool once."""

import asyncio
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehead.agent.spool import Spool
from lakehead.agent.spool_entry import Spooled
from lakehead.agent.spool_errors import SpoolFull
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId
from tests.servers.prometheus import Prometheus
from tests.servers.scrape_target import ScrapeTarget
from tests.support.async_tests import run_bounded
from tests.unit.agent.receive.spool_support import spool_receivers

pytestmark = pytest.mark.slow

STALE = 0x7FF0000000000002
CONFIG = """
global: {{scrape_interval: 100ms, scrape_timeout: 100ms}}
scrape_configs:
- job_name: target
  static_configs: [{{targets: ['127.0.0.1:{target}']}}]
remote_write:
- url: http://127.0.0.1:{agent}/api/v1/write
  send_exemplars: true
  send_native_histograms: true
  metadata_config: {{send_interval: 1s}}
  queue_config: {{batch_send_deadline: 200ms, min_backoff: 30ms, max_backoff: 100ms}}
"""


@dataclass
class Refusing:
    """A spool that is full for a while, and whose word for some records is lost after they are on disk."""

    spool: Spool
    requests: list[RequestId | None] = field(default_factory=list)
    duplicates: int = 0
    refused: int = 0

    def check(self) -> None:
        if 3 <= len(self.requests) + self.refused < 8:
            self.refused += 1
            raise SpoolFull("The spool is full.")
        self.spool.check()

    async def append(self, kind: FrameKind, records: pa.RecordBatch, request: RequestId | None = None) -> Spooled:
        spooled = await self.spool.append(kind, records, request)
        self.requests.append(request)
        self.duplicates += spooled.duplicate
        if len(self.requests) in (10, 11, 14):
            raise SpoolFull("It is on disk, and nobody is told.")
        return spooled


@dataclass(frozen=True)
class Outcome:
    """What is in the spool, and what Prometheus scraped."""

    rows: list[dict[str, Any]]
    values: list[int]
    """The bits of the values of rows; of a histogram those of its sum."""

    scraped: dict[str, list[tuple[int, float]]]
    recorder: Refusing
    failed: float
    dropped: float
    retried: float


async def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Ask again and again: another process tells nobody when it is so far."""
    async with asyncio.timeout(seconds):
        for pause in repeat(0.05):
            if await asyncio.to_thread(holds):
                return
            await asyncio.sleep(pause)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Scrapes until samples, a gap and a stale marker were written, with refusals and lost answers between."""
    folder = tmp_path_factory.mktemp("prometheus")
    found: list[Outcome] = []
    run_bounded(_run(folder, found))
    return found[0]


async def _run(folder: Path, found: list[Outcome]) -> None:
    recorders: list[Refusing] = []

    def refusing(spool: Spool) -> Refusing:
        recorders.append(Refusing(spool))
        return recorders[-1]

    with ScrapeTarget() as target:
        async with spool_receivers(folder / "spool", recorder=refusing) as at:
            prometheus = Prometheus(
                folder / "prometheus",
                CONFIG.format(target=target.port, agent=at.port),
                "--enable-feature=native-histograms,exemplar-storage",
            )
            try:
                try:
                    await asyncio.to_thread(prometheus.start)
                except FileNotFoundError as error:
                    if os.environ.get("CI"):
                        raise
                    pytest.skip(str(error))  # on a laptop; CI unpacks it, and fails without
                await until(lambda: len(recorders[0].requests) > 15)
                target.shows_gauge = False
                before = target.scrapes
                await until(lambda: target.scrapes > before + 3)
                scraped = await asyncio.to_thread(prometheus.raw_samples, '{job="target"}')
                await until(lambda: _newest(scraped) < prometheus.metric(HIGHEST_SENT) * 1000)
                await until(lambda: prometheus.metric(PENDING) == 0)
                numbers = [await asyncio.to_thread(prometheus.metric, name) for name in (FAILED, DROPPED, RETRIED)]
            finally:
                await asyncio.to_thread(prometheus.stop)
            table = await at.records(FrameKind.SAMPLES)
    times = table["time"].cast("int64").to_pylist()
    rows = table.drop_columns(["time", "start_time"]).to_pylist()
    values = [row["distribution"]["sum"] if row["value"] is None else row["value"] for row in rows]
    found.append(
        Outcome(
            [{**row, "ms": at_ns // 1_000_000} for row, at_ns in zip(rows, times, strict=True)],
            [struct.unpack("<Q", struct.pack("<d", value))[0] for value in values],
            scraped,
            recorders[0],
            *numbers,
        )
    )


STORAGE = "prometheus_remote_storage_"
HIGHEST_SENT = f"{STORAGE}queue_highest_sent_timestamp_seconds"
PENDING, FAILED = f"{STORAGE}samples_pending", f"{STORAGE}samples_failed_total"
DROPPED, RETRIED = f"{STORAGE}samples_dropped_total", f"{STORAGE}samples_retried_total"


def _newest(scraped: dict[str, list[tuple[int, float]]]) -> int:
    return max(at for samples in scraped.values() for at, _ in samples)


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["metric"], repr(row["labels"]), row["ms"]


def test_every_sample_is_in_the_spool_once_although_some_were_sent_again(outcome: Outcome) -> None:
    keys = [key(row) for row in outcome.rows]

    assert len(set(keys)) == len(keys)
    assert (outcome.failed, outcome.dropped) == (0, 0)
    assert outcome.retried > 0
    assert outcome.recorder.refused == 5
    assert outcome.recorder.duplicates >= 3  # they were on disk, and came again


def test_what_prometheus_scraped_is_what_is_in_the_spool(outcome: Outcome) -> None:
    numbers = {key(row): row["value"] for row in outcome.rows if row["value"] is not None}
    compared = 0
    for described, samples in outcome.scraped.items():
        labels = json.loads(described)
        name = labels.pop("__name__")
        for at, value in samples:
            assert numbers[name, repr(sorted(labels.items())), at] == value
            compared += 1
    assert compared > 50


def test_a_series_that_ends_has_a_stale_marker_bit_for_bit(outcome: Outcome) -> None:
    present = [bits for row, bits in zip(outcome.rows, outcome.values, strict=True) if row["metric"] == "present"]

    assert present.count(STALE) == 1
    assert present[-1] == STALE
    assert set(present[:-1]) == {struct.unpack("<Q", struct.pack("<d", 1.0))[0]}


def test_native_histograms_have_the_buckets_that_were_observed(outcome: Outcome) -> None:
    found = [row for row in outcome.rows if row["metric"] == "seconds"]

    assert len(found) > 5
    for row in found:
        told = row["distribution"]
        count = told["positive_counts"][0]
        assert (row["type"], row["temporality"]) == ("exponential_histogram", "cumulative")
        assert (told["scale"], told["zero_count"], told["zero_threshold"]) == (2, 1.0, 0.001)
        assert told["positive_indexes"] == [-2, -1, 2]  # Prometheus's -1, 0 and 3
        assert told["positive_counts"] == [count] * 3
        assert (told["count"], told["sum"]) == (3 * count + 1, count * 2.5)


def test_names_and_labels_are_as_they_were_scraped(outcome: Outcome) -> None:
    seen = [row for row in outcome.rows if row["metric"] == "seen_total"]

    assert {dict(row["labels"])["color"] for row in seen} == {"grün"}
    assert {row["type"] for row in seen} == {"unknown"}
    assert {tuple(name for name, _ in row["labels"]) for row in seen} == {("color", "instance", "job")}
