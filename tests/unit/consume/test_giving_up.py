"""Failures of units, and lost messages: what is counted, tried again and given up."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from lakehead.consume.ports import Failure
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.retry import PollInterval
from tests.unit.consume.pipelines import SETTINGS, Pipelines, Shard, pipelines_test

COMMIT = SETTINGS.commit_timeout.total_seconds()
VISIBILITY = SETTINGS.visibility.total_seconds()
DOWN = Unavailable("it does not answer")
LOST = OutcomeUnknown("the answer is lost")
CORRUPT = Failure("It is corrupt.")


# --- tries and dead letters


@pipelines_test
async def test_a_try_is_counted_before_the_read(tested: Pipelines) -> None:
    tested.calls.takes("read", 1e6)
    tested.send("a")
    tested.start()
    await tested.sleep(COMMIT + 1)

    assert tested.calls.names("count try", "read") == ["count try", "read"]
    assert tested.shards["table", "a"].tries == 1


@pipelines_test
async def test_a_unit_that_fails_is_a_dead_letter_after_max_tries_and_acknowledged_after_that(
    tested: Pipelines,
) -> None:
    tested.send("bad", "good")
    pipeline = tested.pipeline()
    pipeline.landings.failures["bad"] = CORRUPT
    tested.calls.fails_once("give up", LOST)
    pipeline.start()
    await tested.sleep(600)

    assert tested.landed == {"good"}
    assert [group for group in pipeline.landings.groups if "bad" in group] == [["bad", "good"], *[["bad"]] * 4]
    assert pipeline.dead_letters.letters == {"bad": "It is corrupt."}
    assert tested.calls.names("give up", "acknowledge")[-2:] == ["give up", "acknowledge"]
    assert tested.queued == 0
    assert (pipeline.counts.failed, pipeline.counts.dead_letters, pipeline.counts.acknowledged) == (5, 1, 2)


def test_people_are_told_of_each_try_of_what_follows_and_of_the_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    @pipelines_test
    async def test(tested: Pipelines) -> None:
        caplog.clear()
        tested.send("bad", "?")
        pipeline = tested.pipeline(replace(SETTINGS, max_tries=3))
        pipeline.landings.failures["bad"] = CORRUPT
        pipeline.start()
        await tested.sleep(200)

        assert [record.getMessage() for record in caplog.records] == [
            "Pipeline pipeline: the message 2 is a dead letter: It says nothing.",
            "Pipeline pipeline: bad: It is corrupt. (try 1 of 3, again in 5 s)",
            "Pipeline pipeline: bad: It is corrupt. (try 2 of 3, again in 10 s)",
            "Pipeline pipeline: bad is a dead letter after 3 tries: It is corrupt.",
        ]

    test()


@pytest.mark.parametrize("slow", ["release", "extend visibility", "record", "acknowledge"])
@pipelines_test
async def test_a_pipeline_is_not_idle_while_a_message_is_to_come_again(tested: Pipelines, slow: str) -> None:
    tested.calls.takes(slow, 7)
    tested.send("bad good")
    pipeline = tested.pipeline(replace(SETTINGS, poll_wait=timedelta(seconds=1)))
    pipeline.landings.failures["bad"] = CORRUPT
    pipeline.start()
    await tested.sleep(COMMIT)
    while not pipeline.coordinator.is_idle:
        await tested.sleep(0.25)

    assert pipeline.dead_letters.letters == {"bad": "It is corrupt."}
    assert tested.queued == 0


@pipelines_test
async def test_a_temporary_failure_never_becomes_a_dead_letter(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.landings.failures["a"] = Failure("The store does not answer.", temporary=True)
    pipeline.start()
    await tested.sleep(600)
    assert pipeline.counts.failed > SETTINGS.max_tries
    assert tested.shards["table", "a"].tries == 0
    del pipeline.landings.failures["a"]
    await tested.sleep(60)

    assert tested.landed == {"a"}
    assert pipeline.dead_letters.letters == {}


@pipelines_test
async def test_a_message_whose_objects_cannot_be_known_now_comes_again_and_holds_up_no_other(tested: Pipelines) -> None:
    tested.send("late", "a")
    pipeline = tested.start()
    await tested.sleep(COMMIT + 1)
    assert tested.landed == {"a"}
    await tested.sleep(2 * COMMIT + 5)

    assert tested.landed == {"a", "late"}
    assert tested.queued == 0
    assert pipeline.dead_letters.letters == {}
    assert pipeline.counts.received == 4


@pipelines_test
async def test_a_failed_unit_comes_again_after_a_pause_that_doubles(tested: Pipelines) -> None:
    tested.send("a")
    settings = replace(SETTINGS, commit_timeout=timedelta(0), max_tries=6, poll_wait=timedelta(seconds=1))
    pipeline = tested.pipeline(settings)
    pipeline.landings.failures["a"] = CORRUPT
    pipeline.start()
    read_at = list[float]()
    for _ in range(6):
        while len(pipeline.landings.groups) == len(read_at):
            await tested.sleep(0.5)
        read_at.append(tested.time)

    pauses = [after - before for before, after in pairwise(read_at)]
    assert pauses == [pytest.approx(expected, abs=1.5) for expected in (5, 10, 20, 40, 80)]


@pipelines_test
async def test_a_unit_whose_readers_died_is_given_up_and_not_read_once_more(tested: Pipelines) -> None:
    tested.shards["table", "deadly"] = Shard(owner="dead", tries=SETTINGS.max_tries)
    tested.calls.takes("give up", 3)
    tested.send("good")
    pipeline = tested.start()
    await tested.sleep(COMMIT - 1)
    tested.send("deadly")
    await tested.sleep(600)

    assert [group for group in pipeline.landings.groups if "deadly" in group] == []
    assert set(pipeline.dead_letters.letters) == {"deadly"}
    assert tested.landed == {"good"}
    assert tested.queued == 0


@pipelines_test
async def test_many_failures_are_settled_together(tested: Pipelines) -> None:
    tested.send(*(f"u{number}" for number in range(200)))
    pipeline = tested.pipeline()
    pipeline.landings.failures.update((f"u{number}", Failure("No answer.", temporary=True)) for number in range(100))
    pipeline.landings.failures.update((f"u{number}", CORRUPT) for number in range(100, 200))
    pipeline.start()
    await tested.sleep(COMMIT + 1)

    assert pipeline.counts.failed == 200
    assert {tested.shards["table", f"u{number}"].tries for number in range(100)} == {0}
    assert {tested.shards["table", f"u{number}"].tries for number in range(100, 200)} == {1}
    assert tested.calls.count("take back try") == 1
    assert tested.calls.count("release") <= 2
    assert tested.calls.count("record") <= 2


@pipelines_test
async def test_a_unit_that_another_has_taken_is_not_given_up(tested: Pipelines) -> None:
    tested.send("bad")
    pipeline = tested.pipeline(replace(SETTINGS, max_tries=1))
    pipeline.landings.failures["bad"] = CORRUPT
    pipeline.start()

    async def taken() -> None:
        tested.shards["table", "bad"] = Shard(owner="other", lease_until=1e9)

    tested.calls.faults["give up"] = taken
    await tested.sleep(COMMIT + 1)

    assert tested.calls.count("acknowledge") == 0
    assert (pipeline.counts.dead_letters, tested.queued) == (0, 1)


# --- lost messages


@pipelines_test
async def test_a_message_whose_visibility_is_lost_lands_nothing_and_is_not_acknowledged(tested: Pipelines) -> None:
    tested.send("a", "b")
    pipeline = tested.pipeline()
    pipeline.landings.read_seconds = 40
    pipeline.start()
    await tested.sleep(COMMIT + 1)
    [first, *_] = pipeline.coordinator._local.messages_of(pipeline.coordinator._local.units)
    tested.messages.table.extend([first], timedelta(seconds=0.001))  # as a queue that forgets it
    other = tested.pipeline(token="other").queue
    await tested.sleep(1)
    [stolen] = await other.receive(1, visibility=timedelta(hours=1), wait=timedelta(seconds=1))
    await tested.sleep(60)

    assert pipeline.counts.lost == 1
    assert stolen.body.decode() not in tested.landed
    await tested.sleep(200)
    assert tested.landed == {"a", "b"} - {stolen.body.decode()}
    assert tested.queued == 1


@pipelines_test
async def test_a_pipeline_that_stood_still_lands_nothing_of_what_it_held(tested: Pipelines) -> None:
    """The extension is refused only after the pause, but the commit asks the clock."""
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.landings.read_seconds = 5
    pipeline.start()
    await tested.sleep(COMMIT + 1)
    [message] = pipeline.coordinator._local.messages_of(pipeline.coordinator._local.units)
    pipeline.coordinator._visibility._held[message.id].deadline = tested.time  # as after a pause
    pipeline.coordinator._visibility._held[message.id].is_last = True
    await tested.sleep(4.5)

    assert tested.calls.count("commit") == tested.calls.count("acknowledge") == 0
    assert tested.landed == set()


@pipelines_test
async def test_messages_stay_invisible_while_the_state_does_not_answer(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.start()
    tested.calls.takes("extend lease", 400)
    tested.calls.takes("count try", 400)
    await tested.sleep(300)

    assert pipeline.counts.lost == 0
    assert pipeline.counts.received == 1


@pipelines_test
async def test_messages_that_come_after_a_long_silence_are_held_from_when_they_came(tested: Pipelines) -> None:
    tested.calls.fails("receive", DOWN)
    settings = replace(SETTINGS, max_messages=1, polling=PollInterval(first_seconds=1, cap_seconds=60))
    pipeline = tested.start(settings)
    pipeline.queue.longest_visibility = timedelta(minutes=10)
    await tested.sleep(11 * 60)
    tested.calls.heal("receive")
    tested.send("a")
    await tested.sleep(80)

    assert tested.landed == {"a"}
    assert pipeline.counts.lost == 0
    assert len(pipeline.landings.groups) == 1


@pipelines_test
async def test_a_unit_that_was_opened_while_life_was_shown_is_kept(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.start()
    await tested.sleep(1)
    answer = pipeline.shared.extend

    async def slow(table: str, units: list[str]) -> set[str]:
        kept = await answer(table, units)
        await tested.sleep(3)
        return kept

    pipeline.shared.extend = slow  # type: ignore[assignment, method-assign]
    tested.calls.takes("open", 2)
    await tested.sleep(3)
    tested.send("b")
    await tested.sleep(COMMIT + 5)

    assert tested.landed == {"a", "b"}
    assert pipeline.counts.received == 2


@pipelines_test
async def test_a_message_that_is_acknowledged_while_it_is_extended_is_not_counted_as_lost(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.landings.read_seconds = VISIBILITY / 2 + 3
    tested.calls.takes("extend visibility", 8)
    pipeline.start()
    await tested.sleep(3 * VISIBILITY)

    assert tested.queued == 0
    assert tested.landed == {"a"}
    assert pipeline.counts.lost == 0


@pipelines_test
async def test_a_message_that_comes_again_while_its_unit_fails_is_kept_invisible_and_lands(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.landings.failures["a"] = CORRUPT
    pipeline.landings.read_seconds = 5
    pipeline.start()
    await tested.sleep(COMMIT + 2)
    tested.calls.takes("give up message", 10)
    tested.send("?")
    tested.messages.table.extend(pipeline.coordinator._visibility.messages, timedelta(0))  # it is visible too early
    await tested.sleep(4)
    del pipeline.landings.failures["a"]
    await tested.sleep(VISIBILITY)

    assert tested.landed == {"a"}
    assert tested.queued == 0
