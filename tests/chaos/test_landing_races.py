"""Landers of the same units at once, in processes of their own: whatever leases do, main moves by compare-and-set."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from lakehead.lake.iceberg_table import IcebergTable
from lakehead.spark.settings import Properties
from tests.chaos.landing_child import Order, Place, Worker, assert_landed_once, make_table, workers
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed
from tests.support.costs import Mechanism, add
from tests.support.effort import effort

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROUNDS = effort(6, soak=20)
CROWD = 8
TURNS = effort(2, soak=4)
BEFORE_PUBLISH = "before publish"
REST = "rest"


@pytest.fixture(params=["embedded", REST])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "embedded":
        return Place(tmp_path, "raced")
    seaweed: Seaweed = request.getfixturevalue("seaweed")
    catalogs: Mapping[str, Properties] = {REST: seaweed.rest_catalog()}
    return Place(tmp_path, f"raced_{request.node.originalname[-20:]}", REST, catalogs)


@pytest.fixture
def lakehouse(place: Place) -> Iterator[Lakehouse]:
    opened = place.open()
    yield opened
    opened.close()


@pytest.fixture
def table(lakehouse: Lakehouse, place: Place) -> IcebergTable:
    return make_table(lakehouse, place)


def test_of_two_landers_that_take_the_same_units_each_unit_is_landed_by_one(
    lakehouse: Lakehouse, table: IcebergTable, place: Place
) -> None:
    with workers(place, 2) as pair:
        for number in range(ROUNDS):
            units = tuple(f"{number}-{letter}" for letter in "abc")
            ended = together(pair, [Order(units, owner="one"), Order(units[::-1], owner="two")])
            assert ended == [None, None]

    assert_landed_once(lakehouse, table, [f"{number}-{letter}" for number in range(ROUNDS) for letter in "abc"])


def test_two_landers_that_both_staged_the_same_units_publish_each_unit_once(
    lakehouse: Lakehouse, table: IcebergTable, place: Place
) -> None:
    with workers(place, 2) as pair:
        for number in range(ROUNDS):
            first = (f"{number}-a", f"{number}-b")
            second = first if number % 2 else (f"{number}-b", f"{number}-c")
            # The same owner: leases cannot tell them apart, and both plan and stage all that they ask for.
            orders = [Order(units, hold_at=BEFORE_PUBLISH) for units in (first, second)]
            for worker, order in zip(pair, orders, strict=True):
                worker.hold(order)
            ended = released(pair)
            assert ended == [None, None]

    units = [f"{number}-{letter}" for number in range(ROUNDS) for letter in ("ab" if number % 2 else "abc")]
    assert_landed_once(lakehouse, table, units)


def test_eight_landers_on_one_table_all_come_through(tmp_path: Path) -> None:
    place = Place(tmp_path, "crowded")
    lakehouse = place.open()
    table = make_table(lakehouse, place)
    with workers(place, CROWD) as crowd:
        orders = {
            worker: [Order((f"{number}-{turn}",), owner=f"owner-{number}") for turn in range(TURNS)]
            for number, worker in enumerate(crowd)
        }
        while any(orders.values()):
            given = sum(map(len, orders.values()))
            start(orders)
            for worker, theirs in orders.items():
                ended = [(order, worker.done()) for order in theirs]
                # The one error that bounded tries may end with. What it leaves is landed by the next try.
                assert {done.error for _, done in ended} <= {None, "Unavailable"}
                assert all(done.landing is not None for _, done in ended if done.error is None)
                orders[worker] = [order for order, done in ended if done.error is not None]
            # A compare-and-set is only lost to one that was won, so each time somebody comes through.
            assert sum(map(len, orders.values())) < given, "landers starve each other"

    add(Mechanism.LANDINGS, CROWD * TURNS)
    assert_landed_once(lakehouse, table, [f"{number}-{turn}" for number in range(CROWD) for turn in range(TURNS)])
    lakehouse.close()


def start(orders: Mapping[Worker, Sequence[Order]]) -> None:
    """Give everybody their orders when all are ready to go."""
    for worker in orders:
        worker.ready()
    for worker, theirs in orders.items():
        for order in theirs:
            worker.tell(order)


def together(pair: list[Worker], orders: list[Order]) -> list[str | None]:
    start({worker: [order] for worker, order in zip(pair, orders, strict=True)})
    return [worker.done().error for worker in pair]


def released(pair: list[Worker]) -> list[str | None]:
    for worker in pair:
        worker.tell("go on")
    return [worker.done().error for worker in pair]
