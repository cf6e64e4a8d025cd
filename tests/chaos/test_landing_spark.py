"""Landings by real Spark whose process is killed, and merges whose branch is swept meanwhile."""

import asyncio
import os
import select
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehead.errors import Unavailable
from lakehead.lake.commits import set_main
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Landing, Unit, UnitRemainder
from lakehead.lake.merge import BRANCH, MergeStager
from lakehead.lake.ports import AuditFailed
from lakehead.lake.stagers import StagingFailed
from lakehead.retry import Backoff
from tests.chaos.landing_child import (
    OVER,
    Order,
    Own,
    Place,
    PublishMode,
    assert_landed_once,
    assert_nothing_is_left,
    carry_out,
    lander_of,
    make_table,
    sweep_all,
    workers,
)
from tests.faults.failpoints import Once, Reach, with_failpoints
from tests.lakehouse import ROWS, SCHEMA, Lakehouse
from tests.support.spark import Borrowed, shared_session

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
]

JVM_SECONDS = 60
# One for each thing that may be left. What comes before and after them is the same for every stager.
MOMENTS = {
    PublishMode.ARROW: ("after stage", "before publish", "after publish"),
    PublishMode.MERGE: ("after create", "after run", "after audited", "before publish", "after publish"),
}
EARLIER = Order(("earlier",))
SUCCESSOR = Order(("a",), owner="successor")
SLOW = Order(("a",), owner="slow", lease=OVER, way=PublishMode.MERGE)
ROWS_OF = {PublishMode.ARROW: ROWS, PublishMode.MERGE: 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def session(folder: Path) -> SparkSession:
    return shared_session(Lakehouse.settings(folder))


@pytest.fixture
def lakehouse(session: SparkSession, folder: Path) -> Iterator[Lakehouse]:
    opened = Place(folder).open(session)
    yield opened
    opened.close()


def branches_of(table: IcebergTable) -> list[str]:
    return [name for name in table.load().metadata.refs if name.startswith(BRANCH)]


@pytest.mark.parametrize("way", MOMENTS, ids=["appends", "merges"])
def test_a_spark_lander_killed_at_any_step_is_repaired_by_the_next_run(
    way: PublishMode, lakehouse: Lakehouse, folder: Path
) -> None:
    place = Place(folder, way.name.lower())
    table = make_table(lakehouse, place)
    landed, left = ["earlier"], 0
    carry_out(lakehouse, table, Order(("earlier",), way=way))
    for moment in MOMENTS[way]:
        a, b, c = (f"{moment} {letter}" for letter in "abc")
        with workers(place, spark=Borrowed.of(lakehouse.session)) as [doomed]:
            order = Order((a, b), owner="doomed", lease=OVER, way=way, die_at=moment)
            assert doomed.death(order) == moment

        carry_out(lakehouse, table, Order((b, c, a), owner="successor", way=way))
        landed += [a, b, c]
        assert_landed_once(lakehouse, table, landed, rows=ROWS_OF[way])
        assert merged_once(table) or way is not PublishMode.MERGE
        # What is published has no branch any more; only a merge that died before that leaves one.
        left += way is PublishMode.MERGE and moment != "after publish"
        assert len(branches_of(table)) == left
    assert_nothing_is_left(table)
    assert sorted(lakehouse.units_in(table)) == sorted(landed)


def merged_once(table: IcebergTable) -> bool:
    """A merge counts in the row's number how often its unit came."""
    return set(table.load().scan().to_arrow()["number"].to_pylist()) == {1}


def test_a_killed_process_takes_its_jvm_along(lakehouse: Lakehouse, folder: Path) -> None:
    place = Place(folder, "own")
    table = make_table(lakehouse, place)
    with workers(place, spark=Own.JVM) as [doomed]:
        jvm = os.pidfd_open(doomed.jvm())
        try:
            order = Order(("a", "b"), owner="doomed", lease=OVER, way=PublishMode.ARROW, die_at="after stage")
            assert doomed.death(order) == "after stage"
            assert select.select([jvm], [], [], JVM_SECONDS)[0], "its JVM lives on"
        finally:
            os.close(jvm)

    carry_out(lakehouse, table, Order(("a", "b"), owner="successor", way=PublishMode.ARROW))
    assert_landed_once(lakehouse, table, ["a", "b"])


def test_a_merge_that_another_landing_has_overtaken_is_made_again_with_its_rows(
    lakehouse: Lakehouse, folder: Path
) -> None:
    table = make_table(lakehouse, Place(folder, "overtaken"))
    carry_out(lakehouse, table, EARLIER)
    other = Order(("other",), owner="other")
    overtaken = Once("before publish", lambda: in_a_thread(lambda: carry_out(lakehouse, table, other)))
    carry_out(lakehouse, table, Order(("merged",), way=PublishMode.MERGE), overtaken)

    assert overtaken.came
    assert lakehouse.units_in(table) == {"earlier": ROWS, "other": ROWS, "merged": 1}


def test_a_merge_that_others_overtake_each_time_gives_up_after_a_few_tries_and_leaves_no_branch(
    lakehouse: Lakehouse, folder: Path
) -> None:
    table = make_table(lakehouse, Place(folder, "starved"))
    carry_out(lakehouse, table, EARLIER)
    merges, waits = count(), list[str]()

    def reach(moment: str) -> None:
        if moment == "before publish":
            other = Order((f"other-{next(merges)}",), owner="other")
            in_a_thread(lambda: carry_out(lakehouse, table, other))

    lander = lander_of(lakehouse, table, Order(("merged",), way=PublishMode.MERGE))
    few = replace(lander, backoff=Backoff(attempts=3, first_seconds=0.01), waiting=waits.append)
    taken = lakehouse.progress().take(table.uuid, [Unit("merged")])
    with pytest.raises(Unavailable, match=r"Other writers committed to table .* during each of 3 attempts"):
        asyncio.run(with_failpoints(few, reach).land(taken))

    assert next(merges) == 3
    again = "another writer has committed to the table: staging again"
    assert waits == [f"{again}, attempt 2 of 3", f"{again}, attempt 3 of 3"]
    assert branches_of(table) == []
    assert lakehouse.units_in(table) == {"earlier": ROWS, **{f"other-{number}": ROWS for number in range(3)}}
    asyncio.run(few.land(taken))
    assert lakehouse.units_in(table)["merged"] == 1


def test_a_merge_that_fails_leaves_no_branch(lakehouse: Lakehouse, folder: Path) -> None:
    table = make_table(lakehouse, Place(folder, "failing"))
    carry_out(lakehouse, table, EARLIER)
    seen: list[str] = []

    def fail(session: SparkSession, target: str, _: Sequence[UnitRemainder]) -> None:
        seen.extend(branches_of(table))
        session.sql(f"INSERT INTO {target} SELECT raise_error('on purpose'), 1").collect()

    with pytest.raises(StagingFailed, match="on purpose"):
        merge_by(fail, lakehouse, table)

    assert len(seen) == 1
    assert branches_of(table) == []


def test_a_branch_that_cannot_be_removed_is_told_and_goes_with_the_next_sweep(
    lakehouse: Lakehouse, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, waits = make_table(lakehouse, Place(folder, "stuck")), list[str]()
    carry_out(lakehouse, table, EARLIER)

    def lost(*_: object) -> None:
        raise ConnectionResetError("gone")

    def fail(session: SparkSession, target: str, _: Sequence[UnitRemainder]) -> None:
        monkeypatch.setattr(table.catalog, "commit_table", lost)
        session.sql(f"INSERT INTO {target} SELECT raise_error('on purpose'), 1").collect()

    with pytest.raises(StagingFailed, match="on purpose"):
        merge_by(fail, lakehouse, table, waits)
    monkeypatch.undo()

    [branch] = branches_of(table)
    [told] = waits
    assert told.startswith(f"the branch {branch} could not be removed (")
    assert told.endswith(f"to remove it later: lakehead maintain sweep {table.name} --config FILE")
    assert_nothing_is_left(table)


def merge_by(
    merge: Callable[[SparkSession, str, Sequence[UnitRemainder]], None],
    lakehouse: Lakehouse,
    table: IcebergTable,
    waits: list[str] | None = None,
) -> Landing | None:
    """Land a unit by statements of the test's own."""
    lander = lander_of(lakehouse, table, SLOW)
    told = [] if waits is None else waits
    stager = replace(cast(MergeStager, lander.stager), merge=merge, waiting=told.append)
    taken = lakehouse.progress(SLOW.owner).take(table.uuid, [Unit(unit) for unit in SLOW.units])
    staged = asyncio.run(replace(lander, stager=stager).land(taken))
    return staged.landing if staged else None


def test_a_merge_whose_branch_was_swept_before_it_began_fails_and_publishes_nothing(
    lakehouse: Lakehouse, folder: Path
) -> None:
    table = make_table(lakehouse, Place(folder, "swept"))
    carry_out(lakehouse, table, EARLIER)

    def others() -> None:
        sweep_all(table)
        carry_out(lakehouse, table, SUCCESSOR)

    swept = Once("before run", lambda: in_a_thread(others))
    with pytest.raises(StagingFailed, match="does not exist"):
        carry_out(lakehouse, table, SLOW, swept)

    assert swept.came
    assert_landed_once(lakehouse, table, ["earlier", "a"])
    assert carry_out(lakehouse, table, SLOW) is None
    assert_landed_once(lakehouse, table, ["earlier", "a"])


def test_a_merge_whose_branch_was_swept_while_it_ran_does_not_publish_the_branch_that_it_made_again(
    lakehouse: Lakehouse, folder: Path
) -> None:
    table = make_table(lakehouse, Place(folder, "swept_while_it_ran"))
    carry_out(lakehouse, table, EARLIER)
    slow = SlowAppend(folder / "swept_while_it_ran")
    made_again: list[str] = []
    reach = Once("after run", lambda: made_again.extend(branches_of(table)))
    with ThreadPoolExecutor(1) as thread:
        landing = thread.submit(carry_out_by, slow, lakehouse, table, reach)
        with slow.meanwhile():
            [branch] = branches_of(table)
            sweep_all(table)
            assert branches_of(table) == []
            carry_out(lakehouse, table, SUCCESSOR)
        with pytest.raises(AuditFailed, match="dropped it during the merge"):
            landing.result()

    assert made_again == [branch], "Iceberg does not make it again any more: is the audit still of use?"
    assert branches_of(table) == []
    assert_landed_once(lakehouse, table, ["earlier", "a"])
    assert_nothing_is_left(table)


def test_a_branch_that_was_made_again_is_not_published_even_if_main_was_rolled_back_to_where_it_was(
    lakehouse: Lakehouse, folder: Path
) -> None:
    table = make_table(lakehouse, Place(folder, "rolled_back"))
    carry_out(lakehouse, table, EARLIER)
    fenced = asyncio.run(table.head())
    assert fenced.snapshot is not None
    slow, back = SlowAppend(folder / "rolled_back"), set_main(fenced.snapshot)

    def roll_back() -> None:
        table.commit(asyncio.run(table.head()), lambda _: ((back,), ()))

    with ThreadPoolExecutor(1) as thread:
        reach = Once("after run", lambda: in_a_thread(roll_back))
        landing = thread.submit(carry_out_by, slow, lakehouse, table, reach)
        with slow.meanwhile():
            [branch] = branches_of(table)
            lakehouse.session.sql(f"ALTER TABLE lake.t.rolled_back DROP BRANCH `{branch}`")
            carry_out(lakehouse, table, SUCCESSOR)
        with pytest.raises(AuditFailed, match="dropped it during the merge"):
            landing.result()

    assert asyncio.run(table.head()) == fenced
    assert lakehouse.units_in(table) == {"earlier": ROWS}


class SlowAppend:
    """Statements that write ten rows of each unit, and that wait in the middle of it until a test says go."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._started, self._go = folder / "started", folder / "go"
        for pipe in (self._started, self._go):
            os.mkfifo(pipe)

    def __call__(self, session: SparkSession, target: str, remainders: Sequence[UnitRemainder]) -> None:
        started, go, units = str(self._started), str(self._go), [remainder.unit.id for remainder in remainders]

        def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for _ in batches:
                Path(started).write_text("started")
                Path(go).read_text()
                for unit in units:
                    yield pa.RecordBatch.from_pydict(
                        {"unit": [unit] * ROWS, "number": pa.array(range(ROWS), pa.int64())}
                    )

        session.range(1, numPartitions=1).mapInArrow(rows, SCHEMA).writeTo(target).append()

    @contextmanager
    def meanwhile(self) -> Iterator[None]:
        """What is done between the moment when rows are asked for and the moment when they come."""
        assert self._started.read_text() == "started"
        try:
            yield
        finally:
            self._go.write_text("go")


def carry_out_by(
    merge: SlowAppend, lakehouse: Lakehouse, table: IcebergTable, reach: Reach = lambda _: None
) -> Landing | None:
    lander = with_failpoints(lander_of(lakehouse, table, SLOW), reach)
    taken = lakehouse.progress(SLOW.owner).take(table.uuid, [Unit(unit) for unit in SLOW.units])
    stager = replace(cast(MergeStager, lander.stager), merge=merge)
    staged = asyncio.run(replace(lander, stager=stager).land(taken))
    return staged.landing if staged else None


def in_a_thread(action: Callable[[], object]) -> None:
    """Do it where no event loop runs yet."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(action).result()
