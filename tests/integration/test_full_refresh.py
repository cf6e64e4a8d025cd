"""Tables that are read whole: once for a day, replaced at once, and never half."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

import pytest
from pyspark.sql import SparkSession

from lakehead.run.config.table_config import TableConfig
from lakehead.run.wiring import Wiring
from lakehead.source.dialects import read_part
from lakehead.source.port import Query, ReadPart, Source
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import PhaseMarked, TableDone, TableSkipped, TableStep
from tests.integration.pipeline_support import MARKS, ONE_SERVER, PLUGINS, Scene
from tests.pipeline import DAY, Ran

pytest_plugins = PLUGINS
pytestmark = MARKS
NEXT_DAY = date(2026, 1, 2)
BOTH_FINALS = pytest.mark.parametrize("finalize", ["table", "view"])


@pytest.fixture
def finalize(scene: Scene) -> str:
    """What readers read. It does not depend on the source, so each server has one of them."""
    return {"postgresql": "table", "mysql": "view"}[scene.database.kind]


def cities(scene: Scene, *rows: tuple[int, str]) -> str:
    """A table with these rows in the source."""
    name = scene.name()
    scene.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, city varchar(20))")
    if rows:
        scene.sql(f"INSERT INTO {name} VALUES {', '.join(f'({number}, {city!r})' for number, city in rows)}")
    return name


def full(table: str, finalize: str = "table", **more: object) -> dict[str, object]:
    return {"table": table, "mode": "full", "finalize": finalize, **more}


def seen(session: SparkSession, name: str) -> list[tuple[int, str]]:
    """What somebody who asks Spark reads, be it a table or a view."""
    return sorted((row.id, row.city) for row in session.table(f"lake.final.{name}").collect())


def in_raw(scene: Scene, name: str) -> Counter[tuple[int, int]]:
    """The rows of raw, by generation and slice."""
    raw = scene.rows(f"raw.{name}", ingest=True)
    return Counter(zip(raw["_generation"].to_pylist(), raw["_slice"].to_pylist(), strict=True))


class Cut(BaseException):
    """The process ends here, as far as a run within this one can."""


def at(phase: str, action: Callable[[], object]) -> Callable[[EventEnvelope], None]:
    """Does something when a phase is told to be done."""

    def hears(told: EventEnvelope) -> None:
        if isinstance(told.event, PhaseMarked) and (told.event.phase, told.event.state) == (phase, "done"):
            action()

    return hears


def cut() -> None:
    raise Cut


def skipped(ran: Ran) -> list[str]:
    assert ran.exit_code == 0, ran.errors
    return [event.reason for event in ran.of(TableSkipped)]


@BOTH_FINALS
def test_a_table_reaches_raw_and_what_readers_read_and_the_events_say_so(scene: Scene, finalize: str) -> None:
    name = cities(scene, (1, "Rome"), (2, "Oslo"))

    ran = scene.run(full(name, finalize))

    assert ran.errors == {}
    assert seen(scene.spark, name) == [(1, "Rome"), (2, "Oslo")]
    raw = scene.rows(f"raw.{name}", ingest=True)
    assert sorted(zip(raw["id"].to_pylist(), raw["city"].to_pylist(), strict=True)) == [(1, "Rome"), (2, "Oslo")]
    assert set(raw["_load_date"].to_pylist()) == {DAY}
    assert set(raw["_run"].to_pylist()) == {ran.told[0].run}
    assert all(told.endswith(name) and "s3cret" not in told for told in raw["_source"].to_pylist())
    assert raw["_loaded_at"].null_count == 0
    phases = [(event.phase, event.state, event.rows, event.location) for event in ran.of(PhaseMarked)]
    assert phases == [("raw", "done", 2, f"lake.raw.{name}"), ("finalized", "done", 2, f"lake.final.{name}")]
    assert [event.rows for event in ran.of(TableDone)] == [2]


def test_a_day_that_is_loaded_is_not_read_again_and_another_day_is(scene: Scene, finalize: str) -> None:
    name = cities(scene, (1, "Rome"))
    scene.run(full(name, finalize))
    off = scene.elsewhere()

    again = off.run(scene.spark, [full(name, finalize)])
    another_day = off.run(scene.spark, [full(name, finalize)], load_date=NEXT_DAY)

    assert skipped(again) == ["loaded for 2026-01-01"]
    assert another_day.exit_code == 1
    assert "cannot be reached" in another_day.errors[name]
    scene.sql(f"INSERT INTO {name} VALUES (2, 'Oslo')", f"DELETE FROM {name} WHERE id = 1")
    assert scene.run(full(name, finalize), load_date=NEXT_DAY).errors == {}
    assert seen(scene.spark, name) == [(2, "Oslo")]
    assert set(scene.rows(f"raw.{name}", ingest=True)["_load_date"].to_pylist()) == {DAY, NEXT_DAY}


def test_what_is_raw_and_could_not_be_finalized_is_finalized_without_the_source(scene: Scene, finalize: str) -> None:
    name = cities(scene, (1, "Rome"))

    def in_the_way() -> None:
        if finalize == "table":
            scene.spark.sql(f"DROP TABLE lake.final.{name}")
        else:
            scene.spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.final")
            scene.spark.sql(f"CREATE TABLE lake.final.{name} (id int) USING iceberg")

    failed = scene.run(full(name, finalize), hears=at("raw", in_the_way))
    assert failed.exit_code == 1
    assert [(event.phase, event.state) for event in failed.of(PhaseMarked)] == [
        ("raw", "done"),
        ("finalized", "failed"),
    ]
    if finalize == "view":
        scene.spark.sql(f"DROP TABLE lake.final.{name}")

    ran = scene.elsewhere().run(scene.spark, [full(name, finalize)])

    assert ran.errors == {}
    assert [(event.phase, event.state) for event in ran.of(PhaseMarked)] == [("finalized", "done")]
    assert seen(scene.spark, name) == [(1, "Rome")]
    assert in_raw(scene, name) == {(0, 1): 1}


def test_a_run_that_ended_between_raw_and_final_is_finished_without_the_source(scene: Scene, finalize: str) -> None:
    name = cities(scene, (1, "Rome"))
    with pytest.raises(Cut):
        scene.run(full(name, finalize), hears=at("raw", cut))

    ran = scene.elsewhere().run(scene.spark, [full(name, finalize)])

    assert ran.errors == {}
    assert seen(scene.spark, name) == [(1, "Rome")]


def test_a_reload_that_ended_between_raw_and_final_is_finished_without_the_source(scene: Scene, finalize: str) -> None:
    name = cities(scene, (1, "Rome"))
    scene.run(full(name, finalize))
    scene.sql(f"UPDATE {name} SET city = 'Oslo'")
    with pytest.raises(Cut):
        scene.run(full(name, finalize), reload=True, hears=at("raw", cut))
    assert seen(scene.spark, name) == [(1, "Rome")]

    ran = scene.elsewhere().run(scene.spark, [full(name, finalize)])

    assert ran.errors == {}
    assert seen(scene.spark, name) == [(1, "Oslo")]


@ONE_SERVER
def test_without_finalizing_raw_alone_decides_and_finalizing_can_be_turned_on_later(scene: Scene) -> None:
    name = cities(scene, (1, "Rome"))
    ran = scene.run(full(name), finalize_full_refresh=False)
    assert [event.phase for event in ran.of(PhaseMarked)] == ["raw"]
    assert not scene.pipeline.exists(f"final.{name}")
    off = scene.elsewhere()

    again = off.run(scene.spark, [full(name)], finalize_full_refresh=False)
    turned_on = off.run(scene.spark, [full(name)])

    assert skipped(again) == ["loaded for 2026-01-01"]
    assert turned_on.errors == {}
    assert seen(scene.spark, name) == [(1, "Rome")]


def test_a_reload_of_a_done_day_is_as_a_fresh_load_under_units_of_its_own(scene: Scene, finalize: str) -> None:
    name = cities(scene, (1, "Rome"), (2, "Oslo"), (3, "Bern"))
    scene.run(full(name, finalize))
    scene.sql(f"DELETE FROM {name} WHERE id = 1", f"UPDATE {name} SET city = 'Kyiv' WHERE id = 2")

    reloaded = scene.run(full(name, finalize), reload=True)
    fresh = scene.run(full(name, finalize, name=f"{name}_fresh"))

    assert (reloaded.errors, fresh.errors) == ({}, {})
    assert seen(scene.spark, name) == seen(scene.spark, f"{name}_fresh") == [(2, "Kyiv"), (3, "Bern")]
    assert in_raw(scene, name) == {(0, 1): 3, (1, 2): 2}
    assert skipped(scene.run(full(name, finalize))) == ["loaded for 2026-01-01"]


@ONE_SERVER
def test_a_table_with_force_reload_is_loaded_anew_by_every_run(scene: Scene) -> None:
    name = cities(scene, (1, "Rome"))
    for _ in range(3):
        assert scene.run(full(name, force_reload=True)).errors == {}

    assert in_raw(scene, name) == {(1, 1): 1, (2, 2): 1, (3, 3): 1}
    assert seen(scene.spark, name) == [(1, "Rome")]


def test_a_table_becomes_empty_only_by_leave(scene: Scene, finalize: str) -> None:
    name = cities(scene, (1, "Rome"))
    scene.run(full(name, finalize))
    snapshots = scene.pipeline.snapshots(f"raw.{name}")
    scene.sql(f"DELETE FROM {name}")

    refused = scene.run(full(name, finalize), load_date=NEXT_DAY)

    assert refused.exit_code == 1
    assert refused.errors[name] == (
        f"The source of {name} has no rows, but had some before. The table was not changed. If it should become empty, "
        "set allow_empty to true."
    )
    assert seen(scene.spark, name) == [(1, "Rome")]
    assert scene.pipeline.snapshots(f"raw.{name}") == snapshots
    assert scene.run(full(name, finalize, allow_empty=True), load_date=NEXT_DAY).errors == {}
    assert seen(scene.spark, name) == []


def test_a_table_that_is_empty_at_first_is_loaded(scene: Scene, finalize: str) -> None:
    name = cities(scene)

    ran = scene.run(full(name, finalize))

    assert (ran.exit_code, [event.rows for event in ran.of(TableDone)]) == (0, [0])
    assert seen(scene.spark, name) == []
    assert skipped(scene.elsewhere().run(scene.spark, [full(name, finalize)])) == ["loaded for 2026-01-01"]


def test_readers_see_the_old_rows_or_the_new_ones_and_never_a_part(scene: Scene, finalize: str) -> None:
    name = scene.name()
    scene.database.numbers(name, 500, v="1")
    table = full(name, finalize, read_partitions=4)
    scene.run(table)
    scene.sql(f"UPDATE {name} SET v = 2", f"DELETE FROM {name} WHERE id > 300")
    old, new = (500, 1, 1), (300, 2, 2)
    reader, looks, done = scene.spark.newSession(), list[tuple[int, ...]](), threading.Event()

    def look() -> None:
        counted = f"SELECT count(*), min(v), max(v) FROM lake.final.{name}"
        looks.append(tuple(reader.sql(counted).collect()[0]))

    def keep_looking() -> None:
        while not done.is_set():
            look()

    thread = threading.Thread(target=keep_looking)
    thread.start()
    try:
        ran = scene.run(table, reload=True, hears=lambda _: look())
    finally:
        done.set()
        thread.join()
    look()

    assert ran.errors == {}
    assert set(looks) == {old, new}
    assert (looks[0], looks[-1]) == (old, new)


@dataclass(frozen=True)
class Meddling(Wiring):
    """Something happens in the source when the parts of a reading are cut, and none of them is read yet."""

    meddle: Callable[[Sequence[ReadPart]], object] = lambda _: None

    def source_of(self, table: TableConfig, session: SparkSession) -> Callable[[], Source]:
        opened = super().source_of(table, session)

        def meddled() -> Source:
            source = opened()
            cut_up = source.parts

            def parts(query: Query, number: int, snapshot: str | None = None) -> Sequence[ReadPart]:
                made = cut_up(query, number, snapshot)
                self.meddle(made)
                return made

            source.parts = parts  # type: ignore[method-assign,assignment] # the moment is only known there
            return source

        return meddled


@pytest.mark.parametrize("reader", ["arrow", "jdbc"])
def test_a_parallel_read_is_as_of_its_start_or_as_the_server_can(scene: Scene, reader: str) -> None:
    name = scene.name()
    scene.database.numbers(name, 2_000, v="0")
    scene.sql(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    counted = scene.name()

    def meddle(parts: Sequence[ReadPart]) -> None:
        assert len(parts) == 4
        scene.sql(
            f"UPDATE {name} SET v = 1 WHERE id > 500",  # PostgreSQL moves what it updates to other blocks
            f"DELETE FROM {name} WHERE id <= 100",
            f"INSERT INTO {name} VALUES (2001, 1)",
        )

    ran = scene.run(
        full(name, name=counted, read_partitions=4, reader=reader),
        wiring=lambda made: Meddling(made.config, made.environment, meddle),
    )

    assert ran.errors == {}
    rows = scene.rows(f"final.{counted}")
    numbers = Counter(rows["id"].to_pylist())
    if scene.database.kind == "postgresql":  # one view of the database for all parts
        assert numbers == Counter(range(1, 2_001))
        assert set(rows["v"].to_pylist()) == {0}
    else:  # rows whose key stays are read once, whatever happens to them
        assert numbers == Counter(range(101, 2_002))
        assert set(rows["v"].to_pylist()) == {0, 1}


def test_99_of_100_rows_in_one_range_of_keys_are_parted_evenly(scene: Scene) -> None:
    name = scene.name()
    # One row of a hundred lies outside of where the others are, a million times as far.
    scene.database.numbers(name, 20_000, k="CASE WHEN n % 100 = 0 THEN n * 1000000 ELSE n END")
    scene.sql(f"ALTER TABLE {name} ADD PRIMARY KEY (k)")
    sizes = list[int]()

    def measure(parts: Sequence[ReadPart]) -> None:
        sizes.extend(sum(batch.num_rows for batch in read_part(part)) for part in parts)

    ran = scene.run(full(name, read_partitions=8), wiring=lambda made: Meddling(made.config, made.environment, measure))

    assert ran.errors == {}
    assert (len(sizes), sum(sizes)) == (8, 20_000)
    assert max(sizes) <= 2 * median(sizes)
    assert scene.rows(f"raw.{name}").num_rows == 20_000


@ONE_SERVER
def test_progress_is_told_step_by_step(scene: Scene) -> None:
    name = cities(scene, (1, "Rome"))

    ran = scene.run(full(name))

    assert [event.step for event in ran.of(TableStep)] == ["reaching the source", "reading", "finalizing"]
