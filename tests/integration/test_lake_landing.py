"""Landings on a real session: what a snapshot says, what readers see meanwhile, and what stops a landing."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehead.ids import RandomIds
from lakehead.lake.audits import NoDuplicates, at_least, every_row_once, no_null
from lakehead.lake.commits import LAST_LANDING
from lakehead.lake.conform import RowsRejected
from lakehead.lake.documents import from_summary, ledger_key
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Fence, Landing, NewWatermark, Unit, UnitRemainder, token_of
from lakehead.lake.merge import HASH_JOIN_THRESHOLD, MERGE_THRESHOLD, SPARK_DEFAULT
from lakehead.lake.ports import AuditFailed, HistoryBroken, Staged
from lakehead.lake.protocol import Audit, fence
from lakehead.lake.staged_rows import Change, NewFiles, Read
from lakehead.lake.stagers import ArrowStager, FrameStager, StagingFailed
from tests.lakehouse import ROWS, Lakehouse, rows_of, unit_merge
from tests.support.effort import effort
from tests.support.spark import own_session

pytestmark = [
    pytest.mark.own_jvm,
    pytest.mark.timeout(300),
]  # the very first start fetches jars and prepares quicker ones

MANY = effort(10_000, soak=100_000)
REACHED = NewWatermark(datetime(2026, 11, 16, 1, 2, 3, 456_789, tzinfo=UTC), 7, date(2026, 11, 15))


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("landing")
    settings = replace(Lakehouse.settings(folder), master="local[2,2]")  # a task may fail once
    with own_session(settings) as session:
        lakehouse = Lakehouse(folder, session, settings.catalogs)
        yield lakehouse
        lakehouse.close()


def summary_of(table: IcebergTable) -> dict[str, str]:
    snapshot = table.load().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return dict(snapshot.summary.additional_properties)


def said_by(table: IcebergTable) -> Landing:
    said = from_summary(summary_of(table), "the head")
    assert said is not None
    return said[0]


def taken(lakehouse: Lakehouse, table: IcebergTable, *units: str) -> list[Unit]:
    return lakehouse.progress().take(table.uuid, [Unit(unit) for unit in units])


@pytest.mark.parametrize("how", ["append", "overwrite", "replace", "frame", "merge"])
def test_token_units_watermark_and_counts_stand_in_the_snapshot(lakehouse: Lakehouse, how: str) -> None:
    table = lakehouse.create(f"says_{how}")
    lakehouse.land(table, "before")
    first = table.load().metadata.current_snapshot_id

    def frame(remainders: Sequence[UnitRemainder]) -> DataFrame:
        table = pa.Table.from_batches([batch for remainder in remainders for batch in rows_of(remainder)])
        return lakehouse.session.createDataFrame(table)

    stagers: dict[str, Callable[[], Any]] = {
        "append": lambda: lakehouse.arrow_stager(table),
        "overwrite": lambda: lakehouse.arrow_stager(table, change=Change.OVERWRITE_PARTITIONS),
        "replace": lambda: lakehouse.arrow_stager(table, change=Change.REPLACE),
        "frame": lambda: FrameStager(session=lakehouse.session, table=table, ids=RandomIds(), frame=frame),
        "merge": lambda: lakehouse.merge_stager(table),
    }
    units = taken(lakehouse, table, 'a "ü"', "b")
    staged = asyncio.run(lakehouse.lander(table, stagers[how]()).land(units, new_watermark=REACHED))

    said = said_by(table)
    assert staged is not None
    assert said == staged.landing
    assert said.token == token_of("pipeline", table.uuid, units)
    assert [remainder.unit.id for remainder in said.remainders] == ['a "ü"', "b"]
    assert (said.new_watermark, said.before, said.counts["units"]) == (REACHED, first, 2)
    if how != "merge":
        assert (said.counts["rows"], said.counts["files"]) == (2 * ROWS, int(summary_of(table)["added-data-files"]))
        assert said.counts["rows"] == int(summary_of(table)["added-records"])
    head = table.load().current_snapshot()
    assert head is not None
    recorded = asyncio.run(lakehouse.ledger.read(table.uuid, head.snapshot_id, head.sequence_number or 0))
    assert recorded is not None
    assert recorded.landing == said


def records(lakehouse: Lakehouse, key: str) -> Path:
    return lakehouse.folder / "records" / key


def publish_unsettled(lakehouse: Lakehouse, table: IcebergTable, units: list[Unit]) -> Landing:
    """Publish, and crash before the landing is settled."""
    lander = lakehouse.lander(table)
    at = asyncio.run(lander.fence())
    remainders = asyncio.run(lakehouse.progress().plan(table.uuid, at=at.head.snapshot, units=units))
    assert remainders
    token = token_of("pipeline", table.uuid, units)
    staged = asyncio.run(lander.stager.stage(remainders, token=token, new_watermark=NewWatermark(), fence=at))
    asyncio.run(table.publish(staged, at.head))
    landing: Landing = staged.landing
    return landing


def test_very_many_units_land_at_once_and_are_known_again(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("many_units")
    names = [f"unit-{number:06}" for number in range(MANY)]

    def read(numbers: list[int]) -> Iterable[pa.RecordBatch]:
        theirs = pa.array(numbers, pa.int64())
        yield pa.RecordBatch.from_arrays([theirs.cast(pa.string()), theirs], names=["unit", "number"])

    def split(remainder: UnitRemainder) -> list[list[int]]:
        number = int(remainder.unit.id.removeprefix("unit-"))
        return [[number]] if number % 100 == 0 else []  # most have no row: it is the units that are many

    stager: ArrowStager[list[int]] = ArrowStager(
        session=lakehouse.session, table=table, ids=RandomIds(), read=read, split=split
    )
    units = taken(lakehouse, table, *names)
    staged = asyncio.run(lakehouse.lander(table, stager).land(units))

    assert staged is not None
    assert (staged.landing.counts["units"], staged.landing.counts["rows"]) == (MANY, MANY // 100)
    assert sum(map(len, summary_of(table).values())) < 5_000, "every reader of the table loads it"
    body = records(lakehouse, summary_of(table)["lakehead.progress"]).read_bytes()
    assert [unit["id"] for unit in json.loads(body)] == names
    assert sorted(table.load().scan().to_arrow()["number"].to_pylist()) == list(range(0, MANY, 100))
    assert taken(lakehouse, table, *names) == [], "all of them are known to have landed"


SEVERAL = [f"a unit with a long name that is one of several {number:04}" for number in range(100)]


@pytest.mark.parametrize("fault", ["deleted", "changed", "cut short"])
def test_a_lost_progress_object_stops_the_fence_until_it_is_back(lakehouse: Lakehouse, fault: str) -> None:
    table = lakehouse.create(f"lost_{fault.replace(' ', '_')}")
    publish_unsettled(lakehouse, table, taken(lakehouse, table, *SEVERAL))
    kept = records(lakehouse, summary_of(table)["lakehead.progress"])
    body = kept.read_bytes()
    match fault:
        case "deleted":
            kept.unlink()
        case "changed":
            kept.write_bytes(body.replace(b"0099", b"0100"))
        case _:
            kept.write_bytes(body[:-1])
    again = taken(lakehouse, table, "another")

    with pytest.raises(HistoryBroken, match=r"There is no record of which units snapshot .* holds") as stopped:
        asyncio.run(lakehouse.lander(table).land(again))
    assert ("is missing" if fault == "deleted" else "its hash is another") in str(stopped.value)
    assert lakehouse.units_in(table) == dict.fromkeys(SEVERAL, ROWS), "nothing was landed meanwhile"

    kept.write_bytes(body)
    asyncio.run(lakehouse.lander(table).land(again))
    assert lakehouse.units_in(table) == dict.fromkeys([*SEVERAL, "another"], ROWS)
    assert taken(lakehouse, table, *SEVERAL) == []


def test_a_progress_object_that_is_lost_after_its_landing_is_in_the_ledger_is_no_loss(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("kept_by_the_ledger")
    lakehouse.land(table, *SEVERAL)
    head = table.load().current_snapshot()
    assert head is not None
    assert records(lakehouse, ledger_key(table.uuid, head.snapshot_id, head.sequence_number or 0)).exists()
    records(lakehouse, summary_of(table)["lakehead.progress"]).unlink()

    (told,) = asyncio.run(table.history(None, head.snapshot_id))

    assert told.landing is not None
    assert [remainder.unit.id for remainder in told.landing.remainders] == SEVERAL


@dataclass
class Looking:
    """A stager that lets somebody look when its rows are staged, and may meddle with them."""

    stager: Any
    look: Callable[[Staged[Any]], Staged[Any]]
    stagings: int = 0

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[Any]:
        self.stagings += 1
        return self.look(await self.stager.stage(remainders, token=token, new_watermark=new_watermark, fence=fence))

    def is_publishable_at(self, staged: Staged[Any], at: Any) -> bool:
        return bool(self.stager.is_publishable_at(staged, at))

    async def is_still_stored(self, staged: Staged[Any]) -> bool:
        return bool(await self.stager.is_still_stored(staged))

    async def discard(self, staged: Staged[Any]) -> None:
        await self.stager.discard(staged)


@pytest.mark.parametrize("how", ["append", "replace", "merge"])
def test_readers_of_main_see_the_old_rows_while_new_ones_are_staged(lakehouse: Lakehouse, how: str) -> None:
    table = lakehouse.create(f"unseen_{how}")
    name = f"lake.t.unseen_{how}"
    lakehouse.land(table, "old")
    seen: list[tuple[dict[str, int], int]] = []

    def look(staged: Staged[Any]) -> Staged[Any]:
        seen.append((lakehouse.units_in(table), lakehouse.session.table(name).count()))
        return staged

    change = Change.REPLACE if how == "replace" else Change.APPEND
    stager = lakehouse.merge_stager(table) if how == "merge" else lakehouse.arrow_stager(table, change=change)
    lakehouse.land(table, "new", stager=Looking(stager, look))

    assert seen == [({"old": ROWS}, ROWS)]
    assert lakehouse.units_in(table) == {"append": {"old": ROWS, "new": ROWS}, "replace": {"new": ROWS}}.get(
        how, {"old": ROWS, "new": 1}
    )
    assert set(table.load().metadata.refs) == {"main", LAST_LANDING}


def with_reads(staged: Staged[NewFiles], *reads: Read) -> Staged[NewFiles]:
    return replace(staged, rows=replace(staged.rows, reads=reads))


def faulty_rows(remainder: UnitRemainder) -> Iterable[pa.RecordBatch]:
    """A unit whose name says what is wrong with its rows."""
    if "null" in remainder.unit.id:
        yield pa.RecordBatch.from_pydict({"unit": pa.array(["a", None]), "number": [1, 2]})
    elif "twice" in remainder.unit.id:
        yield pa.RecordBatch.from_pydict({"unit": ["a", "a", "a"], "number": [1, 2, 1]})
    else:
        yield from rows_of(remainder)


FAULTS: dict[str, tuple[Callable[[Staged[NewFiles]], Staged[NewFiles]], Callable[..., Audit[Any]], str]] = {
    "a count that is a lie": (
        lambda staged: with_reads(staged, replace(staged.rows.reads[0], rows=ROWS + 1)),
        lambda *_: every_row_once,
        "11 rows were read and 10 were written",
    ),
    "a unit that was read again": (
        lambda staged: replace(
            staged, rows=replace(staged.rows, reads=(staged.rows.reads[0], staged.rows.reads[0]), parts=2)
        ),
        lambda *_: every_row_once,
        "'a unit that was read again' was read more than once",
    ),
    "a null key": (lambda staged: staged, lambda *_: no_null(["number", "unit"]), "no value in the key column 'unit'"),
    "a key twice": (
        lambda staged: staged,
        lambda session, table: NoDuplicates(session, table, ("number", "unit")),
        r"Some keys \(number, unit\) of .* are duplicated: \(1, 'a'\)",
    ),
    "too few rows": (lambda staged: staged, lambda *_: at_least(ROWS + 1), "at least 11 were expected"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_what_was_staged_leaves_main_untouched_and_is_told(lakehouse: Lakehouse, fault: str) -> None:
    meddle, audit, reason = FAULTS[fault]
    table = lakehouse.create(f"faulty_{fault.replace(' ', '_')}")
    lakehouse.land(table, "good")
    head = asyncio.run(table.head())
    stager = Looking(lakehouse.arrow_stager(table, read=faulty_rows), meddle)
    lander = lakehouse.lander(table, stager, audits=[audit(lakehouse.session, table)])

    with pytest.raises(AuditFailed, match=reason):
        asyncio.run(lander.land(taken(lakehouse, table, fault)))

    assert asyncio.run(table.head()) == head
    assert lakehouse.units_in(table) == {"good": ROWS}


def test_keys_that_a_merge_would_double_are_found_on_its_branch(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("doubled")
    lakehouse.land(table, "a")  # ten rows of one unit: its name is no key
    lander = lakehouse.lander(
        table, lakehouse.merge_stager(table), audits=[NoDuplicates(lakehouse.session, table, ("unit",))]
    )

    with pytest.raises(AuditFailed, match=r"Some keys \(unit\) of t\.doubled are duplicated: \('a',\)"):
        asyncio.run(lander.land(taken(lakehouse, table, "b")))
    assert lakehouse.units_in(table) == {"a": ROWS}


def test_a_property_that_changes_after_staging_costs_no_second_staging(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("property")

    def change(staged: Staged[Any]) -> Staged[Any]:
        lakehouse.session.sql("ALTER TABLE lake.t.property SET TBLPROPERTIES ('somebody' = 'was here')")
        return staged

    for unit, stager in (("a", lakehouse.arrow_stager(table)), ("b", lakehouse.merge_stager(table))):
        looking = Looking(stager, change)
        lakehouse.land(table, unit, stager=looking)
        # A merge needs a snapshot to begin at; the table had one by then.
        assert looking.stagings == 1
    assert lakehouse.units_in(table) == {"a": ROWS, "b": 1}


def test_rows_are_staged_again_where_the_partitioning_has_changed_or_main_has_moved(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("restaged")
    meanwhile: Iterator[Callable[[], object]] = iter(
        [
            lambda: lakehouse.session.sql("ALTER TABLE lake.t.restaged ADD PARTITION FIELD bucket(3, number)"),
            lambda: lakehouse.session.sql("INSERT INTO lake.t.restaged VALUES ('other', 1)"),
        ]
    )

    def change(staged: Staged[Any]) -> Staged[Any]:
        if (step := next(meanwhile, None)) is not None:
            step()
        return staged

    looking = Looking(lakehouse.arrow_stager(table), change)
    lakehouse.land(table, "a", stager=looking)

    assert looking.stagings == 2, "for the partitioning; where only main has moved, files are good"
    assert lakehouse.units_in(table) == {"a": ROWS, "other": 1}
    partitions = lakehouse.session.sql("SELECT spec_id FROM lake.t.restaged.files").collect()
    assert {row.spec_id for row in partitions} == {1}


def test_a_task_that_fails_is_tried_again_and_its_rows_are_there_once(lakehouse: Lakehouse, tmp_path: Path) -> None:
    table = lakehouse.create("tried_again")
    marks = str(tmp_path)

    def read(remainder: UnitRemainder) -> Iterable[pa.RecordBatch]:
        yield from rows_of(remainder)
        mark = Path(marks) / remainder.unit.id
        if not mark.exists():
            mark.touch()
            raise ConnectionResetError("the first time it is always like this")

    lakehouse.land(table, "a", "b", stager=lakehouse.arrow_stager(table, read=read))

    assert lakehouse.units_in(table) == dict.fromkeys("ab", ROWS)
    assert len(list(tmp_path.iterdir())) == 2, "both tasks have failed"


def test_a_frame_whose_task_fails_is_tried_again_and_its_rows_are_there_once(
    lakehouse: Lakehouse, tmp_path: Path
) -> None:
    table = lakehouse.create("frame_again")
    mark = str(tmp_path / "failed")

    def rows(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays(
                [batch.column("id").cast(pa.string()), batch.column("id")], ["unit", "number"]
            )
        if not Path(mark).exists():
            Path(mark).touch()
            raise ConnectionResetError("once")

    def frame(*_: object) -> DataFrame:
        return lakehouse.session.range(0, 100, 1, 3).mapInArrow(rows, "unit string, number bigint")

    stager = FrameStager(session=lakehouse.session, table=table, ids=RandomIds(), frame=frame)
    landing = lakehouse.land(table, "a", stager=stager)

    assert landing is not None
    assert landing.counts["rows"] == 100
    assert sorted(table.load().scan().to_arrow()["number"].to_pylist()) == list(range(100))


def nothing_published(lakehouse: Lakehouse, table: IcebergTable, stager: Any, error: type[Exception], says: str) -> str:
    units = taken(lakehouse, table, "a", "b")
    with pytest.raises(error, match=says) as failed:
        asyncio.run(lakehouse.lander(table, stager).land(units))
    assert table.load().current_snapshot() is None
    assert asyncio.run(fence(table, lakehouse.progress(), lakehouse.ledger)).last_landing is None
    return str(failed.value)


def test_a_reader_that_always_fails_is_one_sentence(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("always_fails")

    def read(remainder: UnitRemainder) -> Iterable[pa.RecordBatch]:
        yield from rows_of(remainder)
        raise ValueError(f"no such thing as {remainder.unit.id}")

    said = nothing_published(
        lakehouse,
        table,
        lakehouse.arrow_stager(table, read=read),
        StagingFailed,
        r"The tasks that write rows for t\.always_fails failed: ValueError: no such thing as [ab]\. Nothing was publ",
    )
    assert "\n" not in said


def test_a_value_that_the_table_cannot_hold_is_one_sentence_at_the_first_try(
    lakehouse: Lakehouse, tmp_path: Path
) -> None:
    table = lakehouse.create("refused", "unit string, number int")
    marks = str(tmp_path)

    def read(remainder: UnitRemainder) -> Iterable[pa.RecordBatch]:
        (Path(marks) / RandomIds().uuid()).touch()
        yield pa.RecordBatch.from_pydict({"unit": [remainder.unit.id], "number": pa.array([2**40])})

    said = nothing_published(
        lakehouse,
        table,
        lakehouse.arrow_stager(table, read=read),
        RowsRejected,
        r"Table t\.refused: Column 'number' has a value",
    )
    assert "\n" not in said
    assert len(list(tmp_path.iterdir())) == 2, "each unit was read once: trying again would not help"

    def frame(*_: object) -> DataFrame:
        return lakehouse.session.sql("SELECT 'a' AS unit, 1.5D AS number")

    stager = FrameStager(session=lakehouse.session, table=table, ids=RandomIds(), frame=frame)
    nothing_published(lakehouse, table, stager, RowsRejected, "Column 'number' has values of type double")


def test_a_frame_that_cannot_be_read_is_one_sentence(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("unreadable")

    def frame(*_: object) -> DataFrame:
        return lakehouse.session.table("lake.t.no_such_table")

    stager = FrameStager(session=lakehouse.session, table=table, ids=RandomIds(), frame=frame)
    nothing_published(lakehouse, table, stager, StagingFailed, "no_such_table")


def test_shares_with_nothing_left_are_settled_without_a_row(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("nothing_left")

    landing = lakehouse.land(table, "a", stager=lakehouse.arrow_stager(table, read=nothing))

    assert landing is not None
    assert (landing.counts["rows"], landing.counts["files"]) == (0, 0)
    assert taken(lakehouse, table, "a") == []
    assert lakehouse.session.table("lake.t.nothing_left").count() == 0


def nothing(_: UnitRemainder) -> Iterable[pa.RecordBatch]:
    return ()


def test_a_session_that_merges_keeps_no_property_of_the_landing(lakehouse: Lakehouse) -> None:
    table = lakehouse.create("properties")
    stager = lakehouse.merge_stager(table)
    session: SparkSession = stager.session
    lakehouse.land(table, "a", stager=stager)

    session.sql("INSERT INTO lake.t.properties VALUES ('somebody', 1)")

    assert "lakehead.token" not in summary_of(table)


@pytest.mark.parametrize(("before", "during"), [(None, MERGE_THRESHOLD), ("1MB", "1MB")])
def test_a_merge_hashes_what_is_few_unless_the_session_says_otherwise(
    lakehouse: Lakehouse, before: str | None, during: str
) -> None:
    found = []

    def merge(session: SparkSession, target: str, remainders: Sequence[UnitRemainder]) -> None:
        found.append(session.conf.get(HASH_JOIN_THRESHOLD))
        unit_merge(session, target, remainders)

    table = lakehouse.create(f"hashed_{before}")
    stager = replace(lakehouse.merge_stager(table), merge=merge)
    if before:
        stager.session.conf.set(HASH_JOIN_THRESHOLD, before)

    lakehouse.land(table, "a", stager=stager)

    assert set(found) == {during}
    assert stager.session.conf.get(HASH_JOIN_THRESHOLD) == (before or SPARK_DEFAULT)
