"""Whoever ends a run ends its waits too."""

import asyncio
import signal
import threading
from datetime import date
from typing import Any, cast

import pytest

from lakehead.clock import SystemClock
from lakehead.ids import system_random
from lakehead.lake.iceberg_landing import IcebergLanding
from lakehead.lake.run_context import RunContext
from lakehead.run.stopping import StoppableClock, Stopped, StopSignal, Terminated, report_interrupts


def test_a_sleep_ends_when_the_run_is_to_end() -> None:
    stop = StopSignal()
    clock = StoppableClock(SystemClock(), stop)
    threading.Timer(0.05, stop.set, ["SIGTERM"]).start()

    with pytest.raises(
        Stopped, match=r"Stopped by SIGTERM\. Landed rows are kept; run the command again to continue\."
    ):
        asyncio.run(clock.sleep(10_000))  # type: ignore[arg-type] # it is a coroutine


def test_a_sleep_that_begins_after_the_end_does_not_begin() -> None:
    stop = StopSignal()
    stop.set("you (Ctrl-C)")
    stop.set("SIGTERM")

    with pytest.raises(Stopped, match=r"Stopped by you \(Ctrl-C\)"):
        asyncio.run(StoppableClock(SystemClock(), stop).sleep(10_000))  # type: ignore[arg-type] # it is a coroutine


def test_a_catalog_that_does_not_answer_is_not_waited_for_when_the_run_is_to_end() -> None:
    stop, told = StopSignal(), list[str]()
    nobody = cast(Any, None)

    def waiting(reason: str) -> None:
        told.append(reason)
        stop.set("SIGTERM")

    run = RunContext(
        pipeline="shop",
        run="run",
        load_date=date(2026, 1, 1),
        session=nobody,
        state=nobody,
        owner="run",
        clock=SystemClock(),
        ids=nobody,
        random=system_random(),
        waiting=waiting,
        pause=stop.pause,
    )
    landing = IcebergLanding(run=run, catalog=nobody, ledger=nobody)

    def refuse() -> None:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(Stopped, match=r"Stopped by SIGTERM\."):
        landing.retries.call("The catalog lake", refuse)
    assert told == ["The catalog lake does not answer (nobody there); retrying"]


class VirtualClock:
    """A clock that only moves when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 0.0

    def now_ns(self) -> int:
        return int(self.at * 1e9)

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


def test_a_sleep_lasts_as_long_as_it_should_where_nobody_ends_the_run() -> None:
    virtual = VirtualClock()

    asyncio.run(StoppableClock(virtual, StopSignal()).sleep(3.25))  # type: ignore[arg-type] # it is a coroutine

    assert virtual.at == pytest.approx(3.25)


@pytest.mark.parametrize(
    ("number", "code", "who"), [(signal.SIGINT, 130, "you (Ctrl-C)"), (signal.SIGTERM, 143, "SIGTERM")]
)
def test_who_stopped_it_is_said_and_told_by_the_exit_code(number: signal.Signals, code: int, who: str) -> None:
    said: list[str] = []

    with pytest.raises(Terminated) as ended, report_interrupts(said.append):
        signal.raise_signal(number)

    assert ended.value.code == code
    assert said == [f"Stopped by {who}. Landed rows are kept; run the command again to continue."]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
