"""A merge in Arrow that ends at any of its durable steps: the next run finishes it, and no row is merged twice."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from lakehead.lake import merge_lane
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.merge_lane import LaneStager
from lakehead.lake.state_progress import StateProgress
from tests.integration.merge_support import LONG, Mirrors
from tests.lakehouse import Lakehouse
from tests.support.spark import shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Killed(BaseException):
    """The process ends here: nothing is cleaned up."""


POINTS: dict[str, tuple[Any, str, bool]] = {
    # what it does, and whether it is done before the process ends
    "before tasks": (LaneStager, "_results", False),
    "after tasks": (LaneStager, "_results", True),
    "before the commit's manifests": (merge_lane, "delete_file", False),
    "after staging": (LaneStager, "stage", True),
    "before the commit": (IcebergTable, "publish", False),
    "after the commit": (IcebergTable, "publish", True),
    "before the ledger": (StoreLedger, "record", False),
    "before the state": (StateProgress, "settle", False),
    "after the state": (StateProgress, "settle", True),
}


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    folder = tmp_path_factory.mktemp("crashes")
    settings = Lakehouse.settings(folder)
    lakehouse = Lakehouse(folder, shared_session(settings), settings.catalogs)
    yield lakehouse
    lakehouse.close()


def test_a_merge_that_ends_at_any_step_is_finished_by_the_next_run(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Mirrors(lakehouse, LONG, Random(7), "crashes")
    there.start([there.rows(1, keys=[key])[0] for key in range(60)])
    for owner, name, is_done in POINTS.values():
        there.land(there.rows(6))
        unit = f"{there.merged}..{there.slice}"
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, ending(getattr(owner, name), is_done=is_done))
            with pytest.raises(Killed):
                there.land_by(there.by_lane(), unit)
        there.lane = lakehouse.table(there.lane.name.removeprefix("t."))
        there.land_by(there.by_lane(), unit)
        there.merged = there.slice
    there.merged = 0
    there.land_by(there.by_spark(there.merge), "all")

    there.check()
    assert landings(there) == len(POINTS)


def landings(there: Mirrors) -> int:
    """How many snapshots of the mirror are landings."""
    snapshots = there.lane.load().metadata.snapshots
    return sum("lakehead.token" in (each.summary.additional_properties if each.summary else {}) for each in snapshots)


def ending(work: Any, *, is_done: bool) -> Any:
    """The same function, in which the process ends: before its work is done, or after."""

    def ends(*args: Any, **more: Any) -> Any:
        if is_done:
            work(*args, **more)
        raise Killed

    async def ends_later(*args: Any, **more: Any) -> Any:
        if is_done:
            await work(*args, **more)
        raise Killed

    return ends_later if work.__code__.co_flags & 0x80 else ends
