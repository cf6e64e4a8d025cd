"""A run tells at intervals how it stands, by a thread that ends with it."""

import queue
import threading

import pytest

from lakehead.run.observe.heartbeat import HeartbeatEmitter
from lakehead.telemetry import events
from lakehead.telemetry.events import TableSkipped
from tests.unit.run.observe.fake_run import FakeRun


class Metronome:
    """Time for a heartbeat: it passes when a test says so."""

    def __init__(self) -> None:
        self.asked: queue.Queue[float] = queue.Queue()
        self._go: queue.Queue[str] = queue.Queue()

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        self.asked.put(seconds)
        return self._go.get() == "stop" and ended.wait()

    def beat(self) -> None:
        """Let one interval pass, and one heartbeat be emitted."""
        self._go.put("beat")
        self.asked.get()

    def stop(self) -> None:
        self._go.put("stop")


def beats(run: FakeRun) -> list[tuple[int, int, int, int]]:
    emitted = [each.event for each in run.received]
    return [(each.total, each.done, each.failed, each.rows) for each in emitted if isinstance(each, events.Heartbeat)]


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "lakehead-heartbeat"]


def test_the_numbers_at_each_beat_of_a_run() -> None:
    run, time = FakeRun(), Metronome()
    with HeartbeatEmitter(run.emitter, 30, wait=time.wait):
        assert time.asked.get() == 30
        time.beat()
        run.start(4)
        run.begin("a")
        time.beat()
        run.finish("a", 10)
        run.begin("b")
        run.fail("b", "It is away.")
        time.beat()
        run.emit(TableSkipped(reason="nothing new"), "c")
        time.beat()
        time.stop()

    assert beats(run) == [(0, 0, 0, 0), (4, 0, 0, 0), (4, 1, 1, 10), (4, 2, 1, 10)]
    assert run.received[-1].table is None


def test_no_thread_is_left_and_no_beat_comes_when_it_has_ended() -> None:
    run, time = FakeRun(), Metronome()
    with HeartbeatEmitter(run.emitter, 1, wait=time.wait):
        time.stop()
        assert threads()

    assert not threads()
    run.start(3)
    assert beats(run) == []


def test_no_thread_is_left_after_an_exception() -> None:
    run = FakeRun()
    with pytest.raises(ValueError, match="no"), HeartbeatEmitter(run.emitter, 3600):
        raise ValueError("no")

    assert not threads(), "and nobody waited an hour for it"


def test_it_counts_only_while_it_beats() -> None:
    run, time = FakeRun(), Metronome()
    run.begin("before")
    heart = HeartbeatEmitter(run.emitter, 1, wait=time.wait)
    with heart:
        run.begin("during")
        time.asked.get()
        time.beat()
        time.stop()

    assert beats(run) == [(1, 0, 0, 0)]
    assert len(run.emitter._subscribers) == 1, "and listens no longer"
