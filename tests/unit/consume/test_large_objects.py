"""Units that are too large for one landing: what a pipeline does between their parts, and how objects are divided."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectPart
from lakehead.consume.large_objects import UnfinishedObject, next_parts
from lakehead.consume.object_reader import ObjectReader, OpenedObject
from lakehead.consume.object_tasks import ObjectToRead, ReadingJob, TaskReport, read_objects
from lakehead.errors import Unavailable
from lakehead.lake.datafiles import Target
from lakehead.lake.landing import Unit
from lakehead.state.model import ObjectProgress
from tests.unit.consume.pipelines import SETTINGS, Pipelines, pipelines_test
from tests.unit.consume.test_object_tasks import N, a_job

COMMIT = SETTINGS.commit_timeout.total_seconds()
VISIBILITY = SETTINGS.visibility.total_seconds()


# --- what a pipeline does


@pipelines_test
async def test_the_parts_of_a_unit_land_one_after_the_other_and_then_its_message_is_acknowledged(
    tested: Pipelines,
) -> None:
    tested.send("large small")
    pipeline = tested.start()
    pipeline.landings.parts["large"] = 4
    await tested.sleep(COMMIT + 1)

    assert pipeline.landings.groups == [["large", "small"], ["large"], ["large"], ["large"]]
    assert tested.landed == {"large", "small"}
    assert tested.queued == 0
    assert tested.calls.names("commit", "acknowledge") == ["commit", "acknowledge"]
    counts = pipeline.counts
    assert (counts.landed, counts.landings, counts.rows, counts.bytes, counts.acknowledged) == (2, 4, 19, 27, 1)


@pipelines_test
async def test_each_part_is_in_the_history_under_its_own_name(tested: Pipelines) -> None:
    tested.send("large")
    pipeline = tested.start()
    pipeline.landings.parts["large"] = 3
    await tested.sleep(COMMIT + 1)

    recorded = [unit for name, what in tested.calls.made if name == "record" for _, unit, _ in what]
    assert recorded == ["large#2", "large#1", "large"]


@pipelines_test
async def test_others_land_between_the_parts_of_a_unit(tested: Pipelines) -> None:
    tested.send("large")
    pipeline = tested.start()
    pipeline.landings.parts["large"], pipeline.landings.read_seconds = 5, 10.0
    await tested.sleep(COMMIT + 5)
    tested.send("other")
    await tested.sleep(10)

    assert ["other" in group for group in pipeline.landings.groups] == [False, True]


@pipelines_test
async def test_a_message_stays_ours_until_the_last_part_has_landed(tested: Pipelines) -> None:
    tested.send("large")
    pipeline = tested.start()
    pipeline.landings.parts["large"], pipeline.landings.read_seconds = 20, VISIBILITY / 2
    await tested.sleep(COMMIT + 19.5 * VISIBILITY / 2)
    assert (tested.visible, tested.queued, tested.landed) == (0, 1, set())
    await tested.sleep(VISIBILITY)

    assert tested.landed == {"large"}
    assert (tested.queued, pipeline.counts.received, pipeline.counts.lost) == (0, 1, 0)


@pipelines_test
async def test_whoever_is_stopped_between_two_parts_gives_the_unit_back_at_once(tested: Pipelines) -> None:
    tested.send("large")
    first = tested.start(token="one")
    parts = first.landings.parts
    parts["large"], first.landings.read_seconds = 5, 4.0
    await tested.sleep(COMMIT + 9)
    await first.stop()
    assert (parts["large"], tested.visible, tested.shards["table", "large"].tries) == (2, 1, 0)

    second = tested.start(token="two")
    second.landings.parts = parts
    await tested.sleep(COMMIT + 1)

    assert tested.landed == {"large"}
    assert second.counts.landings == 2


@pipelines_test
async def test_a_unit_whose_message_was_lost_while_a_part_was_published_is_another_consumers(
    tested: Pipelines,
) -> None:
    tested.send("large")
    pipeline = tested.start(token="one")
    pipeline.landings.parts["large"] = 3

    async def lose() -> None:
        tested.calls.heal("answer")
        for call in ("extend visibility", "receive"):
            tested.calls.fails(call, Unavailable("it does not answer"))
        await tested.sleep(2 * VISIBILITY)

    tested.calls.faults["answer"] = lose
    await tested.sleep(COMMIT + 1 + 2 * VISIBILITY)
    assert (pipeline.counts.lost, pipeline.counts.landings) == (1, 1)
    assert ("release", ["large"]) in tested.calls.made
    assert tested.shards["table", "large"].owner is None

    tested.calls.heal("extend visibility", "receive")
    await tested.sleep(VISIBILITY)
    assert tested.landed == {"large"}
    assert tested.queued == 0


@pipelines_test
async def test_tries_before_a_part_do_not_count_after_it(tested: Pipelines) -> None:
    tested.send("large")
    pipeline = tested.start()
    pipeline.landings.parts["large"] = 2 * SETTINGS.max_tries
    await tested.sleep(COMMIT + timedelta(minutes=1).total_seconds())

    assert tested.landed == {"large"}
    assert pipeline.counts.dead_letters == 0


# --- how an object is divided


def parts_to(*ends: int) -> list[ObjectPart]:
    return [ObjectPart(start=start, end=end) for start, end in zip((0, *ends), ends, strict=False)]


@pytest.mark.parametrize(
    ("limit", "start", "taken", "end"),
    [(25, 0, 2, 20), (30, 0, 3, 30), (1, 0, 1, 10), (40, 0, 4, None), (39, 0, 3, 30), (10**9, 0, 4, None)],
)
def test_a_landing_takes_as_many_parts_as_the_limit_allows_and_one_at_least(
    limit: int, start: int, taken: int, end: int | None
) -> None:
    parts = parts_to(10, 20, 30, 40)

    assert next_parts(parts, start=start, limit=limit) == (parts[:taken], end)


def test_the_limit_counts_from_where_the_rest_begins() -> None:
    later = parts_to(10, 20, 30, 40)[2:]

    assert next_parts(later, start=20, limit=15) == (later[:1], 30)
    assert next_parts(later, start=20, limit=20) == (later, None)


LINES = b"".join(b'{"n": %d}\n' % number for number in range(100))


def read(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    limit: int = 300,
    landed: ObjectProgress | None = None,
    etag: str | None = "e",
) -> TaskReport:
    """Read an object of 100 rows as the first task of a landing does, which leaves parts to others."""

    def opened(_: ObjectReader, uri: str, *, version: str | None, etag: str | None) -> OpenedObject:
        del uri, version
        asked.append(etag)
        return OpenedObject(pa.BufferReader(LINES), len(LINES), found)

    asked: list[str | None] = []
    found = etag
    monkeypatch.setattr(ObjectReader, "open", opened)
    job = a_job(folder, N)
    assert isinstance(job.target, Target)
    job = ReadingJob(
        target=job.target,
        format=ObjectFormat(name=FormatName.NDJSON),
        stores={},
        landed_at_us=0,
        split_bytes=100,
        max_object_bytes=limit,
    )
    wanted = ObjectToRead(unit=Unit("u"), uri="s3://in/u", landed=landed, etag=landed.etag if landed else None)
    report = read_objects(job, "task", [wanted])
    assert asked == [wanted.etag]
    return report


def test_only_the_beginning_of_a_large_object_is_left_to_other_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = read(tmp_path, monkeypatch)

    [end] = {each.end for each in report.unfinished.values()}
    assert report.unfinished == {Unit("u"): UnfinishedObject(0, end, "e")}
    assert 200 < end <= 300
    assert sum(each.size for each in report.split) == end
    assert {each.etag for each in report.split} == {"e"}


def test_the_rest_begins_where_the_last_landing_ended_and_is_numbered_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = read(tmp_path, monkeypatch, landed=ObjectProgress(777, 70, "e"), limit=10**6)

    assert report.unfinished == {}
    parts = [each.part for each in report.split if each.part is not None]
    assert (parts[0].start, parts[-1].end) == (777, len(LINES))
    assert {each.first_row for each in report.split} == {70}


def test_an_object_without_an_etag_lands_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = read(tmp_path, monkeypatch, etag=None)

    assert report.unfinished == {}
    assert sum(each.size for each in report.split) == len(LINES)
