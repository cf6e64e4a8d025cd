"""The lease on a unit: a landing that has lost it does not take the unit for landed."""

from collections.abc import Iterator
from datetime import date
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.lake.iceberg_landing import IcebergLanding
from lakehead.lake.landing import Head, Unit
from lakehead.lake.ports import Overtaken
from lakehead.lake.run_context import RunContext
from lakehead.lake.state_progress import StateProgress
from lakehead.state.opening import open_state
from lakehead.state.state import State
from tests.support.folders import folder_in_memory

UNIT = Unit("u")


class EmptyTable:
    """A table without snapshots."""

    uuid = "table"
    name = "raw.orders"

    async def head(self) -> Head:
        return Head(None, None)


@pytest.fixture
def state() -> Iterator[State]:
    with folder_in_memory() as folder, open_state(f"sqlite:///{folder}/s.sqlite", SystemClock(), RandomIds()) as made:
        yield made


def landing_of(state: State) -> IcebergLanding:
    nobody = cast(Any, None)
    run = RunContext(
        pipeline="shop",
        run="run",
        load_date=date(2026, 1, 1),
        session=MagicMock(),
        state=state,
        owner="one",
        clock=SystemClock(),
        ids=RandomIds(),
        random=system_random(),
        waiting=nobody,
        pause=nobody,
    )
    return IcebergLanding(run=run, catalog=nobody, ledger=nobody)


def test_a_unit_whose_lease_another_run_has_taken_over_is_not_taken_for_landed(state: State) -> None:
    table, nobody = cast(Any, EmptyTable()), cast(Any, None)

    with landing_of(state).lease(table, UNIT) as lease:
        assert lease is not None
        state.shards.release(table.uuid, [UNIT.id], owner="one")  # it has expired while this machine slept
        assert StateProgress(state=state, owner="two").take(table.uuid, [UNIT]) == [UNIT]
        with pytest.raises(Overtaken, match="taken over"):
            lease.land(nobody)
