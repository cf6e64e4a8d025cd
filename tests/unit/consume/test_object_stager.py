"""Staging of objects, with the tasks run here instead of by Spark."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from lakehead.clock import SystemClock
from lakehead.consume import object_stager
from lakehead.consume.decode.frames import AcceptedFrame, landed_columns
from lakehead.consume.decode.rows import LANDED_AT, RESCUED, ROW, URI, FormatName, ObjectFormat
from lakehead.consume.iceberg_landings import OURS as OUR_COLUMNS
from lakehead.consume.object_clients import file_etag
from lakehead.consume.object_stager import ObjectStager, equal_groups
from lakehead.consume.object_tasks import ObjectToRead, ReadingJob, TaskReport
from lakehead.ids import RandomIds
from lakehead.lake.audits import every_row_once
from lakehead.lake.landing import NO_WATERMARK, Fence, Head, Numbers, Unit, UnitRemainder
from lakehead.lake.ports import Staged
from lakehead.lake.staged_rows import NewFiles
from lakehead.lake.tables import by_day, with_field_ids
from lakehead.state.model import ObjectProgress
from lakehead.wire.errors import NewerFormat
from lakehead.wire.frame import frame_sha256
from lakehead.wire.record_schemas import FrameKind
from tests.unit.lake.local_table import create, local_catalog
from tests.unit.wire.frames import IDENTITY, frame

OURS = Schema(
    NestedField(1, URI, StringType(), required=False),
    NestedField(2, ROW, LongType(), required=False),
    NestedField(3, LANDED_AT, TimestamptzType(), required=False),
    NestedField(4, RESCUED, StringType(), required=False),
)


class Here(ObjectStager):
    """Runs tasks in this process, two objects each."""

    def _run(
        self,
        job: ReadingJob,
        objects: Sequence[ObjectToRead],
        work: Callable[[ReadingJob, str, Iterable[ObjectToRead]], TaskReport],
    ) -> list[TaskReport]:
        groups = equal_groups(objects, -(-len(objects) // 2))
        return [work(job, f"{self.ids.uuid()}", group) for group in groups]


def staged(folder: Path, *lines: object, again: bool = False) -> tuple[Staged[NewFiles], Here]:
    """Stage one object of a row for each line."""
    with local_catalog(folder) as catalog:
        table = create(catalog, "t", OURS)
        table.load()
        objects = {
            Unit(f"u{number}"): ObjectToRead(unit=Unit(f"u{number}"), uri=f"u{number}", content=content(line))
            for number, line in enumerate(lines)
        }
        stager = Here(
            session=None,  # type: ignore[arg-type]
            table=table,
            format=ObjectFormat(name=FormatName.NDJSON),
            stores={},
            objects=objects,
            clock=SystemClock(),
            ids=RandomIds(),
            random=Random(1),
        )
        remainders = [UnitRemainder(unit) for unit in objects]
        fence = Fence(Head(None, None), None)

        async def stage() -> Staged[NewFiles]:
            first = await stager.stage(remainders, token="t", new_watermark=NO_WATERMARK, fence=fence)
            if not again:
                return first
            await stager.discard(first)
            return await stager.stage(remainders, token="t", new_watermark=NO_WATERMARK, fence=fence)

        return asyncio.run(stage()), stager


def content(line: object) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n"


def rows(landing: Staged[NewFiles]) -> list[dict[str, object]]:
    found = [row for file in landing.rows.files for row in pq.read_table(file.path).to_pylist()]
    return sorted(found, key=lambda row: str(row[URI]))


def test_columns_that_objects_have_are_added_and_the_objects_read_again(tmp_path: Path) -> None:
    landing, stager = staged(tmp_path, {"a": 1}, {"b": "x"}, {"a": 2})

    assert [(row["a"], row["b"]) for row in rows(landing)] == [(1, None), (None, "x"), (2, None)]
    assert {unit.id: each.rows for unit, each in stager.read.items()} == {"u0": 1, "u1": 1, "u2": 1}


def test_an_object_of_a_newer_format_ends_the_landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_newer(*_: object) -> TaskReport:
        return TaskReport(newer_format="s3://bucket/new: of version 9")

    monkeypatch.setattr(object_stager, "read_objects", read_newer)

    with pytest.raises(NewerFormat, match="s3://bucket/new: of version 9"):
        staged(tmp_path, {"a": 1})


def test_an_object_that_fails_is_left_out(tmp_path: Path) -> None:
    landing, stager = staged(tmp_path, {"a": 1}, b"{nonsense\n", {"a": 2})

    assert [row[URI] for row in rows(landing)] == ["u0", "u2"]
    assert [each.unit.id for each in landing.landing.remainders] == ["u0", "u2"]
    assert [unit.id for unit in stager.failed] == ["u1"]
    assert landing.landing.counts["rows"] == 2


def test_what_is_staged_again_is_counted_once(tmp_path: Path) -> None:
    landing, stager = staged(tmp_path, {"a": 1}, {"a": 2}, again=True)

    assert len(rows(landing)) == 2
    assert [each.rows for each in stager.read.values()] == [1, 1]


def test_what_was_read_is_still_told_when_a_landing_is_found_published_and_its_files_are_discarded(
    tmp_path: Path,
) -> None:
    landing, stager = staged(tmp_path, {"a": 1}, {"a": 2})

    asyncio.run(stager.discard(landing))

    assert [each.rows for each in stager.read.values()] == [1, 1]


@pytest.mark.parametrize("trouble", ["a bad row", "deleted", "replaced"])
def test_the_failure_of_an_object_that_is_begun_tells_how_much_of_it_is_in_the_table(
    tmp_path: Path, trouble: str
) -> None:
    path, lines = tmp_path / "large.json", b'{"a":1}\n{"a":2}\n'
    path.write_bytes(lines + b"{nonsense\n")
    landed = ObjectProgress(len(lines) - 1, 2, "another" if trouble == "replaced" else file_etag(path.stat()))
    if trouble == "deleted":
        path.unlink()
    unit = Unit(path.as_uri())
    with local_catalog(tmp_path) as catalog:
        table = create(catalog, "t", OURS)
        table.load()
        stager = Here(
            session=None,  # type: ignore[arg-type]
            table=table,
            format=ObjectFormat(name=FormatName.NDJSON),
            stores={},
            objects={unit: ObjectToRead(unit=unit, uri=unit.id)},
            clock=SystemClock(),
            ids=RandomIds(),
            random=Random(1),
        )
        remainders, fence = [UnitRemainder(unit, landed=landed)], Fence(Head(None, None), None)
        asyncio.run(stager.stage(remainders, token="t", new_watermark=NO_WATERMARK, fence=fence))

    failure = stager.failed[unit]
    assert not failure.temporary
    assert "Its first 15 bytes have landed before, and their 2 rows stay in the table" in failure.reason


@pytest.mark.parametrize(
    "lines",
    [
        [{"a": {"b": 1}, "a.b": 2}],
        [{"a": {"b": 1}}, {"a.b": 2}],
        [{"l": [1]}, {"l.element": 2, "new": 3}],
        [{"A": 1}, {"a": 2}],
        [{"a": {"b": 2}}, {"A.B": 1}],
        [{"_file": 2}],
        [{"_ROW": 2}],
    ],
)
def test_a_field_that_the_table_cannot_have_as_a_column_is_rescued(tmp_path: Path, lines: list[object]) -> None:
    landing, stager = staged(tmp_path, *lines)

    found = rows(landing)
    assert len(found) == len(lines)
    assert stager.failed == {}
    assert any("2" in str(row[RESCUED]) for row in found)


@pytest.mark.parametrize(
    "lines",
    [
        [{f"{letter}{number}": number for number in range(600)} for letter in "abc"],
        [{letter: {f"{letter}{number}": number for number in range(900)}} for letter in "abcdefghijkl"],
    ],
)
def test_objects_that_together_have_too_many_columns_or_fields_are_rescued(tmp_path: Path, lines: list[object]) -> None:
    landing, stager = staged(tmp_path, *lines)

    found = rows(landing)
    assert [json.loads(str(row[RESCUED])) for row in sorted(found, key=lambda row: int(str(row[URI])[1:]))] == lines
    assert {name for row in found for name in row} == {URI, ROW, LANDED_AT, RESCUED}
    assert stager.failed == {}


def test_objects_whose_fields_differ_in_case_alone_share_a_column_of_text(tmp_path: Path) -> None:
    landing, _ = staged(tmp_path, {"o": {"x": 1}}, {"o": {"X": 2}})

    assert [row["o"] for row in rows(landing)] == ['{"x":1}', '{"X":2}']


def test_of_an_accepted_batch_only_the_records_are_staged_that_no_landing_has(tmp_path: Path) -> None:
    body = frame()
    accepted = AcceptedFrame(identity=IDENTITY, kind=FrameKind.SAMPLES, sha256=frame_sha256(body))
    whole, cut, done = (Unit(name, numbers=Numbers("boot", 10, 17)) for name in ("whole", "cut", "done"))
    with local_catalog(tmp_path) as catalog:
        schema = with_field_ids(pa.schema([*landed_columns(FrameKind.SAMPLES), *OUR_COLUMNS]))
        table = create(catalog, "samples", schema, partition_spec=by_day(schema, "time"))
        table.load()
        stager = Here(
            session=None,  # type: ignore[arg-type]
            table=table,
            format=ObjectFormat(name=FormatName.FRAMES),
            stores={},
            objects={
                unit: ObjectToRead(unit=unit, uri=unit.id, content=body, frame=accepted) for unit in (whole, cut, done)
            },
            clock=SystemClock(),
            ids=RandomIds(),
            random=Random(1),
        )
        remainders = [UnitRemainder(whole), UnitRemainder(cut, ((11, 12), (15, 17))), UnitRemainder(done, ())]
        fence = Fence(Head(None, None), None)
        landing = asyncio.run(stager.stage(remainders, token="t", new_watermark=NO_WATERMARK, fence=fence))

    every_row_once(landing)
    found = sorted((str(row[URI]), row["seq"]) for row in rows(landing))
    assert found == [*(("cut", seq) for seq in (11, 15, 16)), *(("whole", seq) for seq in range(10, 17))]
    assert list(landing.landing.remainders) == remainders
