"""Landers that are stopped for long, while others land or sweep, and then go on as if nothing had been."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakehead.lake.commits import set_main
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Head
from lakehead.lake.protocol import fence
from tests.chaos.landing_child import (
    OVER,
    Done,
    Order,
    Place,
    Worker,
    assert_landed_once,
    carry_out,
    make_table,
    sweep_all,
    workers,
)
from tests.lakehouse import Lakehouse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each test goes through all moments

STEPS = ("take", "plan", "stage", "audit", "publish", "commit", "metadata file", "record", "settle")
MOMENTS = [f"{side} {step}" for step in STEPS for side in ("before", "after")]
UNPUBLISHED = MOMENTS[: MOMENTS.index("after metadata file") + 1]


@dataclass(frozen=True)
class Scene:
    lakehouse: Lakehouse
    table: IcebergTable
    place: Place

    def head(self) -> Head:
        return asyncio.run(self.table.head())

    def assert_landed_once(self, units: list[str]) -> None:
        # A sweep's snapshot is settled by whoever lands next: here nobody does.
        asyncio.run(fence(self.table, self.lakehouse.progress(), self.lakehouse.ledger))
        assert_landed_once(self.lakehouse, self.table, units)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    place = Place(tmp_path)
    lakehouse = place.open()
    yield Scene(lakehouse, make_table(lakehouse, place), place)
    lakehouse.close()


def stopped(zombie: Worker, order: Order, meanwhile: Callable[[], object]) -> Done:
    """How an order ends whose process is stopped where it is held, while others do something."""
    zombie.hold(order)
    zombie.signal(signal.SIGSTOP)
    meanwhile()
    zombie.tell("go on")
    zombie.signal(signal.SIGCONT)
    ended = zombie.done()
    assert ended.error is None
    return ended


def test_a_lander_stopped_anywhere_publishes_nothing_after_its_successor_has_landed(scene: Scene) -> None:
    def check(landed: list[str]) -> None:
        assert_landed_once(scene.lakehouse, scene.table, landed)

    resume_after_a_successor(scene, lambda: None, check)


def test_a_lander_stopped_anywhere_publishes_nothing_after_its_successor_has_landed_and_a_sweep_has_run(
    scene: Scene,
) -> None:
    resume_after_a_successor(scene, lambda: sweep_all(scene.table), scene.assert_landed_once)


def resume_after_a_successor(scene: Scene, then: Callable[[], object], check: Callable[[list[str]], object]) -> None:
    landed: list[str] = []
    with workers(scene.place) as [zombie]:
        for moment in MOMENTS:
            units = (f"{moment} a", f"{moment} b")
            heads: list[Head] = []

            def succeed(units: tuple[str, ...] = units, heads: list[Head] = heads) -> None:
                carry_out(scene.lakehouse, scene.table, Order(units, owner="successor"))
                # One more: whoever now settles what it had seen would move the pointer back.
                carry_out(scene.lakehouse, scene.table, Order((f"{units[0]} more",), owner="successor"))
                then()
                heads.append(scene.head())

            stopped(zombie, Order(units, owner="zombie", lease=OVER, hold_at=moment), succeed)
            assert heads == [scene.head()], f"it published after it was stopped {moment}"
            landed += [*units, f"{units[0]} more"]
            check(landed)


def test_a_lander_whose_files_are_swept_while_it_is_stopped_writes_them_again(scene: Scene) -> None:
    landed = ["earlier"]
    carry_out(scene.lakehouse, scene.table, Order(("earlier",)))
    with workers(scene.place) as [zombie]:
        for moment in MOMENTS:
            order = Order((moment,), owner="zombie", lease=OVER, hold_at=moment)
            ended = stopped(zombie, order, lambda: sweep_all(scene.table))
            assert ended.landing is not None
            landed.append(moment)
            scene.assert_landed_once(landed)


def test_a_rollback_to_before_a_sweep_does_not_bring_back_the_right_to_publish_what_was_swept(scene: Scene) -> None:
    def sweep_and_roll_back() -> None:
        before = scene.head().snapshot
        assert before is not None
        sweep_all(scene.table)
        back = set_main(before)
        scene.table.commit(scene.head(), lambda _: ((back,), ()))

    landed = ["earlier"]
    carry_out(scene.lakehouse, scene.table, Order(("earlier",)))
    with workers(scene.place) as [zombie]:
        for moment in UNPUBLISHED:
            order = Order((moment,), owner="zombie", lease=OVER, hold_at=moment)
            ended = stopped(zombie, order, sweep_and_roll_back)
            assert ended.landing is not None
            landed.append(moment)
            scene.assert_landed_once(landed)
