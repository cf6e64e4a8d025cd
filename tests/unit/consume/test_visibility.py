"""Keeping held messages invisible: before every deadline, for the last time, and when the queue does not help."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from lakehead.consume.queue import Message
from lakehead.consume.visibility import VisibilityTask
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from tests.support.async_tests import async_test
from tests.support.state_tools import HandClock

VISIBILITY = timedelta(seconds=60)
LAST = timedelta(seconds=20)


@dataclass
class FakeQueue:
    """A queue that notes extensions, and refuses some."""

    clock: HandClock
    longest_visibility: timedelta | None = None
    refused: set[str] = field(default_factory=set)
    error: LakeheadError | None = None
    takes: timedelta = timedelta(0)
    calls: list[tuple[list[str], float]] = field(default_factory=list)
    name = "queue"
    retention = None
    forgets = True

    async def receive(self, most: int, *, visibility: timedelta, wait: timedelta) -> Sequence[Message]:
        raise NotImplementedError

    async def acknowledge(self, messages: Sequence[Message]) -> Sequence[Message]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        self.calls.append(([each.id for each in messages], visibility.total_seconds()))
        self.clock.at += self.takes
        if self.error is not None:
            raise self.error
        return [each for each in messages if each.id in self.refused]


class Held:
    def __init__(self, *ids: str, longest: timedelta | None = None) -> None:
        self.clock = HandClock()
        self.queue = FakeQueue(self.clock, longest)
        self.task = VisibilityTask(self.queue, VISIBILITY, self.clock)
        self.messages = [Message(id=each, body=b"", receipt=1) for each in ids]
        self.task.start(self.messages, self.clock.monotonic())

    def passes(self, seconds: float) -> None:
        self.clock.at += timedelta(seconds=seconds)

    def current(self) -> list[str]:
        return [each.id for each in self.messages if self.task.is_current(each)]


@async_test
async def test_a_message_is_extended_when_half_of_its_visibility_is_over() -> None:
    tested = Held("a")
    tested.passes(29.9)
    assert await tested.task.extend_due() == []
    assert tested.queue.calls == []
    tested.passes(0.1)
    assert await tested.task.extend_due() == []

    assert tested.queue.calls == [(["a"], 60.0)]
    tested.passes(59.9)
    assert tested.current() == ["a"]
    tested.passes(0.1)
    assert tested.current() == []


@async_test
async def test_every_message_is_extended_before_its_deadline_for_hours() -> None:
    tested = Held("a", "b")
    for _ in range(1_000):
        tested.passes(tested.task.pause)
        assert tested.current() == ["a", "b"]
        assert await tested.task.extend_due() == []

    assert 200 <= len(tested.queue.calls) <= 300


@async_test
async def test_the_deadline_counts_from_before_the_request() -> None:
    tested = Held("a")
    tested.passes(30)
    tested.queue.takes = timedelta(seconds=10)
    await tested.task.extend_due()
    tested.passes(49.9)
    assert tested.current() == ["a"]
    tested.passes(0.1)

    assert tested.current() == []


@async_test
async def test_the_last_extension_is_the_last() -> None:
    tested = Held("a", "b")
    tested.passes(5)
    assert await tested.task.extend_for_last_time(tested.messages[:1], LAST) == []
    assert tested.queue.calls == [(["a"], 20.0)]
    tested.passes(25)
    await tested.task.extend_due()

    assert tested.queue.calls[1:] == [(["b"], 60.0)]
    assert tested.current() == ["b"]


@async_test
async def test_a_message_whose_landing_did_not_come_about_is_extended_again() -> None:
    tested = Held("a")
    await tested.task.extend_for_last_time(tested.messages, LAST)
    tested.task.resume(tested.messages)
    tested.passes(10)
    await tested.task.extend_due()

    assert tested.queue.calls == [(["a"], 20.0), (["a"], 60.0)]


@pytest.mark.parametrize("error", [Unavailable("no"), OutcomeUnknown("perhaps")])
def test_a_last_extension_that_is_not_answered_is_tried_again(error: LakeheadError) -> None:
    @async_test
    async def test() -> None:
        tested = Held("a")
        tested.passes(20)
        tested.queue.error = error
        assert await tested.task.extend_for_last_time(tested.messages, LAST) == []
        tested.queue.error = None
        tested.passes(20)
        assert await tested.task.extend_due() == []
        tested.passes(30)

        assert tested.current() == ["a"]

    test()


@async_test
async def test_a_refused_extension_loses_its_message_alone() -> None:
    tested = Held("a", "b")
    tested.queue.refused = {"a"}
    tested.passes(30)

    assert await tested.task.extend_due() == tested.messages[:1]
    assert tested.current() == ["b"]
    assert tested.task.messages == tested.messages[1:]
    assert await tested.task.extend_for_last_time(tested.messages[:1], LAST) == []


@pytest.mark.parametrize("error", [Unavailable("no"), OutcomeUnknown("perhaps")])
def test_a_queue_that_does_not_answer_is_asked_until_the_deadline_has_passed(error: LakeheadError) -> None:
    @async_test
    async def test() -> None:
        tested = Held("a")
        tested.queue.error = error
        tested.passes(30)
        for _ in range(3):
            assert await tested.task.extend_due() == []
            assert tested.current() == ["a"]
            tested.passes(9.9)
        tested.passes(0.3)
        assert tested.current() == []

        assert await tested.task.extend_due() == tested.messages
        assert len(tested.queue.calls) == 4
        assert await tested.task.extend_due() == []

    test()


@async_test
async def test_an_answer_that_comes_after_the_deadline_it_gives_is_too_late() -> None:
    tested = Held("a")
    tested.passes(30)
    tested.queue.takes = timedelta(seconds=60)

    assert await tested.task.extend_due() == tested.messages


@async_test
async def test_no_message_is_kept_longer_than_the_queue_can() -> None:
    tested = Held("a", longest=timedelta(hours=12))
    started, lost = tested.clock.monotonic(), list[Message]()
    while not lost:
        tested.passes(tested.task.pause)
        assert tested.current() == ["a"] or tested.clock.monotonic() >= started + 12 * 3600 - 1
        lost = await tested.task.extend_due()

    limits = [seconds for _, seconds in tested.queue.calls]
    assert set(limits[:-4]) == {60.0}
    assert all(0 < seconds <= 60 and seconds == int(seconds) for seconds in limits)
    assert tested.clock.monotonic() <= started + 12 * 3600 + tested.task.pause


@async_test
async def test_messages_of_different_ages_are_extended_as_far_as_each_can_be() -> None:
    tested = Held("old", longest=timedelta(seconds=100))
    tested.passes(50)
    young = Message(id="young", body=b"")
    tested.task.start([young], tested.clock.monotonic())
    tested.passes(30)
    await tested.task.extend_due()

    assert sorted(tested.queue.calls) == [(["old"], 20.0), (["young"], 60.0)]


@async_test
async def test_after_a_pause_nothing_is_current() -> None:
    tested = Held("a")
    await tested.task.extend_for_last_time(tested.messages, timedelta(minutes=10))
    tested.passes(600)

    assert tested.current() == []


@async_test
async def test_a_message_that_was_settled_while_it_was_extended_is_not_lost() -> None:
    tested = Held("a", "b")
    tested.passes(30)
    tested.queue.refused = {"a", "b"}

    class Settles(FakeQueue):
        async def extend(self, messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
            del visibility
            tested.task.stop(tested.messages[:1])
            tested.task.start([Message(id="b", body=b"", receipt=2)], tested.clock.monotonic())
            return messages

    tested.task._queue = Settles(tested.clock)

    assert await tested.task.extend_due() == []
    assert [each.receipt for each in tested.task.messages] == [2]


@async_test
async def test_no_message_counts_as_invisible_for_longer_than_its_queue_hides_one() -> None:
    held = Held("a", longest=VISIBILITY / 4)
    held.passes(VISIBILITY.total_seconds() / 4)

    assert held.current() == []
