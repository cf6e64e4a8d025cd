"""Landings whose process is really killed, before and after everything that lasts."""

import asyncio
from pathlib import Path

import pytest

from lakehead.lake.iceberg_table import IcebergTable
from tests.chaos.landing_child import (
    OVER,
    Order,
    Place,
    assert_landed_once,
    assert_nothing_is_left,
    carry_out,
    make_table,
    workers,
)
from tests.lakehouse import ROWS, Lakehouse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each test goes through all moments

MOST_STEPS = 100
STEPS = ("take", "plan", "stage", "audit", "publish", "commit", "metadata file", "record", "settle")
MOMENTS = {f"{side} {step}" for side in ("before", "after") for step in STEPS}


def test_a_lander_killed_at_any_step_is_repaired_by_the_next_run(tmp_path: Path) -> None:
    place = Place(tmp_path)
    lakehouse = place.open()
    table = make_table(lakehouse, place)
    landed = ["earlier"]
    carry_out(lakehouse, table, Order(("earlier",), watermark=0))
    moments: list[str | None] = []
    while not moments or moments[-1] is not None:
        moments.append(died_and_repaired(lakehouse, table, place, len(moments) + 1, landed))
    assert_nothing_is_left(table)
    assert lakehouse.units_in(table) == dict.fromkeys(landed, ROWS)
    lakehouse.close()

    assert set(moments) >= MOMENTS, moments


def test_a_lander_killed_at_any_step_of_a_tables_first_landing_is_repaired_by_the_next_run(tmp_path: Path) -> None:
    moments: list[str | None] = []
    while not moments or moments[-1] is not None:
        step = len(moments) + 1
        place = Place(tmp_path / str(step))
        lakehouse = place.open()
        table = make_table(lakehouse, place)
        moments.append(died_and_repaired(lakehouse, table, place, step, []))
        assert_nothing_is_left(table)
        assert sum(lakehouse.units_in(table).values()) == 3 * ROWS
        lakehouse.close()

    assert set(moments) >= MOMENTS, moments


def died_and_repaired(
    lakehouse: Lakehouse, table: IcebergTable, place: Place, step: int, landed: list[str]
) -> str | None:
    """Where a lander died at its so manieth step, having seen that the next run repairs everything."""
    assert step < MOST_STEPS, "it never comes to an end"
    a, b, c = (f"{step} {letter}" for letter in "abc")
    with workers(place) as [doomed]:
        moment = doomed.death(Order((a, b), owner="doomed", lease=OVER, watermark=2 * step, die_at=step))

    carry_out(lakehouse, table, Order((b, c, a), owner="successor", watermark=2 * step + 1))
    landed += [a, b, c]
    assert_landed_once(lakehouse, table, landed, watermark=2 * step + 1)
    head = asyncio.run(table.head())
    assert carry_out(lakehouse, table, Order(tuple(landed), owner="another")) is None
    assert asyncio.run(table.head()) == head
    return moment
