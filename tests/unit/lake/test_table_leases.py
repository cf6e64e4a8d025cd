"""Turns at a table: long work waits for its turn and has it to itself, and nobody waits for ever."""

import asyncio
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.errors import Unavailable
from lakehead.ids import RandomIds, system_random
from lakehead.lake.landing import BEGINNING, Head, Landing, Pointer, Unit, UnitRemainder
from lakehead.lake.ports import Staged
from lakehead.lake.protocol import Lander
from lakehead.lake.state_progress import StateProgress
from lakehead.lake.table_leases import KIND, StateTableLeases
from lakehead.retry import Backoff
from lakehead.state.opening import open_state
from lakehead.state.owners import owner_named
from lakehead.state.state import State

TABLE = "table"


def table_leases(state: State, owner: str) -> StateTableLeases:
    impatient = Backoff(attempts=3, first_seconds=0.001, cap_seconds=0.001)
    return StateTableLeases(state=state, owner=owner, clock=SystemClock(), random=system_random(), patience=impatient)


class Scene:
    """The smallest table, progress, ledger and stager: one unit that is landed once."""

    uuid = TABLE

    def __init__(self, state: State) -> None:
        self.state = state
        self.main: int | None = None
        self.holders: list[str | None] = []

    async def head(self) -> Head:
        return Head(self.main, None)

    async def pointer(self, _table: str) -> Pointer:
        return BEGINNING if self.main is None else Pointer(self.main, self.main)

    async def plan(self, _table: str, *, at: int | None, units: list[Unit]) -> list[UnitRemainder] | None:
        return [UnitRemainder(unit) for unit in units] if at is None else []

    async def stage(
        self, remainders: list[UnitRemainder], *, token: str, new_watermark: object, fence: object
    ) -> Staged[None]:
        del new_watermark, fence
        holder = self.state.leases.holder(KIND, table=TABLE)
        self.holders.append(holder[0] if holder else None)
        return Staged(None, Landing(token, tuple(remainders)), Head(None, None))

    async def publish(self, _staged: Staged[None], _at: Head) -> Head:
        self.main = 1
        return Head(1, None)


def lander(scene: Scene, owner: str) -> Lander[None]:
    return Lander(
        pipeline="pipeline",
        table=scene,  # type: ignore[arg-type] # it is all of them
        progress=scene,  # type: ignore[arg-type] # as above
        ledger=scene,  # type: ignore[arg-type] # as above
        stager=scene,  # type: ignore[arg-type] # as above
        clock=SystemClock(),
        random=system_random(),
        backoff=Backoff(),
        table_leases=table_leases(scene.state, owner),
    )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(open_state(f"sqlite:///{tmp_path}/state.sqlite", SystemClock(), RandomIds()))


def test_a_landing_has_the_turn_while_it_stages_and_gives_it_back(scene: Scene) -> None:
    asyncio.run(lander(scene, "merger").land([Unit("u")]))

    assert scene.holders == ["merger"]
    assert scene.state.leases.holder(KIND, table=TABLE) is None
    scene.state.close()


def test_a_landing_goes_on_without_its_turn_when_somebody_keeps_it(scene: Scene) -> None:
    async def both() -> None:
        async with table_leases(scene.state, "compaction").at(TABLE, "t"):
            await lander(scene, "merger").land([Unit("u")])
            with pytest.raises(Unavailable, match="Another process holds the lease"):
                async with table_leases(scene.state, "another compaction").at(TABLE, "t"):
                    pass

    asyncio.run(both())

    assert scene.main == 1
    assert scene.holders == ["compaction"]
    scene.state.close()


@pytest.mark.slow
def test_a_turn_is_renewed_while_it_lasts_and_over_soon_after_its_owner_died(tmp_path: Path) -> None:
    with open_state(f"sqlite:///{tmp_path}/state.sqlite", SystemClock(), RandomIds()) as state:
        long_at_it = replace(table_leases(state, "long"), hold=timedelta(milliseconds=300))

        async def work() -> bool:
            async with long_at_it.at(TABLE, "table"):
                first = state.leases.holder(KIND, table=TABLE)
                assert first is not None
                while state.leases.holder(KIND, table=TABLE) == first:
                    pass  # until it was renewed, or the test's time is over
                return True

        assert asyncio.run(work())
        state.leases.take(KIND, "dead", state.now() + long_at_it.hold, table=TABLE)
        patient = replace(
            table_leases(state, "next"), patience=Backoff(attempts=100, first_seconds=0.05, cap_seconds=0.05)
        )

        async def after() -> str | None:
            async with patient.at(TABLE, "table"):
                holder = state.leases.holder(KIND, table=TABLE)
                return holder[0] if holder else None

        assert asyncio.run(after()) == "next"


@pytest.fixture
def dead() -> str:
    """An owner of this machine that is known to be gone."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        return owner_named(RandomIds().uuid(), process.pid)  # it ends with the `with`


def test_the_turn_and_the_units_of_a_process_that_is_gone_are_taken_at_once(scene: Scene, dead: str) -> None:
    state, tomorrow = scene.state, scene.state.now() + timedelta(days=1)
    state.leases.take(KIND, dead, tomorrow, table=TABLE)
    state.shards.open(TABLE, ["u"], token=dead)
    state.shards.acquire(TABLE, ["u"], owner=dead, lease_until=tomorrow)

    async def holder() -> str | None:
        async with replace(table_leases(state, "next"), patience=Backoff(attempts=1)).at(TABLE, "t"):
            found = state.leases.holder(KIND, table=TABLE)
            return found[0] if found else None

    assert asyncio.run(holder()) == "next"
    assert StateProgress(state=state, owner="next").take(TABLE, [Unit("u")]) == [Unit("u")]
    state.close()


def test_of_an_owner_that_may_live_nothing_is_taken_and_who_waits_is_told_whose_it_is(scene: Scene) -> None:
    state, tomorrow, told = scene.state, scene.state.now() + timedelta(days=1), list[str]()
    for_good = {"lives": owner_named(RandomIds().uuid()), "of an older version": RandomIds().uuid()}
    for table, owner in for_good.items():
        state.leases.take(KIND, owner, tomorrow, table=table)
        state.shards.open(table, ["u"], token=owner)
        state.shards.acquire(table, ["u"], owner=owner, lease_until=tomorrow)

    async def wait(table: str) -> None:
        async with replace(table_leases(state, "next"), waiting=told.append).at(table, "t"):
            pass

    for table in for_good:
        with pytest.raises(Unavailable, match="Another process holds the lease"):
            asyncio.run(wait(table))
        assert StateProgress(state=state, owner="next").take(table, [Unit("u")]) == []
    assert told == list(for_good.values())
    state.close()
