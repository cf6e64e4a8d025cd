"""What senders that people have count as sent to an agent lands in the tables once, though the agent dies meanwhile.

A real Prometheus, and a program with OpenTelemetry's SDK. The agent dies once for each of them and for each kind of its
records at the worst moment: when a request is on disk, and before its sender is told.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.accepted import LOGS, SAMPLES
from tests.consumer import Consumer
from tests.faults.agent_faults import dies_before_it_answers
from tests.lakehouse import Lakehouse
from tests.servers.otel_sdk import OtelProgram
from tests.servers.ports import free_ports
from tests.servers.prometheus import Prometheus
from tests.servers.scrape_target import CounterTarget
from tests.support.agents import AgentProcess, agent_config
from tests.support.costs import Mechanism, add
from tests.support.effort import effort
from tests.support.gateways import GatewayAuthority
from tests.support.spark import shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(effort(300, soak=3_000))]  # the very first start fetches jars

DEATHS = ("seen_total", "otel_ticks", "otel line") * effort(1, soak=30)
"""Of what the request is that is on disk when the agent dies: Prometheus's, metrics and logs of the SDK."""

REQUESTS = 4
"""How many requests it takes before that, from whomever."""

SECONDS = 100.0
"""How long a sender may take to go on: it ends what hangs."""

CONFIG = """
global: {{scrape_interval: 100ms, scrape_timeout: 100ms}}
scrape_configs: {scraped}
remote_write:
- url: {agent}/api/v1/write
  queue_config: {{batch_send_deadline: 100ms, min_backoff: 30ms, max_backoff: 100ms}}
"""
SCRAPED = "[{{job_name: target, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}]"
STORAGE = "prometheus_remote_storage_"
SENT, RETRIED, FAILED, DROPPED, PENDING, ENQUEUED = (
    f"{STORAGE}samples_{each}"
    for each in ("total", "retried_total", "failed_total", "dropped_total", "pending", "in_total")
)


@dataclass(frozen=True)
class Outcome:
    """What senders count as sent, and what is in the tables."""

    prometheus: dict[str, float]
    """Its own metrics."""

    scraped: dict[str, list[tuple[int, float]]]
    otel: OtelProgram
    samples: list[dict[str, Any]]
    logs: list[dict[str, Any]]


def until(holds: Callable[[], bool]) -> None:
    """Ask again and again: another process tells nobody when it is so far."""
    ends = time.monotonic() + SECONDS
    for pause in repeat(0.05):
        if holds():
            return
        assert time.monotonic() < ends, "nothing happens any more"
        time.sleep(pause)


class Senders:
    """A Prometheus and a program with OpenTelemetry's SDK, which send to one address."""

    def __init__(self, folder: Path, agent: str, stack: ExitStack) -> None:
        self.agent = agent
        self.target = stack.enter_context(CounterTarget())
        self.prometheus = Prometheus(
            folder,
            self._config(is_scraping=True),
            "--web.enable-lifecycle",
        )
        try:
            self.prometheus.start()
        except FileNotFoundError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))  # on a laptop; CI unpacks it, and fails without
        stack.callback(self.prometheus.kill)
        self.otel = OtelProgram(agent)
        self._running = stack.enter_context(ExitStack())

    def start_program(self) -> None:
        """Start the program. The SDK drops what it cannot send for a minute."""
        self._running.enter_context(self.otel)

    def _config(self, *, is_scraping: bool) -> str:
        scraped = SCRAPED.format(port=self.target.port) if is_scraping else "[]"
        return CONFIG.format(scraped=scraped, agent=self.agent)

    def progress(self) -> tuple[float, float, float]:
        """How much each has sent, and was told so."""
        return self._delivered(), self.otel.metrics.exports, self.otel.logs.exports

    def until_all_go_on(self) -> None:
        before = self.progress()
        until(lambda: all(now > then for now, then in zip(self.progress(), before, strict=True)))

    def stop(self) -> None:
        """Let nothing new come, and return when all is sent."""
        self._running.close()
        self.prometheus.reload(self._config(is_scraping=False))
        until(lambda: self._delivered() == self.prometheus.metric(ENQUEUED))

    def _delivered(self) -> float:
        metric = self.prometheus.metric
        return metric(SENT) - metric(RETRIED) - metric(FAILED) if metric(PENDING) == 0 else -1


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("senders")
    [port] = free_ports(1)
    with ExitStack() as stack:
        # First, because it takes 5 s before it looks at its targets: the rest starts meanwhile.
        senders = Senders(folder / "prometheus", f"http://127.0.0.1:{port}", stack)
        spark = shared_session(Lakehouse.settings(tmp_path_factory.mktemp("spark")))
        authority = GatewayAuthority(folder, None)
        gateway = authority.gateway("gateway").start()
        stack.callback(gateway.kill)
        config = agent_config(
            folder / "agent", "agent", authority.token, [gateway.ingest], listener={"port": port}, batch_seconds=0.3
        )
        agent = AgentProcess(config, {}, folder / "agent.log")
        stack.callback(agent.kill)
        senders.start_program()
        for what in DEATHS:
            agent.before = partial(dies_before_it_answers, what, REQUESTS)
            agent.start()
            assert agent.wait() == -signal.SIGKILL, agent.said
            add(Mechanism.KILLS)
        agent.before = None
        agent.start()
        senders.until_all_go_on()
        senders.stop()
        told = agent.flush()
        assert told["accepted"], told
        assert (agent.terminate(), gateway.terminate()) == (0, 0)
        told_by_prometheus = {name: senders.prometheus.metric(name) for name in (SENT, RETRIED, FAILED, DROPPED)}
        scraped = senders.prometheus.raw_samples('{job="target"}')
    consumer = Consumer(
        folder,
        {
            "type": "manifest",
            "store": authority.url,
            "manifest_path": "landing-queue/manifest.json",
            "data_path_prefix": "landing-queue/data",
        },
        tables=(
            {"table": SAMPLES, "format": "frames", "kind": "samples"},
            {"table": LOGS, "format": "frames", "kind": "logs"},
        ),
        settings={"messages": "accepted"},
    )
    assert consumer.run(spark) == 0
    samples, logs = (consumer.rows(table) for table in (SAMPLES, LOGS))
    columns = ["time_unix_ns", "metric", "labels", "value"]
    return Outcome(
        told_by_prometheus,
        scraped,
        senders.otel,
        samples.select(columns).to_pylist(),
        logs.select(["body"]).to_pylist(),
    )


def of_prometheus(outcome: Outcome) -> list[dict[str, Any]]:
    return [row for row in outcome.samples if dict(row["labels"]).get("job") == "target"]


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["metric"], repr(sorted(row["labels"])), row["time_unix_ns"]


def test_every_sample_that_prometheus_counts_as_sent_has_landed_once(outcome: Outcome) -> None:
    found, told = of_prometheus(outcome), outcome.prometheus

    assert len({key(row) for row in found}) == len(found), "twice"
    assert (told[FAILED], told[DROPPED]) == (0, 0)
    assert told[RETRIED] > 0, "the agent died in the middle"
    assert len(found) == told[SENT] - told[RETRIED]


def test_what_prometheus_has_scraped_is_what_has_landed(outcome: Outcome) -> None:
    values = {key(row): row["value"] for row in of_prometheus(outcome)}
    compared = 0
    for described, samples in outcome.scraped.items():
        labels = json.loads(described)
        name = labels.pop("__name__")
        for at, value in samples:
            assert values[name, repr(sorted(labels.items())), at * 1_000_000] == value
            compared += 1
    assert compared > 50


def test_every_point_that_opentelemetrys_sdk_counts_as_sent_has_landed_once(outcome: Outcome) -> None:
    metrics = outcome.otel.metrics
    landed = Counter(
        (row["metric"], row["time_unix_ns"]) for row in outcome.samples if row["metric"].startswith("otel")
    )

    assert metrics.failed == Counter()
    assert landed == metrics.sent
    assert {name for name, _ in landed} == {"otel_ticks", "otel_seconds"}


def test_every_log_record_that_opentelemetrys_sdk_counts_as_sent_has_landed_once(outcome: Outcome) -> None:
    logs = outcome.otel.logs

    assert logs.failed == Counter()
    assert Counter(row["body"] for row in outcome.logs) == logs.sent
    assert len(logs.sent) > 50
