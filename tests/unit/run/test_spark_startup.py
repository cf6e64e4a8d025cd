"""Spark starts beside other work; whoever ends a run does not wait for a start that takes long."""

import threading
from collections.abc import Callable, Iterator

import pytest

from lakehead.errors import LakeheadError
from lakehead.run import spark_startup as module
from lakehead.run.spark_startup import start_in_background
from lakehead.spark.settings import SparkSettings


class SlowStart:
    """A start of Spark that lasts until it is let go, as one that fetches jars from somebody who does not answer."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        self.stopped: list[object] = []

    def build(self, *_: object, **__: object) -> str:
        self.begun.set()
        self.let_go.wait()
        return "session"


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStart]:
    slow = SlowStart()
    monkeypatch.setattr(module, "start_session", slow.build)
    monkeypatch.setattr(module, "end_session", slow.stopped.append)
    monkeypatch.setattr(module, "STOP_SECONDS", 0.05)
    yield slow
    slow.let_go.set()


def silent(_: str) -> None:
    """Say nothing."""


def interrupted(interrupt: BaseException, *, when: Callable[[], object]) -> None:
    """Start Spark, and raise when this has answered."""
    with start_in_background(SparkSettings(), silent):
        when()
        raise interrupt


@pytest.mark.timeout(20)
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(143)])
def test_whoever_ends_the_run_does_not_wait_for_a_start_that_does_not_end(
    start: SlowStart, interrupt: BaseException
) -> None:
    with pytest.raises(type(interrupt)):
        interrupted(interrupt, when=start.begun.wait)

    assert start.stopped == []


def test_a_session_that_has_started_is_stopped_when_the_run_is_ended(start: SlowStart) -> None:
    start.let_go.set()

    with pytest.raises(KeyboardInterrupt):
        interrupted(KeyboardInterrupt(), when=start.begun.wait)

    assert start.stopped == ["session"]


def test_a_start_is_waited_for_where_something_else_has_failed(start: SlowStart) -> None:
    with pytest.raises(LakeheadError):
        interrupted(LakeheadError("no state"), when=threading.Timer(0.2, start.let_go.set).start)

    assert start.stopped == ["session"]
