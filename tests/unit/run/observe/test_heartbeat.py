"""A run tells at intervals how it stands, by a thread that ends with it."""

import queue
import threading

import pytest

from lakehead.run.observe.heartbeat import Heartbeat
from lakehead.telemetry import events
from lakehead.telemetry.events import TableSkipped
from tests.unit.run.observe.scene import Story


class Metronome:
    """Time for a heartbeat: it passes when a test says so."""

    def __init__(self) -> None:
        self.asked: queue.Queue[float] = queue.Queue()
        self._go: queue.Queue[str] = queue.Queue()

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        self.asked.put(seconds)
        return self._go.get() == "stop" and ended.wait()

    def beat(self) -> None:
        """Let one interval pass, and the beat be told."""
        self._go.put("beat")
        self.asked.get()

    def stop(self) -> None:
        self._go.put("stop")


def beats(story: Story) -> list[tuple[int, int, int, int]]:
    told = [each.event for each in story.heard]
    return [(each.total, each.done, each.failed, each.rows) for each in told if isinstance(each, events.Heartbeat)]


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "lakehead-heartbeat"]


def test_the_numbers_at_each_beat_of_a_run() -> None:
    story, time = Story(), Metronome()
    with Heartbeat(story.emitter, 30, wait=time.wait):
        assert time.asked.get() == 30
        time.beat()
        story.start(4)
        story.begin("a")
        time.beat()
        story.finish("a", 10)
        story.begin("b")
        story.fail("b", "It is away.")
        time.beat()
        story.tell(TableSkipped(reason="nothing new"), "c")
        time.beat()
        time.stop()

    assert beats(story) == [(0, 0, 0, 0), (4, 0, 0, 0), (4, 1, 1, 10), (4, 2, 1, 10)]
    assert story.heard[-1].table is None


def test_no_thread_is_left_and_no_beat_comes_when_it_has_ended() -> None:
    story, time = Story(), Metronome()
    with Heartbeat(story.emitter, 1, wait=time.wait):
        time.stop()
        assert threads()

    assert not threads()
    story.start(3)
    assert beats(story) == []


def test_no_thread_is_left_after_an_exception() -> None:
    story = Story()
    with pytest.raises(ValueError, match="no"), Heartbeat(story.emitter, 3600):
        raise ValueError("no")

    assert not threads(), "and nobody waited an hour for it"


def test_it_counts_only_while_it_beats() -> None:
    story, time = Story(), Metronome()
    story.begin("before")
    heart = Heartbeat(story.emitter, 1, wait=time.wait)
    with heart:
        story.begin("during")
        time.asked.get()
        time.beat()
        time.stop()

    assert beats(story) == [(1, 0, 0, 0)]
    assert len(story.emitter._subscribers) == 1, "and listens no longer"
