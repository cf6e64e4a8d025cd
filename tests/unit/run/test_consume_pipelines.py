"""The pipelines of one process: what is told when they start, go on and end, and what is served to Prometheus."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, cast
from urllib.request import urlopen

import msgspec
import pytest

from lakehead.clock import SystemClock
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import UnitKey
from lakehead.consume.metrics import COUNTERS, PREFIX
from lakehead.consume.queue import Message
from lakehead.consume.uris import inline_id
from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import RandomIds
from lakehead.run.config.consume_config import ConsumeConfig, SqsQueueConfig
from lakehead.run.consume_pipelines import Pipelines, window_warning
from lakehead.run.consume_wiring import message_reader, pipeline_settings
from lakehead.run.observe.event_text import event_text
from lakehead.run.stopping import StopSignal
from lakehead.telemetry.emitter import Emitter, EventEnvelope
from lakehead.telemetry.events import Event, PipelineEnded, PipelineProgress, PipelineStarted
from tests.servers.ports import free_ports
from tests.support.async_tests import async_test

TABLES = [{"table": "raw.files", "format": "ndjson"}]


def configured(queue: str) -> ConsumeConfig:
    return ConsumeConfig.model_validate({"queue": {"type": "sqs", "queue": queue}, "tables": TABLES})


CONFIG = configured("events")


@dataclass
class FakeQueue:
    name: str = "events"
    retention: timedelta | None = None
    forgets: bool = True

    async def close(self) -> None:
        pass


@dataclass
class FakeCoordinator:
    """Runs until it is stopped, or does something else."""

    work: Callable[["FakeCoordinator"], Awaitable[None]] | None = None
    counts: ConsumeCounts = field(default_factory=ConsumeCounts)
    held_messages: int = 3
    remembered_units: int = 11
    lag_seconds: float | None = 7.5
    is_idle: bool = False
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self.stopped.set()

    async def run(self) -> None:
        if self.work is not None:
            await self.work(self)
        else:
            await self.stopped.wait()


class FakeWiring:
    """Pipelines by name, each with a coordinator of the test."""

    def __init__(self, coordinators: dict[str, FakeCoordinator]) -> None:
        configs = {name: configured(name) for name in coordinators}
        self.config = cast("Any", type("Config", (), {"pipelines": configs}))
        self.coordinators = coordinators
        self.silent: dict[str, int] = {}
        """How often the queue of a pipeline does not answer yet."""

    async def open_queue(self, config: ConsumeConfig, *_: object) -> FakeQueue:
        name = config.queue.queue if isinstance(config.queue, SqsQueueConfig) else ""
        if self.silent.get(name, 0):
            self.silent[name] -= 1
            raise Unavailable(f"The queue {name} does not answer.")
        return FakeQueue()

    def coordinator(self, settings: Any, *_: object, **__: object) -> FakeCoordinator:
        return self.coordinators[settings.name]


async def run(
    coordinators: dict[str, FakeCoordinator], *, note: Callable[[Event], None] = lambda _: None, **more: Any
) -> tuple[int, list[Event]]:
    """Run pipelines to their end; the exit code, and what was told."""
    _, code, told = await run_all(coordinators, note=note, **more)
    return code, told


async def run_all(
    coordinators: dict[str, FakeCoordinator], *, note: Callable[[Event], None] = lambda _: None, **more: Any
) -> tuple[Pipelines, int, list[Event]]:
    """Run pipelines to their end; they, the exit code, and what was told."""
    clock, ids = SystemClock(), RandomIds()
    emitter = Emitter("run", clock, ids)
    told: list[EventEnvelope] = []
    emitter.subscribe(told.append)
    emitter.subscribe(lambda envelope: note(envelope.event))
    deps = type("Deps", (), {"clock": clock, "ids": ids, "random": Random(1), "stop": StopSignal()})
    wiring = FakeWiring(coordinators)
    wiring.silent |= more.pop("silent", {})
    pipelines = Pipelines(
        wiring=cast("Any", wiring),
        deps=cast("Any", deps),
        emitter=emitter,
        clock=clock,
        heartbeat_seconds=more.pop("heartbeat_seconds", 60.0),
        config_file=Path("events.toml"),
        **more,
    )
    with emitter:
        code = await pipelines.run(list(coordinators))
    return pipelines, code, [envelope.event for envelope in told]


@async_test
async def test_a_pipeline_that_fails_is_told_and_does_not_stop_the_others() -> None:
    has_failed = asyncio.Event()

    async def fail(_: FakeCoordinator) -> None:
        raise Misconfigured("There is no such queue.")

    async def work(coordinator: FakeCoordinator) -> None:
        await has_failed.wait()
        coordinator.counts.landed += 1

    def note(event: Event) -> None:
        if isinstance(event, PipelineEnded) and event.pipeline == "bad":
            has_failed.set()

    code, told = await run({"bad": FakeCoordinator(fail), "good": FakeCoordinator(work)}, note=note)

    assert code == 1
    ended = {event.pipeline: event for event in told if isinstance(event, PipelineEnded)}
    assert ended["bad"].error == "There is no such queue."
    assert (ended["good"].error, ended["good"].counts["landed"]) == (None, 1)


@pytest.mark.slow
@async_test
async def test_a_pipeline_whose_queue_does_not_answer_waits_for_it_while_others_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    has_landed = asyncio.Event()

    async def land(coordinator: FakeCoordinator) -> None:
        coordinator.counts.landed += 1
        has_landed.set()

    async def land_after_the_other(coordinator: FakeCoordinator) -> None:
        assert has_landed.is_set()
        coordinator.counts.landed += 1

    code, told = await run(
        {"late": FakeCoordinator(land_after_the_other), "good": FakeCoordinator(land)}, silent={"late": 2}
    )

    assert code == 0
    ended = [(event.pipeline, event.counts["landed"]) for event in told if isinstance(event, PipelineEnded)]
    assert ended == [("good", 1), ("late", 1)]
    assert caplog.text.count("Pipeline late waits for its queue: The queue late does not answer.") == 1


@async_test
async def test_pipelines_end_when_their_queues_are_empty_if_that_is_asked_for() -> None:
    code, told = await run({"one": FakeCoordinator(is_idle=True)}, until_empty=True)

    assert code == 0
    assert [event.kind for event in told] == ["pipeline_started", "pipeline_ended"]


async def be_stopped(coordinator: FakeCoordinator) -> None:
    """As by a service manager."""
    os.kill(os.getpid(), signal.SIGTERM)
    await coordinator.stopped.wait()


@pytest.mark.parametrize(("until_empty", "code"), [(True, 1), (False, 0)])
def test_pipelines_that_are_stopped_have_failed_only_if_they_were_to_run_until_their_queues_are_empty(
    *, until_empty: bool, code: int
) -> None:
    @async_test
    async def test() -> None:
        assert (await run({"one": FakeCoordinator(be_stopped)}, until_empty=until_empty))[0] == code

    test()


@async_test
async def test_a_pipeline_that_was_empty_before_another_is_stopped_has_not_failed() -> None:
    has_ended = asyncio.Event()

    async def be_stopped_later(coordinator: FakeCoordinator) -> None:
        await has_ended.wait()
        await be_stopped(coordinator)

    def note(event: Event) -> None:
        if isinstance(event, PipelineEnded):
            has_ended.set()

    pipelines, code, _ = await run_all(
        {"empty": FakeCoordinator(is_idle=True), "other": FakeCoordinator(be_stopped_later)},
        note=note,
        until_empty=True,
    )

    assert code == 1
    assert pipelines.unfinished(["empty", "other"]) == ["other"]


@async_test
async def test_a_pipeline_that_has_ended_because_its_queue_was_empty_has_not_failed_though_more_came_then() -> None:
    async def receive_more(coordinator: FakeCoordinator) -> None:
        await coordinator.stopped.wait()
        coordinator.is_idle = False

    code, _ = await run({"one": FakeCoordinator(receive_more, is_idle=True)}, until_empty=True)

    assert code == 0


@async_test
async def test_a_pipeline_that_is_stopped_while_it_waits_for_its_queue_has_failed_if_it_was_to_empty_it() -> None:
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)

    code, told = await run({"late": FakeCoordinator()}, silent={"late": 1_000}, until_empty=True)

    assert (code, told) == (1, [])


@async_test
async def test_progress_is_told_with_counts_rate_and_lag() -> None:
    async def work(coordinator: FakeCoordinator) -> None:
        coordinator.counts.rows = 10
        await reported.wait()

    def note(event: Event) -> None:
        if isinstance(event, PipelineProgress):
            reported.set()

    reported = asyncio.Event()
    _, told = await run({"one": FakeCoordinator(work)}, heartbeat_seconds=0.01, note=note)

    first = next(event for event in told if isinstance(event, PipelineProgress))
    assert (first.counts["rows"], first.held_messages, first.lag_seconds) == (10, 3, 7.5)
    assert first.rows_per_second > 0


@pytest.mark.slow
@async_test
async def test_every_count_is_served_to_prometheus_with_its_pipeline() -> None:
    [port] = free_ports(1)
    pages: list[str] = []

    async def work(coordinator: FakeCoordinator) -> None:
        for number, each in enumerate(fields(ConsumeCounts), start=1):
            setattr(coordinator.counts, each.name, number)
        with await asyncio.to_thread(urlopen, f"http://127.0.0.1:{port}/metrics") as page:
            pages.append(page.read().decode())

    code, _ = await run({"clicks": FakeCoordinator(work)}, metrics_port=port)

    assert code == 0
    served = dict(line.rsplit(" ", 1) for line in pages[0].splitlines() if not line.startswith("#"))
    expected = {
        f'{PREFIX}{each.name}_total{{pipeline="clicks"}}': f"{number}.0"
        for number, each in enumerate(fields(ConsumeCounts), start=1)
    }
    gauges = {
        f'{PREFIX}held_messages{{pipeline="clicks"}}': "3.0",
        f'{PREFIX}remembered_units{{pipeline="clicks"}}': "11.0",
        f'{PREFIX}lag_seconds{{pipeline="clicks"}}': "7.5",
    }
    assert served == {**expected, **gauges}
    assert COUNTERS.keys() == {each.name for each in fields(ConsumeCounts)}


@async_test
async def test_a_port_that_is_in_use_is_told_and_nothing_is_consumed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        coordinator = FakeCoordinator()

        with pytest.raises(Misconfigured, match=rf"port {port} of 127.0.0.1: .* Choose another --metrics-port."):
            await run({"clicks": coordinator}, metrics_port=port)


@pytest.mark.parametrize(
    ("retention", "forgets", "is_told"),
    [
        (timedelta(days=14), True, True),
        (timedelta(days=7), True, True),
        (timedelta(days=7) - timedelta(seconds=1), True, False),
        (None, True, False),
        (timedelta(days=14), False, False),
    ],
)
def test_a_window_that_is_not_longer_than_the_queues_retention_is_told(
    retention: timedelta | None, *, forgets: bool, is_told: bool
) -> None:
    warning = window_warning(cast("Any", FakeQueue(retention=retention, forgets=forgets)), CONFIG)

    assert (warning is not None) is is_told
    if warning is not None and retention is not None:
        assert f"keeps messages for {retention.total_seconds():.0f} s" in warning
        assert "remembered for 604800 s" in warning
        assert "Set deduplication_window_duration_secs" in warning


def test_every_setting_of_a_pipeline_reaches_its_coordinator() -> None:
    given = {
        "commit_timeout_seconds": 1.5,
        "max_messages": 7,
        "max_bytes": 1_000,
        "max_tries": 4,
        "retry_delay_seconds": 2.5,
        "visibility_seconds": 33.0,
        "deduplication_window_duration_secs": 99,
        "deduplication_window_max_messages": 55,
        "deduplication_cleanup_interval_secs": 11,
    }
    config = CONFIG.model_validate({"queue": {"type": "sqs", "queue": "events"}, "tables": TABLES, **given})

    settings = pipeline_settings("clicks", config)

    assert (settings.name, settings.max_messages, settings.max_bytes, settings.max_tries) == ("clicks", 7, 1_000, 4)
    assert settings.commit_timeout == timedelta(seconds=1.5)
    assert settings.retry_delay == timedelta(seconds=2.5)
    assert settings.visibility == timedelta(seconds=33)
    assert settings.deduplication_window == timedelta(seconds=99)
    assert settings.deduplication_max == 55
    assert settings.cleanup_interval == timedelta(seconds=11)


@pytest.mark.parametrize(
    ("identity", "units"),
    [
        ({}, [inline_id(b"{}"), inline_id(b"{}")]),
        ({"identity": "message"}, ["inline:message=first", "inline:message=second"]),
    ],
)
def test_equal_inline_messages_are_one_unit_or_one_each_as_configured(
    identity: dict[str, str], units: list[str]
) -> None:
    config = ConsumeConfig.model_validate(
        {"queue": {"type": "sqs", "queue": "events"}, "tables": TABLES, "messages": "inline", **identity}
    )
    reader = message_reader(config)

    found = [reader(Message(id=each, body=b"{}"), ConsumeCounts()) for each in ("first", "second")]

    assert [work.key.unit for works in found for work in works] == units


@pytest.mark.parametrize(
    ("identity", "after_landing", "unit"),
    [
        ("uri", "keep", "s3://b/a"),
        ("uri_and_version", "keep", "s3://b/a?versionId=v1"),
        ("uri_and_etag", "keep", "s3://b/a?etag=e1"),
        ("uri", "delete", "s3://b/a?etag=e1"),
    ],
)
def test_the_identity_of_a_configuration_is_that_of_its_units(identity: str, after_landing: str, unit: str) -> None:
    config = ConsumeConfig.model_validate(
        {
            "queue": {"type": "sqs", "queue": "events"},
            "tables": TABLES,
            "identity": identity,
            "after_landing": after_landing,
        }
    )
    created = {"key": "a", "size": 1, "eTag": "e1", "versionId": "v1"}
    event = {"eventVersion": "2.1", "eventSource": "aws:s3", "eventName": "ObjectCreated:Put"}
    body = msgspec.json.encode({"Records": [{**event, "s3": {"bucket": {"name": "b"}, "object": created}}]})

    [work] = message_reader(config)(Message(id="1", body=body), ConsumeCounts())

    assert work.key == UnitKey("raw.files", unit)


COUNTS = {each.name: 0 for each in fields(ConsumeCounts)}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (PipelineStarted(pipeline="a", queue="q", warning=None), "pipeline a: consuming q"),
        (
            PipelineStarted(pipeline="a", queue="q", warning="It forgets."),
            "pipeline a: consuming q. Warning: It forgets.",
        ),
        (
            PipelineProgress(
                pipeline="a",
                counts={**COUNTS, "landed": 1, "rows": 9, "failed": 1},
                held_messages=1,
                rows_per_second=12.4,
                lag_seconds=5,
            ),
            "pipeline a: 1 file landed with 9 rows, 1 failed try; 12 rows a second, 1 message held, lag 0:05",
        ),
        (
            PipelineEnded(pipeline="a", counts={**COUNTS, "dead_letters": 2}, seconds=3, error="It broke."),
            "pipeline a: failed after 0:03; 0 files landed with 0 rows, 2 dead letters: It broke.",
        ),
        (
            PipelineEnded(
                pipeline="a", counts={**COUNTS, "landed": 1, "overlaps_quarantined": 1}, seconds=3, error=None
            ),
            "pipeline a: ended after 0:03; 1 file landed with 0 rows, 1 batch in quarantine",
        ),
        (
            PipelineEnded(pipeline="a", counts=COUNTS, seconds=3, error=None),
            "pipeline a: ended after 0:03; 0 files landed with 0 rows",
        ),
    ],
)
def test_what_is_told_to_people(event: Event, text: str) -> None:
    assert event_text(event) == text
