"""Carrying messages from their reception to their acknowledgement: each decision on the way."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from lakehead.consume.decode.frames import AcceptedFrame
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.objects import ObjectRef
from lakehead.consume.ports import ActionReport
from lakehead.consume.queue import Message
from lakehead.consume.table_landings import MOST_TURNS, groups_of
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind
from tests.support.effort import effort
from tests.support.simulation import World
from tests.unit.consume.pipelines import SETTINGS, Calls, Pipelines, Shard, pipelines_test

LEASE = SETTINGS.lease.total_seconds()
COMMIT = SETTINGS.commit_timeout.total_seconds()
VISIBILITY = SETTINGS.visibility.total_seconds()
DOWN = Unavailable("it does not answer")
LOST = OutcomeUnknown("the answer is lost")


# --- whose a unit is


@pipelines_test
async def test_what_is_ours_lands_and_then_its_message_is_acknowledged(tested: Pipelines) -> None:
    tested.send("a", "b")
    pipeline = tested.start()
    await tested.sleep(COMMIT + 1)

    assert tested.landed == {"a", "b"}
    assert tested.queued == 0
    order = tested.calls.names("open", "count try", "read", "commit", "acknowledge", "begin windows")
    assert order == ["open", "count try", "read", "commit", "acknowledge", "begin windows"]
    assert pipeline.coordinator.held_messages == 0
    counts = pipeline.counts
    assert (counts.received, counts.landed, counts.landings, counts.rows, counts.bytes) == (2, 2, 1, 4, 6)
    assert (counts.acknowledged, counts.unacknowledged, counts.duplicates, counts.failed, counts.lost) == (
        2,
        0,
        0,
        0,
        0,
    )


@pipelines_test
async def test_what_another_has_landed_is_acknowledged_without_a_read(tested: Pipelines) -> None:
    tested.shards["table", "a"] = Shard(owner="other", is_done=True)
    tested.send("a")
    pipeline = tested.start()
    await tested.sleep(1)

    assert tested.queued == 0
    assert tested.calls.count("read") == 0
    assert tested.shards["table", "a"].acknowledged
    assert (pipeline.counts.duplicates, pipeline.counts.acknowledged) == (1, 1)


@pytest.mark.parametrize(("ago", "taken"), [(LEASE - 0.001, False), (LEASE, True), (LEASE + 0.001, True)])
def test_a_unit_of_another_is_taken_over_exactly_when_it_has_shown_no_life_for_a_lease(
    ago: float, *, taken: bool
) -> None:
    @pipelines_test
    async def test(tested: Pipelines) -> None:
        await tested.sleep(100)
        tested.shards["table", "a"] = Shard(owner="other", lease_until=tested.time - ago + LEASE)
        tested.send("a")
        pipeline = tested.start()
        await tested.sleep(COMMIT + 1)

        assert tested.landed == ({"a"} if taken else set())
        assert (pipeline.counts.taken_over, pipeline.counts.busy) == (int(taken), int(not taken))

    test()


@pipelines_test
async def test_a_message_of_a_unit_that_another_works_on_is_dropped_and_comes_again(tested: Pipelines) -> None:
    tested.shards["table", "a"] = Shard(owner="other", lease_until=LEASE)
    tested.send("a")
    pipeline = tested.start()
    await tested.sleep(VISIBILITY - 1)

    assert pipeline.coordinator.held_messages == 0
    assert tested.calls.count("acknowledge") == tested.calls.count("extend visibility") == 0
    assert tested.calls.count("open") == 1

    await tested.sleep(1 + COMMIT + 1)
    assert tested.landed == {"a"}
    assert tested.queued == 0


@pipelines_test
async def test_a_unit_that_was_taken_from_us_while_it_waited_is_not_read(tested: Pipelines) -> None:
    tested.send("a")
    tested.start()
    await tested.sleep(1)
    tested.shards["table", "a"] = Shard(owner="other", lease_until=1e9)
    await tested.sleep(COMMIT)

    assert tested.calls.count("read") == 0
    assert tested.calls.count("acknowledge") == 0


@pipelines_test
async def test_two_pipelines_on_one_queue_land_each_unit_once(tested: Pipelines) -> None:
    tested.send(*(f"u{number}" for number in range(50)), *(f"u{number}" for number in range(50)))
    tested.start(replace(SETTINGS, max_messages=3, max_held=7), token="one")
    tested.start(replace(SETTINGS, max_messages=3, max_held=7), token="two")
    await tested.sleep(600)

    assert tested.landed == {f"u{number}" for number in range(50)}
    assert tested.queued == 0


# --- when a landing begins, and what it holds


@pipelines_test
async def test_a_landing_begins_when_the_commit_timeout_is_over(tested: Pipelines) -> None:
    tested.send("a")
    tested.start()
    await tested.sleep(4)
    tested.send("b")
    await tested.sleep(COMMIT - 4.5)
    assert tested.landed == set()
    await tested.sleep(1)

    assert tested.landed == {"a", "b"}


@pipelines_test
async def test_when_a_message_was_read_it_is_extended_once_more_by_twice_the_commit_timeout(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.landings.commit_seconds = 2 * COMMIT - 1
    pipeline.start()
    await tested.sleep(COMMIT + 2 * COMMIT - 2)
    assert tested.landed == set()
    assert [what[1] for name, what in tested.calls.made if name == "extend visibility"] == [2 * COMMIT]
    await tested.sleep(5)

    assert tested.landed == {"a"}
    assert (pipeline.counts.lost, tested.queued) == (0, 0)


@pipelines_test
async def test_a_landing_begins_when_max_messages_have_gathered(tested: Pipelines) -> None:
    tested.send("a", "b", "c", "d")
    pipeline = tested.start(replace(SETTINGS, max_messages=3))
    await tested.sleep(1)

    assert [len(group) for group in pipeline.landings.groups] == [3, 1]


@pipelines_test
async def test_a_landing_begins_when_max_bytes_have_gathered(tested: Pipelines) -> None:
    tested.send("a:400", "b:400")
    pipeline = tested.start(replace(SETTINGS, max_bytes=1000))
    await tested.sleep(1)
    assert pipeline.landings.groups == []
    tested.send("c:400")
    await tested.sleep(1)

    assert pipeline.landings.groups == [["a", "b"], ["c"]]


@pipelines_test
async def test_no_more_messages_are_held_than_max_held(tested: Pipelines) -> None:
    tested.send(*(f"u{number}" for number in range(20)))
    pipeline = tested.start(replace(SETTINGS, max_held=8))
    await tested.sleep(1)
    assert pipeline.coordinator.held_messages == 8
    await tested.sleep(3 * COMMIT + 1)

    assert tested.queued == 0


def test_units_that_failed_before_go_in_smaller_groups_and_then_alone() -> None:
    settings = replace(SETTINGS, max_messages=100)
    works = [work(f"{tries}-{number}", tries=tries) for number in range(40) for tries in (0, 1, 2, 3)]

    groups = groups_of(works, settings)

    assert [len(group) for group in groups] == [40, 32, 8, *[1] * 80]
    assert all(len({each.tries for each in group}) == 1 for group in groups)
    assert sorted(each.key for group in groups for each in group) == sorted(each.key for each in works)


def test_groups_are_divided_by_bytes_and_an_object_above_the_limit_is_alone() -> None:
    settings = replace(SETTINGS, max_bytes=100)
    works = [work("a", size=60), work("b", size=40), work("c", size=1), work("d", size=500), work("e")]

    assert [[each.key.unit for each in group] for group in groups_of(works, settings)] == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]
    assert groups_of([], settings) == []


def test_accepted_batches_with_common_records_are_not_landed_together() -> None:
    """Else it would not be known before the commit which of them has landed a record."""

    works = [
        batch(10, 20),
        work("file"),
        batch(21, 30),
        batch(10, 25),
        batch(15, 17),
        batch(10, 20, "other"),
        batch(31, 40),
    ]

    assert [{each.key.unit for each in group} for group in groups_of(works, SETTINGS)] == [
        {"boot 10-20", "file", "boot 21-30", "other 10-20", "boot 31-40"},
        {"boot 10-25"},
        {"boot 15-17"},
    ]


def test_an_agent_with_very_many_overlaps_does_not_make_a_landing_of_each() -> None:
    """All others would wait for them."""
    works = [batch(0, end) for end in range(100)]
    groups = groups_of(works, SETTINGS)

    assert [len(group) for group in groups] == [1] * (MOST_TURNS - 1) + [100 - MOST_TURNS + 1]
    assert sorted(each.key.unit for group in groups for each in group) == sorted(each.key.unit for each in works)


def batch(start: int, end: int, boot: str = "boot") -> Work:
    identity = BatchIdentity("agent", boot, start, end)
    frame = AcceptedFrame(identity=identity, kind=FrameKind.SAMPLES, sha256="ab" * 32)
    return replace(work(f"{boot} {start}-{end}"), frame=frame)


def work(unit: str, *, tries: int = 0, size: int = 0) -> Work:
    ref = ObjectRef(uri=unit, size=size)
    return Work(key=UnitKey("table", unit), object=ref, tries=tries, message=Message(id=unit, body=b""))


# --- tables


@pipelines_test
async def test_a_message_of_two_tables_is_acknowledged_when_both_have_it(tested: Pipelines) -> None:
    tested.calls.takes("read other", 30)
    tested.send("a other/b")
    pipeline = tested.start()
    await tested.sleep(COMMIT + 20)
    assert tested.landed == {"a"}
    assert tested.calls.count("acknowledge") == 0
    await tested.sleep(20)

    assert tested.landed == {"a", "b"}
    assert tested.queued == 0
    assert pipeline.counts.landings == 2


@pipelines_test
async def test_a_table_that_is_slow_does_not_keep_another_waiting(tested: Pipelines) -> None:
    tested.calls.takes("read other", 600)
    tested.send("other/b")
    tested.start()
    await tested.sleep(COMMIT + 1)
    tested.send("a")
    await tested.sleep(COMMIT + 1)

    assert tested.landed == {"a"}


@pipelines_test
async def test_a_table_that_cannot_be_opened_does_not_keep_another_waiting(tested: Pipelines) -> None:
    pipeline = tested.pipeline()
    opened = pipeline.landings.uuid

    async def uuid(table: str) -> str:
        if table == "other":
            raise DOWN
        return await opened(table)

    pipeline.landings.uuid = uuid  # type: ignore[method-assign]
    tested.send("a", "other/b")
    pipeline.start()
    await tested.sleep(COMMIT + 1)
    assert tested.landed == {"a"}


# --- duplicates


@pipelines_test
async def test_a_duplicate_of_a_unit_in_flight_is_acknowledged_as_soon_as_it_has_landed(tested: Pipelines) -> None:
    tested.calls.takes("read", 20)
    tested.send("a")
    tested.start()
    await tested.sleep(COMMIT + 5)
    tested.send("a", "a")
    await tested.sleep(5)
    assert tested.queued == 3
    await tested.sleep(11)

    assert tested.landed == {"a"}
    assert tested.queued == 0
    assert tested.calls.count("open") == 1


@pipelines_test
async def test_a_message_that_announces_nothing_is_acknowledged(tested: Pipelines) -> None:
    tested.send("", "   ")
    tested.start()
    await tested.sleep(1)

    assert tested.queued == 0


@pipelines_test
async def test_a_message_that_is_not_understood_becomes_a_dead_letter_and_is_acknowledged_after_that(
    tested: Pipelines,
) -> None:
    tested.calls.fails_once("give up message", LOST)
    tested.send("?", "a")
    pipeline = tested.start()
    await tested.sleep(COMMIT + 2)

    assert pipeline.dead_letters.letters == {"?": "It says nothing."}
    assert tested.calls.names("give up message", "acknowledge") == ["give up message", "acknowledge"]
    assert tested.landed == {"a"}
    assert tested.queued == 0
    assert pipeline.counts.dead_letters == 1


@pytest.mark.parametrize(
    ("body", "limits"),
    [("u{}" + "." * 8, {"max_held_bytes": 100}), ("a{0} b{0} c{0} d{0}", {"max_held": 40})],
    ids=["large messages", "messages with many units"],
)
def test_memory_is_bounded_by_what_messages_hold_and_not_by_their_number_alone(
    body: str, limits: dict[str, int]
) -> None:
    @pipelines_test
    async def test(tested: Pipelines) -> None:
        tested.send(*(body.format(number) for number in range(100)))
        pipeline = tested.start(replace(SETTINGS, **limits))  # type: ignore[arg-type]
        most = 0
        for _ in range(120):
            await tested.sleep(2)
            most = max(most, pipeline.coordinator.held_messages)

        assert most <= 10
        assert tested.queued == 0

    test()


@pipelines_test
async def test_messages_with_many_units_after_small_ones_are_given_back_as_far_as_there_is_no_room(
    tested: Pipelines,
) -> None:
    """How many units a message announces is known when it was received."""
    tested.send("a", "b")
    pipeline = tested.start(replace(SETTINGS, max_held=40))
    await tested.sleep(1)
    tested.send(*(" ".join(f"{number}-{unit}" for unit in range(15)) for number in range(30)))
    most = 0
    for _ in range(300):
        await tested.sleep(1)
        most = max(most, len(pipeline.coordinator._local.units))

    assert most < 40 + 15
    assert len(tested.landed) == 2 + 30 * 15
    assert tested.queued == 0


# --- services that do not answer


@pytest.mark.slow
@pytest.mark.parametrize(
    "silent",
    [
        "receive",
        "extend visibility",
        "acknowledge",
        "uuid",
        "open",
        "extend lease",
        "count try",
        "count try answer",
        "read",
        "commit",
        "answer",
        "begin windows",
        "record",
        "close letters",
        "release",
        "prune",
    ],
)
@pytest.mark.parametrize("error", [DOWN, LOST], ids=["unavailable", "unknown"])
def test_a_pipeline_goes_on_after_minutes_without_an_answer(silent: str, error: Exception) -> None:
    @pipelines_test
    async def test(tested: Pipelines) -> None:
        tested.calls.fails(silent, error)
        tested.send("a", "b")
        tested.start()
        await tested.sleep(300)
        tested.calls.heal(silent)
        tested.send("c")
        await tested.sleep(300)

        assert tested.landed == {"a", "b", "c"}
        assert tested.queued == 0
        assert all(shard.tries <= 1 for shard in tested.shards.values()) or silent == "answer"

    test()


@pytest.mark.parametrize("error", [DOWN, LOST], ids=["unavailable", "unknown"])
def test_a_landing_that_did_not_come_about_is_tried_again_with_pauses_and_without_counting(error: Exception) -> None:
    @pipelines_test
    async def test(tested: Pipelines) -> None:
        tested.calls.fails("read", error)
        tested.send("a")
        pipeline = tested.start(replace(SETTINGS, max_messages=1))
        await tested.sleep(60)

        assert 10 <= tested.calls.count("read") <= 250
        assert tested.shards["table", "a"].tries <= 1
        assert pipeline.counts.lost == 0
        assert tested.queued == 1

    test()


@pipelines_test
async def test_a_failed_acknowledgement_abandons_its_message_and_nothing_else(tested: Pipelines) -> None:
    tested.calls.fails_once("acknowledge", DOWN)
    tested.send("a")
    pipeline = tested.start()
    await tested.sleep(COMMIT + 1)
    assert tested.landed == {"a"}
    assert (tested.queued, pipeline.counts.unacknowledged) == (1, 1)
    tested.send("b")
    await tested.sleep(2 * VISIBILITY)

    assert tested.landed == {"a", "b"}
    assert tested.queued == 0
    assert (pipeline.counts.acknowledged, pipeline.counts.duplicates) == (2, 1)


@pipelines_test
async def test_nothing_is_pruned_but_by_the_interval(tested: Pipelines) -> None:
    tested.send("a")
    pipeline = tested.start()
    await tested.sleep(10 * SETTINGS.cleanup_interval.total_seconds() + 1)

    assert tested.calls.count("prune") == pipeline.counts.pruned == 10
    assert pipeline.coordinator.remembered_units == 1


# --- memory


@pytest.mark.slow
def test_nothing_is_kept_of_many_thousand_messages_that_have_landed() -> None:
    batches = effort(8, soak=100)

    async def test(tested: Pipelines) -> None:
        pipeline = tested.start(
            replace(SETTINGS, max_messages=1_000, max_held=2_000, cleanup_interval=timedelta(days=1))
        )
        for batch in range(batches):
            tested.send(*(f"{batch}-{number}" for number in range(1_000)))
            await tested.sleep(1)
        await tested.sleep(COMMIT + 1)

        assert pipeline.counts.landed == batches * 1_000
        assert tested.queued == 0
        local, visibility = pipeline.coordinator._local, pipeline.coordinator._visibility
        assert (local.messages, local.units, local.settled(), visibility.messages) == (0, {}, [], [])
        keeping = pipeline.coordinator._keeping
        assert keeping.read == keeping.orphaned == []
        await pipeline.stop()

    world = World(0)
    world.loop.simulate(test(Pipelines(world)))


# --- what is done with objects that have landed


@dataclass
class Moves:
    calls: Calls

    async def act(self, table: str, units: Collection[str]) -> ActionReport:
        await self.calls("act", (table, sorted(units)))
        return ActionReport(done=len(units))


@pipelines_test
async def test_messages_stay_invisible_while_their_objects_are_deleted_or_moved(tested: Pipelines) -> None:
    tested.calls.takes("act", 10 * VISIBILITY)
    tested.send("a", "b")
    pipeline = tested.pipeline()
    pipeline.coordinator._settling.after_landing = Moves(tested.calls)
    pipeline.start()
    await tested.sleep(COMMIT + 9 * VISIBILITY)
    assert (pipeline.counts.received, tested.calls.count("act"), tested.queued) == (2, 1, 2)

    await tested.sleep(2 * VISIBILITY)
    assert (pipeline.counts.received, pipeline.counts.removed, tested.queued) == (2, 2, 0)


@pipelines_test
async def test_who_is_stopped_while_objects_are_moved_gives_their_messages_back_at_once(tested: Pipelines) -> None:
    tested.calls.takes("act", 1e6)
    tested.send("a")
    pipeline = tested.pipeline()
    pipeline.coordinator._settling.after_landing = Moves(tested.calls)
    pipeline.start()
    await tested.sleep(COMMIT + 1)
    await pipeline.stop()

    assert (tested.landed, tested.queued, tested.visible) == ({"a"}, 1, 1)
