"""Somebody else's removal of orphan files takes staged files, which are then staged again and never published."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakehead.clock import SystemClock
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Unit
from lakehead.lake.ports import Staged
from lakehead.lake.protocol import VERIFY_STAGED_AFTER
from lakehead.lake.staged_rows import NewFiles
from lakehead.lake.stagers import filesystem_of
from tests.chaos.landing_child import HereStager, Order, Place, assert_landed_once, lander_of, make_table
from tests.faults.failpoints import Once, with_failpoints
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed
from tests.support.costs import Mechanism, add

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

HOUR_NS = 3_600 * 10**9


class Jumping(SystemClock):
    """The machine's clock, which a test sets forward."""

    hours = 0.0

    def now_ns(self) -> int:
        return super().now_ns() + int(self.hours * HOUR_NS)


@dataclass(frozen=True, kw_only=True)
class Noting(HereStager):
    """Keeps what it staged, and counts the looks at it."""

    staged: list[Staged[NewFiles]]
    looks: list[bool]

    async def stage(self, *args: Any, **kwargs: Any) -> Staged[NewFiles]:
        staged = await super().stage(*args, **kwargs)
        self.staged.append(staged)
        return staged

    async def is_still_stored(self, staged: Staged[NewFiles]) -> bool:
        self.looks.append(await super().is_still_stored(staged))
        return self.looks[-1]


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        return Place(tmp_path)
    seaweed: Seaweed = request.getfixturevalue("seaweed")
    warehouse = f"s3://lake/{tmp_path.name}"
    return Place(tmp_path, "t", "s3", {"s3": seaweed.sqlite_catalog(tmp_path / "s3.sqlite", warehouse=warehouse)})


@pytest.fixture
def lakehouse(place: Place) -> Iterator[Lakehouse]:
    opened = place.open()
    yield opened
    opened.close()


def land(
    lakehouse: Lakehouse, table: IcebergTable, clock: Jumping, happens: Callable[[Staged[NewFiles]], None]
) -> tuple[Noting, list[str]]:
    """Land a unit, and let something happen to what was staged first."""
    add(Mechanism.LANDINGS)
    stager, waits = Noting(table=table, staged=[], looks=[]), list[str]()
    made = replace(lander_of(lakehouse, table, Order(("a",))), stager=stager, clock=clock, waiting=waits.append)
    lander = with_failpoints(made, Once("after stage", lambda: happens(stager.staged[0])))
    taken = lakehouse.progress().take(table.uuid, [Unit("a")])
    assert asyncio.run(lander.land(taken)) is not None
    assert_landed_once(lakehouse, table, ["a"])
    return stager, waits


def test_staged_files_that_are_gone_after_hours_are_staged_again(lakehouse: Lakehouse, place: Place) -> None:
    table, clock = make_table(lakehouse, place), Jumping()

    def clean_up(staged: Staged[NewFiles]) -> None:
        clock.hours = VERIFY_STAGED_AFTER / timedelta(hours=1)
        for file in staged.rows.files:
            filesystem_of(table.load(), file.uri)[0].delete_file(file.path)

    stager, waits = land(lakehouse, table, clock, clean_up)

    assert stager.looks == [False]
    assert len(stager.staged) == 2
    assert waits == ["files staged for the table were removed by another tool: staging them again"]
    published = {task.file.file_path for task in table.load().scan().plan_files()}
    assert published == {file.uri for file in stager.staged[1].rows.files}


def test_staged_files_that_are_still_there_after_hours_are_published(lakehouse: Lakehouse, place: Place) -> None:
    table, clock = make_table(lakehouse, place), Jumping()

    def grow_old(_: Staged[NewFiles]) -> None:
        clock.hours = 2 * VERIFY_STAGED_AFTER / timedelta(hours=1)

    stager, waits = land(lakehouse, table, clock, grow_old)

    assert (stager.looks, len(stager.staged), waits) == ([True], 1, [])


def test_young_staged_files_are_not_looked_at(tmp_path: Path) -> None:
    lakehouse = Place(tmp_path).open()
    table = make_table(lakehouse, Place(tmp_path))

    stager, _ = land(lakehouse, table, Jumping(), lambda _: None)

    assert stager.looks == []
    lakehouse.close()
