"""A whole table whose writing ends at any durable step: readers see the old rows or the new, and a rerun ends it."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from lakehead.lake import whole_table
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.replace_commit import ReplaceFiles
from lakehead.lake.stagers import staged_name
from lakehead.lake.state_progress import StateProgress
from lakehead.lake.whole_table import WholeTableStager
from tests.integration.merge_support import LONG, NULLS, Shape
from tests.integration.test_merge_lane_crashes import Killed, ending, landings
from tests.integration.test_whole_table import Wholes, raw_of, small
from tests.lakehouse import Lakehouse
from tests.support.spark import shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

POINTS: dict[str, tuple[Any, str, bool, bool]] = {
    # what it does, whether it is done before the process ends, and whether readers see the new rows by then
    "before tasks": (WholeTableStager, "_results", False, False),
    "after tasks": (WholeTableStager, "_results", True, False),
    "after staging": (WholeTableStager, "stage", True, False),
    "before the commit": (IcebergTable, "publish", False, False),
    "before the commit's manifests": (ReplaceFiles, "_manifests", False, False),
    "after the commit's manifests": (ReplaceFiles, "_manifests", True, False),
    "after the commit": (IcebergTable, "publish", True, True),
    "before the ledger": (StoreLedger, "record", False, True),
    "before the state": (StateProgress, "settle", False, True),
    "after the state": (StateProgress, "settle", True, True),
}


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("crashes")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


@pytest.mark.parametrize("shape", [LONG, pytest.param(NULLS, marks=pytest.mark.soak)], ids=lambda shape: shape.name)
def test_a_whole_table_that_ends_at_any_step_is_finished_by_the_next_run(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, shape: Shape
) -> None:
    small(monkeypatch)
    there = Wholes(lakehouse, shape, Random(7), f"crashes_{shape.name}")
    raw_of(there, 1, 10)
    there.write_both("start")
    for moment, (owner, name, is_done, is_new) in POINTS.items():
        there.land(there.rows(6))
        before = there.by_spark_read(there.lane)
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, ending(getattr(owner, name), is_done=is_done))
            with pytest.raises(Killed):
                there.land_by(there.by_tasks(), moment)
        there.land_by(there.by_insert(there.merge), moment)
        expected = there.by_spark_read(there.merge)
        assert before != expected
        assert there.by_spark_read(there.lane) == (expected if is_new else before), moment

        there.lane = lakehouse.table(there.lane.name.removeprefix("t."))
        there.land_by(there.by_tasks(), moment)

        there.check()
    assert landings(there) == len(POINTS) + 1


def test_what_a_crash_left_is_not_written_to_again(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of an attempt that ended have names that no later attempt has."""
    there = Wholes(lakehouse, LONG, Random(8), "left")
    raw_of(there, 2, 10)
    names = list[str]()

    def kept(token: str, ids: Any) -> str:
        names.append(staged_name(token, ids))
        return names[-1]

    monkeypatch.setattr(whole_table, "staged_name", kept)
    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "publish", ending(IcebergTable.publish, is_done=False))
        with pytest.raises(Killed):
            there.land_by(there.by_tasks(), "one")
    there.land_by(there.by_tasks(), "one")
    there.land_by(there.by_insert(there.merge), "one")

    assert len(set(names)) == 2
    there.check()
