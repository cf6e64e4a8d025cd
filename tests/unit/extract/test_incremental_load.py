"""A table on a sink in memory, mostly one read in increments: every resume, every overtaking and every reload."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured, Unavailable
from lakehead.extract.full import FullRefreshStrategy
from lakehead.extract.incremental import AppendStrategy, Scd1Strategy
from lakehead.extract.modes import MODES
from lakehead.extract.planning.adaptive import AdaptivePlanner
from lakehead.extract.planning.slicing import SlicingPolicy
from lakehead.extract.strategy import TRIES, Done, ExecutionContext, Skipped, Strategy
from lakehead.extract.table_settings import Finalize, TableSettings
from lakehead.ids import RandomIds, system_random
from lakehead.lake.ports import AuditFailed, Overtaken
from lakehead.lake.run_context import RunContext
from lakehead.source.dialects import open_source, parse_source_url
from lakehead.source.port import Source, TableName
from lakehead.state.buffered import BufferedState
from lakehead.state.model import Mark
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.telemetry.events import Event, TablePlanned
from tests.support.folders import folder_in_memory
from tests.support.memory_sink import MemoryTable, MemoryTableSink

DAY = date(2026, 1, 1)
NEXT_DAY = DAY + timedelta(days=1)
STRATEGIES: dict[str, Strategy] = {"scd1": Scd1Strategy(), "append": AppendStrategy(), "full": FullRefreshStrategy()}
SLICED = SlicingPolicy(target_rows=2)
STEPS = [("stage_incremental_slice", 0), ("stage_incremental_slice", 1), ("commit_incremental", 0)]
"""The steps of a run with several slices: which call, and how many of its kind come before it."""


class Crash(Exception):
    """The process dies."""


class Interrupted:
    """A sink to which something happens before or after the nth call of a step."""

    def __init__(self, sink: MemoryTableSink, step: tuple[str, int], when: str, happens: Callable[[], object]) -> None:
        self._sink, (self._step, self._left), self._when, self._happens = sink, step, when, happens

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._sink, name)
        return self._watched(found) if name == self._step else found

    def _watched(self, found: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            self._left -= 1
            now = self._left == -1
            if now and self._when == "before":
                self._happens()
            result = found(*args, **kwargs)
            if now and self._when == "after":
                self._happens()
            return result

        return call


@dataclass
class Shop:
    """One table in SQLite, where it is kept, and the state."""

    database: Path
    state: State
    table: MemoryTable = field(default_factory=MemoryTable)
    events: list[Event] = field(default_factory=list)

    def sql(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.database)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    def add(self, *ids: int, v: str = "x") -> None:
        self.sql(*(f"INSERT OR REPLACE INTO orders VALUES ({number}, {number}, '{v}')" for number in ids))

    def load(
        self,
        mode: str = "scd1",
        *,
        sink: Callable[[MemoryTableSink], Any] = lambda made: made,
        source: Callable[[], Source] | None = None,
        slicing: SlicingPolicy = SLICED,
        load_date: date = DAY,
        **settings: Any,
    ) -> Done | Skipped:
        """One run."""
        clock, ids = SystemClock(), RandomIds()
        table = TableSettings(
            **{
                "name": "orders",
                "source": TableName("orders"),
                "mode": MODES[mode],
                "incremental_column": "at" if mode != "full" else None,
                "finalize": Finalize.TABLE if mode == "full" else None,
                "primary_keys": ("id",) if mode == "scd1" else (),
                **settings,
            }
        )
        nobody = cast(Any, None)
        run = RunContext(
            pipeline="shop",
            run="run",
            load_date=load_date,
            session=nobody,
            state=self.state,
            owner="run",
            clock=clock,
            ids=ids,
            random=system_random(),
            waiting=nobody,
            pause=nobody,
        )
        context = ExecutionContext(
            table=table,
            sink=sink(MemoryTableSink(table, self.table, run)),
            open_source=source or (lambda: open_source(parse_source_url(f"sqlite:///{self.database}"))),
            state=BufferedState(self.state, clock),
            emit=self.events.append,
            run="run",
            load_date=load_date,
            planner=AdaptivePlanner(),
            slicing=slicing,
            clock=clock,
            ids=ids,
        )
        return STRATEGIES[mode].run(context)

    @property
    def raw(self) -> list[int]:
        """The ids in raw, as often as they are there."""
        return sorted(number for table in self.table.raw for number in table["id"].to_pylist())

    @property
    def mirror(self) -> dict[int, str]:
        rows = self.table.published.to_pylist() if self.table.published is not None else []
        assert len({row["id"] for row in rows}) == len(rows), "a key has one row"
        return {row["id"]: row["v"] for row in rows}

    @property
    def done(self) -> object:
        """The watermark up to which the state says that all is done."""
        found = self.state.progress.watermark(self.table.id, Mark.DONE)
        return found.value if found else None

    @property
    def plan(self) -> object:
        return self.state.slices.load(self.table.id)


def crash() -> None:
    raise Crash


@pytest.fixture
def shop() -> Iterator[Shop]:
    with (
        folder_in_memory() as folder,
        open_state(f"sqlite:///{folder}/state.sqlite", SystemClock(), RandomIds()) as state,
    ):
        made = Shop(folder / "shop.db", state)
        made.sql("CREATE TABLE orders (id integer primary key, at integer, v text)")
        yield made


def test_what_is_new_reaches_raw_in_slices_and_the_mirror_by_key(shop: Shop) -> None:
    shop.add(1, 2, 3, 4, 5)
    first = shop.load()
    shop.sql("UPDATE orders SET at = 6, v = 'new' WHERE id = 2")
    second = shop.load()

    assert isinstance(first, Done)
    assert isinstance(second, Done)
    assert (first.rows, first.published, first.watermark) == (5, 5, "5")
    assert (first.slices or 0) > 1
    assert shop.raw == [1, 2, 2, 3, 4, 5, 5], "and what stands at the watermark is read again"
    assert shop.mirror == {1: "x", 2: "new", 3: "x", 4: "x", 5: "x"}
    assert (shop.done, shop.plan) == (6, None)


def test_a_run_without_anything_new_is_skipped_and_says_since_when(shop: Shop) -> None:
    empty = shop.load()
    shop.add(1)
    shop.load()

    assert empty == Skipped("the source has no rows yet")
    assert shop.load() == Skipped("nothing new since 1")


# --- resumed


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0]}-{step[1]}")
def test_a_run_that_dies_at_any_step_is_finished_by_the_next(shop: Shop, step: tuple[str, int], when: str) -> None:
    shop.add(1, 2, 3, 4, 5)

    with pytest.raises(Crash):
        shop.load(sink=lambda made: Interrupted(made, step, when, crash))
    seen = shop.mirror
    shop.load()

    assert seen in ({}, dict.fromkeys(range(1, 6), "x")), "readers see all of it or nothing"
    assert shop.raw == [1, 2, 3, 4, 5], "no row was read twice"
    assert shop.mirror == dict.fromkeys(range(1, 6), "x")
    assert (shop.done, shop.plan) == (5, None)


@pytest.mark.parametrize("when", ["before", "after"])
def test_slices_that_are_not_merged_are_merged_without_the_source(shop: Shop, when: str) -> None:
    shop.add(1, 2, 3)
    with pytest.raises(Crash):
        shop.load(sink=lambda made: Interrupted(made, ("commit_incremental", 0), when, crash))

    def out_of_reach() -> Source:
        raise Unavailable("nobody answers")

    with pytest.raises(Unavailable):
        shop.load(source=out_of_reach)

    assert shop.mirror == {1: "x", 2: "x", 3: "x"}
    assert (shop.done, shop.plan) == (3, None)


def test_a_plan_that_was_made_for_another_filter_is_not_resumed(shop: Shop) -> None:
    shop.add(1, 2, 3, 4, 5)
    with pytest.raises(Crash):
        shop.load(sink=lambda made: Interrupted(made, ("stage_incremental_slice", 0), "before", crash))

    shop.load(source_filter="id > 2")

    assert shop.raw == [3, 4, 5]
    assert [event.resumed for event in shop.events if isinstance(event, TablePlanned)] == [False, False]


def test_a_table_that_was_read_by_another_filter_is_refused(shop: Shop) -> None:
    shop.add(1)
    shop.load()

    with pytest.raises(Misconfigured, match="--reload"):
        shop.load(source_filter="id > 0")


# --- overtaken


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0]}-{step[1]}")
def test_a_run_beside_another_at_any_step_brings_every_row_once(shop: Shop, step: tuple[str, int], when: str) -> None:
    shop.add(1, 2, 3, 4, 5)

    def another() -> None:
        shop.load()
        shop.add(9)
        shop.load()

    shop.load(sink=lambda made: Interrupted(made, step, when, another))
    shop.load()

    assert shop.mirror == {**dict.fromkeys(range(1, 6), "x"), 9: "x"}
    assert sorted(set(shop.raw)) == [1, 2, 3, 4, 5, 9]
    assert all(shop.raw.count(number) == 1 for number in (1, 2, 3, 4)), "below the watermark nothing is read again"
    assert (shop.done, shop.plan) == (9, None)


def test_a_run_that_is_overtaken_each_time_gives_up_and_leaves_what_others_did(shop: Shop) -> None:
    shop.add(1)
    numbers = iter(range(2, 100))

    class Overtaking(Interrupted):
        def _watched(self, found: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **kwargs: object) -> object:
                plan = shop.state.slices.load(shop.table.id)
                assert plan is not None
                shop.state.slices.discard(plan.table, plan.id)
                shop.add(next(numbers))
                shop.load(slicing=SlicingPolicy(enabled=False))  # so that it has another unit
                shop.add(next(numbers))
                return found(*args, **kwargs)

            return call

    with pytest.raises(Overtaken, match=f"were faster {TRIES} times. Run it again"):
        shop.load(sink=lambda made: Overtaking(made, ("stage_incremental_slice", 0), "before", crash))

    assert shop.mirror == dict.fromkeys(range(1, 2 * TRIES + 1), "x")


# --- loaded anew


def test_a_reload_takes_the_place_of_all_rows_at_once(shop: Shop) -> None:
    shop.add(1, 2, 3, 4)
    shop.load()
    shop.sql("DELETE FROM orders WHERE id = 2")
    seen = []

    def look() -> None:
        seen.append(sorted(shop.mirror))

    shop.load(reload=True, sink=lambda made: Interrupted(made, ("commit_incremental", 0), "before", look))

    assert seen == [[1, 2, 3, 4]]
    assert sorted(shop.mirror) == [1, 3, 4]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0]}-{step[1]}")
def test_a_reload_that_dies_at_any_step_is_finished_by_an_ordinary_run(
    shop: Shop, step: tuple[str, int], when: str
) -> None:
    shop.add(1, 2, 3, 4)
    shop.load()
    shop.sql("DELETE FROM orders WHERE id = 2")

    with pytest.raises(Crash):
        shop.load(reload=True, sink=lambda made: Interrupted(made, step, when, crash))
    assert sorted(shop.mirror) in ([1, 2, 3, 4], [1, 3, 4])
    shop.load()

    assert sorted(shop.mirror) == [1, 3, 4]
    assert (shop.done, shop.plan) == (4, None)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0]}-{step[1]}")
def test_a_reload_beside_an_ordinary_run_loses_nothing(shop: Shop, step: tuple[str, int], when: str) -> None:
    shop.add(1, 2, 3, 4)
    shop.load()
    shop.sql("DELETE FROM orders WHERE id = 2")

    def another() -> None:
        shop.add(9)
        shop.load()

    shop.load(reload=True, sink=lambda made: Interrupted(made, step, when, another))
    shop.load()

    assert sorted(shop.mirror) == [1, 3, 4, 9]
    assert (shop.done, shop.plan) == (9, None)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [("progress", 0), *STEPS], ids=lambda step: f"{step[0]}-{step[1]}")
def test_a_run_beside_a_reload_that_has_landed_in_part_does_not_publish_that_part(
    shop: Shop, step: tuple[str, int], when: str
) -> None:
    shop.add(1, 2, 3, 4)
    shop.load()
    shop.add(5, 6, 7)

    def half_of_a_reload() -> None:
        with pytest.raises(Crash):
            shop.load(reload=True, sink=lambda made: Interrupted(made, ("stage_incremental_slice", 0), "after", crash))

    shop.load(sink=lambda made: Interrupted(made, step, when, half_of_a_reload))
    seen, done = sorted(shop.mirror), shop.done
    shop.load()

    assert seen[:4] == [1, 2, 3, 4], "readers keep what they saw"
    assert done in (4, 7)
    assert sorted(shop.mirror) == [1, 2, 3, 4, 5, 6, 7]
    assert (shop.done, shop.plan) == (7, None)


@pytest.mark.parametrize("mode", ["scd1", "append"])
@pytest.mark.parametrize("at", [("progress", 0, "after"), ("stage_incremental_slice", 0, "before")], ids=str)
def test_a_reload_that_an_ordinary_run_overtakes_is_still_a_reload(
    shop: Shop, mode: str, at: tuple[str, int, str]
) -> None:
    shop.add(1, 2, 3, 4)
    shop.load(mode)
    shop.sql("DELETE FROM orders WHERE id = 2")

    def another() -> None:
        if plan := shop.state.slices.load(shop.table.id):  # the other run had planned before this one did
            shop.state.slices.discard(plan.table, plan.id)
        shop.add(9)
        shop.load(mode)

    step, before, when = at
    shop.load(mode, reload=True, sink=lambda made: Interrupted(made, (step, before), when, another))

    assert (sorted(shop.mirror) if mode == "scd1" else shop.raw) == [1, 3, 4, 9]
    assert shop.table.raw_watermark is not None
    assert shop.table.raw_watermark.generation == 1
    assert (shop.done, shop.plan) == (9, None)


@pytest.mark.parametrize("mode", ["scd1", "append"])
def test_a_reload_that_another_reload_overtakes_leaves_it_at_that(shop: Shop, mode: str) -> None:
    shop.add(1, 2, 3, 4)
    shop.load(mode)
    shop.sql("DELETE FROM orders WHERE id = 2")

    def another() -> None:
        shop.add(9)
        shop.load(mode, reload=True)

    shop.load(
        mode,
        reload=True,
        sink=lambda made: Interrupted(made, ("stage_incremental_slice", 0), "before", another),
        slicing=SlicingPolicy(enabled=False),
    )

    assert (sorted(shop.mirror) if mode == "scd1" else shop.raw) == [1, 3, 4, 9]
    assert (shop.done, shop.plan) == (9, None)


@pytest.mark.parametrize("mode", ["scd1", "append"])
def test_a_reload_of_a_source_without_rows_leaves_the_table_as_it_was(shop: Shop, mode: str) -> None:
    shop.add(1)
    shop.load(mode)
    shop.sql("DELETE FROM orders")

    with pytest.raises(AuditFailed, match="has no rows, but had some before"):
        shop.load(mode, reload=True)

    assert shop.raw == [1]


def test_a_reload_of_an_appended_table_replaces_its_rows_in_one_step(shop: Shop) -> None:
    shop.add(1, 2, 3, 4)
    shop.load("append")
    shop.sql("DELETE FROM orders WHERE id = 2")

    done = shop.load("append", reload=True)

    assert isinstance(done, Done)
    assert done.slices == 1, "or its readers would see a part of it"
    assert shop.raw == [1, 3, 4]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["progress", "write_raw", "finalize_full"])
def test_a_day_beside_the_reload_of_another_day_is_shown_as_the_last_of_both(shop: Shop, step: str, when: str) -> None:
    shop.add(1)
    shop.load("full")

    def another() -> None:
        shop.add(2)
        shop.load("full", reload=True)

    shop.load("full", load_date=NEXT_DAY, sink=lambda made: Interrupted(made, (step, 0), when, another))

    numbers = [table["_slice"][0].as_py() for table in shop.table.raw]
    generations = [table["_generation"][0].as_py() for table in shop.table.raw]
    assert numbers == [1, 2, 3]
    assert generations == sorted(generations), "a load of an older generation would never be shown"
    assert shop.table.published_watermark is not None
    assert shop.table.published_watermark.slice == 3
    assert sorted(shop.mirror) == [1, 2]
