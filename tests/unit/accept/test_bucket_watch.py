"""A gateway's check of its bucket: told once, told when it changes, and in nobody's way."""

import asyncio
import logging
import sys
import threading
from contextlib import suppress

import pytest

from lakehead.accept.bucket_settings import Check, Finding, Severity
from lakehead.accept.bucket_watch import BucketWatch
from lakehead.clock import SystemClock
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.run.bucket_checks import bucket_check, watch_bucket
from lakehead.run.config.gateway_config import GatewayConfig, ListenerConfig
from lakehead.run.gateway_wiring import GatewayWiring
from lakehead.storage.connect import StoreSettings
from tests.support.async_tests import async_test

EXPIRES = Finding(Check.LIFECYCLE, Severity.DANGER, "A rule deletes everything.", "Remove it.")
NO_VERSIONS = Finding(Check.VERSIONING, Severity.ADVICE, "Versioning is off.", "Enable it.")
S3 = StoreSettings(region="us-east-1", credentials={"access_key_id": "a", "secret_access_key": "b"})


class Hours(SystemClock):
    """A clock whose pauses end when the test says so."""

    def __init__(self) -> None:
        self.pauses: asyncio.Queue[float] = asyncio.Queue()
        self._go_on = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self._go_on.clear()
        self.pauses.put_nowait(seconds)
        await self._go_on.wait()

    async def checked(self) -> float:
        """Wait until a check is done. Returns the pause after it."""
        return await self.pauses.get()

    async def pause_is_over(self) -> float:
        self._go_on.set()
        return await self.checked()


async def cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@async_test
async def test_a_finding_is_told_once_shown_as_a_metric_and_gone_when_it_is_mended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    answers, clock, metrics = [(EXPIRES,), (EXPIRES, NO_VERSIONS), (NO_VERSIONS,)], Hours(), GatewayMetrics()

    async def check() -> tuple[Finding, ...]:
        return answers.pop(0)

    def shown(check: str, severity: str) -> str:
        name = f'lakehead_gateway_bucket_findings{{check="{check}",severity="{severity}"}} '
        return next(line for line in metrics.text().decode().splitlines() if line.startswith(name))[len(name) :]

    watch = BucketWatch(check, clock)
    metrics.watch_bucket(watch)
    assert {shown(each, "unknown") for each in Check} == {"1.0"}, "not checked yet is not ok"
    running = asyncio.create_task(watch.run())
    assert await clock.checked() == 3600
    assert (shown("lifecycle", "danger"), shown("policy", "unknown")) == ("1.0", "0.0")
    await clock.pause_is_over()
    assert (shown("lifecycle", "danger"), shown("versioning", "advice")) == ("1.0", "1.0")
    await clock.pause_is_over()
    assert shown("lifecycle", "danger") == "0.0"
    await cancelled(running)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert told == [
        ("WARNING", "The bucket: danger: A rule deletes everything. Remove it."),
        ("INFO", "The bucket: advice: Versioning is off. Enable it."),
        ("INFO", "The bucket, no longer: danger: A rule deletes everything. Remove it."),
    ]


@async_test
async def test_a_check_that_hangs_or_fails_is_unknown_and_comes_again() -> None:
    clock, never = Hours(), asyncio.Event()

    async def check() -> tuple[Finding, ...]:
        if clock.pauses.empty() and not never.is_set():
            never.set()
            await asyncio.Event().wait()
        raise ZeroDivisionError

    watch = BucketWatch(check, clock, within_seconds=0.01)
    running = asyncio.create_task(watch.run())
    await clock.checked()
    assert {(each.severity, "more than 0.01 s" in each.problem) for each in watch.findings} == {
        (Severity.UNKNOWN, True)
    }
    await clock.pause_is_over()
    assert all("ZeroDivisionError" in each.problem for each in watch.findings)
    await cancelled(running)


@pytest.mark.slow
@async_test
async def test_a_bucket_that_does_not_answer_holds_up_neither_start_nor_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, let_go, threads = threading.Event(), threading.Event(), list[threading.Thread]()

    def hangs() -> tuple[Finding, ...]:
        threads.append(threading.current_thread())
        asked.set()
        let_go.wait(60)
        return ()

    monkeypatch.setattr("lakehead.run.gateway_wiring.bucket_check", lambda *_, **__: hangs)
    listener = ListenerConfig(port=0)
    config = GatewayConfig(store="memory://bucket-hangs", ingest_listener=listener, private_listener=listener)
    wiring, stop, started = GatewayWiring(config, {}), asyncio.Event(), asyncio.Event()
    await wiring.authority.init("s3_manifest")
    serving = asyncio.create_task(wiring.serve(stop, lambda _: started.set()))
    await started.wait()
    assert await asyncio.to_thread(asked.wait, 30)
    stop.set()
    await serving
    let_go.set()
    assert [thread.daemon for thread in threads] == [True], "or the process would wait for it"


@async_test
async def test_without_boto3_a_gateway_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    check, clock = bucket_check("s3://lake/prod", S3), Hours()
    assert check is not None
    watch = watch_bucket(check, clock)
    running = asyncio.create_task(watch.run())
    await clock.checked()
    await cancelled(running)

    told = "\n".join(record.getMessage() for record in caplog.records)
    assert told == (
        "The bucket: unknown: versioning, lifecycle, object lock, policy, replication could not be checked: Checks of "
        "the bucket's settings need boto3. Install lakehead[s3]. Until then check it by hand."
    )
    assert {each.severity for each in watch.findings} == {Severity.UNKNOWN}


def test_a_folder_has_no_bucket_and_other_clouds_are_said_not_to_be_checked() -> None:
    assert bucket_check("file:///lake", S3) is bucket_check("memory://lake", S3) is None
    for scheme in ("gs", "az"):
        check = bucket_check(f"{scheme}://lake/prod", StoreSettings())
        assert check is not None
        assert {(each.check, each.severity) for each in check()} == {(each, Severity.UNKNOWN) for each in Check}
