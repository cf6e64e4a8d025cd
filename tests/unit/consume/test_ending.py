"""The end of a pipeline: what is given back, and which errors end it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from lakehead.consume.coordinator import STOP_SECONDS
from lakehead.consume.ports import Failure
from lakehead.consume.queue import Message
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.lake.ports import AuditFailed, HistoryBroken, UnitsGone
from lakehead.wire.errors import NewerFormat
from tests.unit.consume.pipelines import SETTINGS, Pipeline, Pipelines, Shard, pipelines_test

LEASE = SETTINGS.lease.total_seconds()
COMMIT_TIMEOUT = SETTINGS.commit_timeout
COMMIT = COMMIT_TIMEOUT.total_seconds()
VISIBILITY = SETTINGS.visibility.total_seconds()
DOWN = Unavailable("it does not answer")
CORRUPT = Failure("It is corrupt.")


ENDING: list[LakeheadError] = [
    NewerFormat("of version 9"),
    HistoryBroken("rolled back"),
    Misconfigured("no such bucket"),
    AuditFailed("3 of 4 rows"),
]


@pytest.mark.parametrize("error", ENDING, ids=lambda error: type(error).__name__)
def test_an_error_that_an_operator_must_mend_ends_the_pipeline_and_gives_everything_back(error: LakeheadError) -> None:
    @pipelines_test
    async def test(tested: Pipelines) -> None:
        tested.calls.fails("read", error)
        tested.send("a", "b", "other/c")
        pipeline = tested.start()
        await tested.sleep(COMMIT + 1)

        assert pipeline.running is not None
        assert pipeline.running.done()
        assert pipeline.running.exception() is error
        assert tested.queued == 3
        assert {shard.owner for shard in tested.shards.values()} == {None}
        others = tested.pipeline(token="other").queue
        assert len(await others.receive(9, visibility=timedelta(seconds=9), wait=timedelta(0))) == 3

    test()


@pytest.mark.parametrize(
    "error", [HistoryBroken("rolled back"), Misconfigured("no such bucket"), NewerFormat("of version 9")]
)
def test_a_broken_table_costs_its_units_no_tries(error: LakeheadError) -> None:
    """Or a pipeline that is started again and again, before somebody looks, would make dead letters of good files."""

    @pipelines_test
    async def test(tested: Pipelines) -> None:
        tested.calls.fails("read table", error)
        tested.send("a", "other/b")
        for number in range(SETTINGS.max_tries + 1):
            pipeline = tested.start(token=f"start {number}")
            await tested.sleep(COMMIT + 1)
            assert pipeline.running is not None
            assert pipeline.running.exception() is error
        assert tested.shards["table", "a"].tries == 0
        tested.calls.heal("read table")
        pipeline = tested.start(token="last")
        await tested.sleep(COMMIT + 1)

        assert tested.landed == {"a", "b"}
        assert pipeline.dead_letters.letters == {}

    test()


@pipelines_test
async def test_a_try_counts_once_and_is_taken_back_once_though_the_answers_are_lost(tested: Pipelines) -> None:
    tested.shards["table", "a"] = Shard(tries=1)
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.landings.failures["a"] = Failure("No answer.", temporary=True)
    tested.calls.fails("count try answer", OutcomeUnknown("the connection was lost"))
    pipeline.start()
    await tested.sleep(COMMIT + 5)
    assert tested.calls.count("count try") > 2
    assert tested.shards["table", "a"].tries == 2
    tested.calls.heal("count try answer")
    tested.calls.fails("take back try answer", OutcomeUnknown("the connection was lost"))
    await tested.sleep(20)

    assert tested.calls.count("take back try") > 2
    assert tested.shards["table", "a"].tries == 1


@pipelines_test
async def test_an_object_that_only_hangs_is_isolated_by_stops_and_then_given_up(tested: Pipelines) -> None:
    tested.send("hangs", *(f"u{number}" for number in range(40)))
    settings = replace(SETTINGS, stuck_after=timedelta(minutes=10), max_tries=3)
    for _ in range(6):
        pipeline = tested.pipeline(settings)
        pipeline.landings.hangs_at = "hangs"
        pipeline.start()
        await tested.sleep(660)
        await pipeline.stop()
        if pipeline.dead_letters.letters:
            break

    assert list(pipeline.dead_letters.letters) == ["hangs"]
    assert tested.queued == 0
    assert tested.landed == {f"u{number}" for number in range(40)}


@pipelines_test
async def test_stopping_costs_what_was_being_read_no_tries(tested: Pipelines) -> None:
    tested.calls.takes("read", 1e6)
    tested.send("a")
    for number in range(SETTINGS.max_tries + 1):
        pipeline = tested.start(token=f"start {number}")
        await tested.sleep(COMMIT + 1)
        await pipeline.stop()
    assert tested.shards["table", "a"].tries == 0
    tested.calls.heal("read")
    pipeline = tested.start(token="last")
    await tested.sleep(COMMIT + 1)

    assert tested.landed == {"a"}
    assert pipeline.dead_letters.letters == {}


@pipelines_test
async def test_units_whose_rows_are_gone_from_the_state_come_again_without_a_try(tested: Pipelines) -> None:
    tested.calls.fails_once("read", UnitsGone("no row"))
    tested.send("a")
    tested.start()
    await tested.sleep(COMMIT + 1)
    assert tested.landed == set()
    assert tested.shards["table", "a"] == replace(tested.shards["table", "a"], tries=0, owner=None)
    await tested.sleep(VISIBILITY + COMMIT)

    assert tested.landed == {"a"}
    assert tested.queued == 0


@pytest.mark.parametrize(
    "silent", ["receive", "uuid", "open", "count try", "read", "commit", "answer", "record", "acknowledge", "give up"]
)
def test_stopping_takes_seconds_and_gives_everything_back(silent: str) -> None:
    @pipelines_test
    async def test(tested: Pipelines) -> None:
        tested.send("a", "b", "other/c", "bad")
        tested.shards["table", "bad"] = Shard(tries=SETTINGS.max_tries)
        pipeline = tested.start()
        tested.calls.takes(silent, 1e6)
        await tested.sleep(COMMIT + 1)
        began = tested.time
        await pipeline.stop()

        assert tested.time - began <= STOP_SECONDS + 1
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert {shard.owner for shard in tested.shards.values() if not shard.is_done} <= {None}
        tested.calls.heal(silent)
        others = tested.pipeline(token="other").queue
        visible = await others.receive(9, visibility=timedelta(seconds=9), wait=timedelta(0))
        if silent not in ("acknowledge", "record", "answer"):
            assert len(visible) == tested.queued

    test()


@pytest.mark.parametrize("silent", ["release", "extend visibility", "take back try"])
def test_stopping_takes_seconds_though_nobody_takes_back_what_was_held(silent: str) -> None:
    @pipelines_test
    async def test(tested: Pipelines) -> None:
        tested.calls.takes("read", 1e6)
        tested.send("a", "b")
        pipeline = tested.start()
        await tested.sleep(COMMIT + 1)
        tested.calls.takes(silent, 1e6)
        began = tested.time
        await pipeline.stop()

        assert tested.time - began <= 3 * STOP_SECONDS

    test()


@pipelines_test
async def test_what_landed_while_it_stopped_is_acknowledged(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.landings.commit_seconds = 3
    pipeline.start()
    await tested.sleep(COMMIT + 1)
    await pipeline.stop()

    assert tested.landed == {"a"}
    assert tested.queued == 0


@pipelines_test
async def test_an_error_of_the_last_landing_is_raised_though_it_was_stopped(tested: Pipelines) -> None:
    error = HistoryBroken("rolled back")
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.landings.read_seconds = 2
    tested.calls.fails("commit", error)
    pipeline.start()
    await tested.sleep(COMMIT + 1)
    with pytest.raises(HistoryBroken):
        await pipeline.stop()


@pipelines_test
async def test_an_error_of_the_last_extension_ends_the_pipeline(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.landings.commit_seconds = 20
    tested.calls.fails("extend visibility", Misconfigured("access denied"))
    pipeline.start()
    await tested.sleep(COMMIT + 5)

    assert pipeline.running is not None
    assert isinstance(pipeline.running.exception(), Misconfigured)


@pipelines_test
async def test_a_pipeline_is_idle_only_when_nothing_is_to_come_again(tested: Pipelines) -> None:
    pipeline = tested.start(QUICK)
    await tested.sleep(3)
    assert pipeline.coordinator.is_idle
    tested.send("bad")
    pipeline.landings.failures["bad"] = CORRUPT

    assert not any(await idle_until_empty(tested, pipeline))


@pipelines_test
async def test_a_pipeline_is_not_idle_while_another_works_on_what_it_received(tested: Pipelines) -> None:
    tested.shards["table", "a"] = Shard(owner="dead", lease_until=LEASE)
    tested.send("a")
    pipeline = tested.start(QUICK)

    assert not any(await idle_until_empty(tested, pipeline))
    assert tested.landed == {"a"}


@pipelines_test
async def test_a_pipeline_is_not_idle_while_a_message_that_it_lost_is_to_come_again(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.start(replace(QUICK, commit_timeout=timedelta(seconds=60)))
    await tested.sleep(1)
    tested.messages.table.extend(pipeline.coordinator._visibility.messages, timedelta(seconds=0.001))
    other = tested.pipeline(token="other").queue
    tested.calls.fails("receive", DOWN)
    await tested.sleep(2)
    tested.calls.heal("receive")
    await other.receive(1, visibility=0.8 * SETTINGS.visibility, wait=timedelta(seconds=1))
    while pipeline.coordinator.held_messages:
        await tested.sleep(1)

    assert not any(await idle_until_empty(tested, pipeline))
    assert tested.landed == {"a"}
    assert pipeline.counts.lost == 1


@pipelines_test
async def test_a_message_whose_acknowledgement_failed_is_waited_for(tested: Pipelines) -> None:
    tested.calls.fails_once("acknowledge", DOWN)
    tested.send("a")
    pipeline = tested.start(QUICK)

    assert not any(await idle_until_empty(tested, pipeline))


@pipelines_test
async def test_a_message_whose_acknowledgement_failed_is_waited_for_though_its_last_extension_was_long(
    tested: Pipelines,
) -> None:
    tested.calls.fails_once("acknowledge", DOWN)
    tested.send("a")
    settings = replace(QUICK, commit_timeout=SETTINGS.visibility)
    assert settings.last_visibility > settings.visibility
    pipeline = tested.pipeline(settings)
    pipeline.landings.commit_seconds = 5
    pipeline.start()

    assert not any(await idle_until_empty(tested, pipeline))


@pipelines_test
async def test_a_message_that_the_queue_does_not_let_come_sooner_is_waited_for(tested: Pipelines) -> None:
    tested.send("bad")
    pipeline = tested.pipeline(QUICK)
    pipeline.landings.failures["bad"] = CORRUPT
    extend = pipeline.queue.extend

    async def refuse_to_shorten(messages: Sequence[Message], visibility: timedelta) -> Sequence[Message]:
        return messages if visibility < COMMIT_TIMEOUT else await extend(messages, visibility)

    pipeline.queue.extend = refuse_to_shorten  # type: ignore[method-assign]
    pipeline.start()

    assert not any(await idle_until_empty(tested, pipeline))
    assert list(pipeline.dead_letters.letters) == ["bad"]


@pytest.mark.parametrize("slow", ["release", "extend visibility"])
def test_a_pipeline_that_is_stopped_is_not_idle_though_it_has_given_back_what_it_held(slow: str) -> None:
    @pipelines_test
    async def test(tested: Pipelines) -> None:
        tested.send("a")
        pipeline = tested.start(QUICK)
        await tested.sleep(COMMIT - 1)
        assert pipeline.coordinator.held_messages == 1
        tested.calls.takes(slow, 3)
        pipeline.coordinator.stop()
        assert pipeline.running is not None
        seen = []
        while not pipeline.running.done():
            seen.append(pipeline.coordinator.is_idle)
            await tested.sleep(0.05)

        assert not any([*seen, pipeline.coordinator.is_idle])
        assert (tested.landed, tested.queued) == (set(), 1)

    test()


QUICK = replace(SETTINGS, poll_wait=timedelta(seconds=1))


async def idle_until_empty(tested: Pipelines, pipeline: Pipeline) -> list[bool]:
    """Whether the pipeline was idle, asked every moment until the queue is empty; then it is."""
    await tested.sleep(1.5)
    seen = []
    while tested.queued:
        seen.append(pipeline.coordinator.is_idle)
        await tested.sleep(0.05)
    await tested.sleep(2 * VISIBILITY)
    assert pipeline.coordinator.is_idle
    return seen
