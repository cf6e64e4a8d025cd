"""Many tables in one run: each by itself, with jobs and snapshots of its own; and what is refused, in one sentence."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.state.opening import open_state
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import RunDone, TableDone, TableFailed, TableSkipped, TableStart, TableStep
from tests.integration.pipeline_support import MARKS, ONE_SERVER, PASSWORD, PLUGINS, Scene

pytest_plugins = PLUGINS
pytestmark = MARKS
ENDS = (TableDone, TableSkipped, TableFailed)


class Crowd:
    """Counts the tables that are being worked on."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def __call__(self, told: EventEnvelope) -> None:
        self.now += isinstance(told.event, TableStart) - isinstance(told.event, ENDS)
        self.most = max(self.most, self.now)


def small(scene: Scene, rows: int = 1) -> str:
    """A table with some rows in the source."""
    name = scene.name()
    scene.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)")
    scene.sql(f"INSERT INTO {name} VALUES {', '.join(f'({number}, {number})' for number in range(1, rows + 1))}")
    return name


def full(table: str, **more: object) -> dict[str, object]:
    return {"table": table, "mode": "full", **more}


def nothing_is_made(scene: Scene, *namespaces: str) -> bool:
    """Whether the catalog has no table in these namespaces."""
    catalog = scene.pipeline.catalog()
    try:
        return not any(catalog.namespace_exists(each) and catalog.list_tables(each) for each in namespaces)
    finally:
        catalog.close()


def roots_of(scene: Scene) -> dict[str, Any]:
    """Roots of the test's own, so that all that is made can be told."""
    own = scene.name()
    return {"raw_root": f"{own}_raw", "final_root": f"{own}_final", "intermediate": f"{own}_mirror"}


def test_of_100_tables_3_fail_and_97_are_done(on_sqlite: Scene) -> None:
    scene, roots, crowd = on_sqlite, roots_of(on_sqlite), Crowd()
    names = [small(scene, rows=2) for _ in range(97)]
    bad_filter, odd_column = small(scene), scene.name()
    scene.sql(f"CREATE TABLE {odd_column} (id int, odd BIGNUM)", f"INSERT INTO {odd_column} VALUES (1, 2)")
    tables = [full(name) for name in names]
    tables[10:10] = [full("nowhere"), full(bad_filter, source_filter="1 = 1; DROP TABLE x"), full(odd_column)]

    ran = scene.run(*tables, hears=crowd, max_parallel_tables=8, finalize_full_refresh=False, **roots)

    assert ran.exit_code == 1
    assert [(event.done, event.skipped, event.failed) for event in ran.of(RunDone)] == [(97, 0, 3)]
    assert set(ran.errors) == {"nowhere", bad_filter, odd_column}
    assert "There is no table 'nowhere'" in ran.errors["nowhere"]
    assert "is more than one statement" in ran.errors[bad_filter]
    assert "Column 'odd'" in ran.errors[odd_column]
    assert all("\n" not in error for error in ran.errors.values())
    assert crowd.most == 8
    catalog = scene.pipeline.catalog()
    try:
        made = {name for _, name in catalog.list_tables(roots["raw_root"])}
        assert made == set(names)
        for name in names[::20]:
            assert catalog.load_table(f"{roots['raw_root']}.{name}").scan().to_arrow().num_rows == 2
    finally:
        catalog.close()


@pytest.mark.parametrize("at_once", [1, 3])
def test_never_more_tables_are_worked_on_than_the_configuration_says(on_sqlite: Scene, at_once: int) -> None:
    crowd, tables = Crowd(), [full(small(on_sqlite)) for _ in range(5)]

    ran = on_sqlite.run(*tables, hears=crowd, max_parallel_tables=at_once, finalize_full_refresh=False)

    assert ran.errors == {}
    assert crowd.most == at_once
    started = [told.table for told in ran.told if isinstance(told.event, TableStart)]
    assert sorted(map(str, started)) == sorted(str(table["table"]) for table in tables)
    if at_once == 1:
        assert started == [table["table"] for table in tables]


@ONE_SERVER
def test_each_tables_jobs_are_in_its_group_and_each_snapshot_names_its_own_units(scene: Scene) -> None:
    names, gathered = [small(scene, rows=3) for _ in range(3)], threading.Barrier(3)
    tables = [{"table": name, "mode": "scd1", "incremental_column": "id", "primary_keys": ["id"]} for name in names]
    tracker = scene.spark.sparkContext.statusTracker()
    ungrouped = set(tracker.getJobIdsForGroup(None))

    ran = scene.run(*tables, max_parallel_tables=3, wiring=lambda made: _met(made, gathered))

    assert ran.errors == {}
    groups = {told.table: told.job_group for told in ran.told if told.table}
    jobs = {name: set(tracker.getJobIdsForGroup(groups[name])) for name in names}
    assert all(jobs.values())
    assert sum(map(len, jobs.values())) == len(set().union(*jobs.values()))
    assert set(tracker.getJobIdsForGroup(None)) <= ungrouped  # of which Spark has forgotten the oldest
    tokens = list[str]()
    catalog = scene.pipeline.catalog()
    try:
        for name in names:
            raw, mirror = (catalog.load_table(f"{root}.{name}") for root in ("raw", "mirror"))
            landed = [summary for table in (raw, mirror) for summary in _landings(table)]
            assert len(landed) == 2
            assert str(raw.metadata.table_uuid) in landed[1]["lakehead.units"]
            tokens += [summary["lakehead.token"] for summary in landed]
    finally:
        catalog.close()
    assert len(set(tokens)) == 6


def _landings(table: Any) -> list[dict[str, str]]:
    """What the snapshots of a table say of what they brought."""
    told = [snapshot.summary.additional_properties for snapshot in table.metadata.snapshots]
    return [each for each in told if "lakehead.token" in each]


def _met(wiring: Any, gathered: threading.Barrier) -> Any:
    """A wiring whose tables begin to read only when all of them are there."""

    class Met(type(wiring)):  # type: ignore[misc] # the same wiring, and one moment more
        def source_of(self, table: Any, session: Any) -> Callable[[], Any]:
            opened = super().source_of(table, session)

            def meet() -> Any:
                gathered.wait(60)
                return opened()

            return meet

    return Met(wiring.config, wiring.environment)


REFUSED_NAMES = ["orders; drop table x", 'x" or 1=1 --', "x` or 1=1 --", "../../x", "a b", "x'y"]


@pytest.mark.parametrize("table", REFUSED_NAMES)
def test_a_name_that_is_no_name_is_refused_before_the_source_is_asked(on_sqlite: Scene, table: str) -> None:
    with pytest.raises(Misconfigured, match=r"cannot be named .* in the lakehouse\. Set name"):
        on_sqlite.elsewhere().run(on_sqlite.spark, [full(table)])


@pytest.mark.parametrize("table", REFUSED_NAMES)
def test_a_table_is_only_ever_a_name_to_the_source(scene: Scene, table: str) -> None:
    roots, victim = roots_of(scene), small(scene)
    aimed = table.replace("x", victim)

    refused = scene.run(full(aimed, name="aimed"), **roots)
    quoted = scene.database.source.quote(aimed)
    if "/" not in aimed:  # MariaDB has no such names
        scene.sql(f"CREATE TABLE {quoted} (id int)", f"INSERT INTO {quoted} VALUES (7)")
        assert scene.run(full(aimed, name="aimed"), **roots).errors == {}
        assert scene.rows(f"{roots['final_root']}.aimed").to_pylist() == [{"id": 7}]

    assert refused.exit_code == 1
    assert refused.errors["aimed"].startswith(f"There is no table {aimed!r} in ")
    assert scene.database.run(f"SELECT count(*) FROM {victim}")[0][0] == 1


@pytest.mark.parametrize(
    "condition",
    [
        "1 = 1; DROP TABLE {victim}",
        "v = 1 UNION SELECT 1",
        "id IN (SELECT id FROM {victim})",
        "pg_sleep(1) IS NULL",
        "v = 1 -- all",
        "v = 1) OR (1 = 1",
        "nowhere = 1",
    ],
)
def test_a_filter_is_one_condition_of_the_table_or_refused(scene: Scene, condition: str) -> None:
    name, victim, roots = small(scene), small(scene), roots_of(scene)

    ran = scene.run(full(name, source_filter=condition.format(victim=victim)), **roots)

    assert ran.exit_code == 1
    assert "\n" not in ran.errors[name]
    assert "is refused" in ran.errors[name] or "has no column 'nowhere'" in ran.errors[name]
    assert scene.database.run(f"SELECT count(*) FROM {victim}")[0][0] == 1
    assert nothing_is_made(scene, *roots.values())


def test_a_filter_keeps_what_it_is_true_for(scene: Scene) -> None:
    name = small(scene, rows=5)

    ran = scene.run(full(name, source_filter="v > 2 AND NOT id = 4"))

    assert ran.errors == {}
    assert sorted(scene.rows(f"final.{name}")["id"].to_pylist()) == [3, 5]


def test_what_is_wrong_with_a_source_is_one_sentence_and_nothing_is_made(scene: Scene) -> None:
    name, roots = small(scene), roots_of(scene)
    pipeline, url = scene.pipeline, urlsplit(str(scene.pipeline.source["url"]))
    wrong = {
        "refused user 'lakehead' or the password": replace(pipeline, environment={PASSWORD: "wrong"}),
        "cannot be reached": scene.elsewhere(),
        "has no database 'nowhere'": replace(
            pipeline, source={**pipeline.source, "url": url._replace(path="/nowhere").geturl()}
        ),
    }

    hashes = set()
    for said, broken in wrong.items():
        for mode in ("full", "scd1"):
            table = {"table": name, "mode": mode, "incremental_column": "id", "primary_keys": ["id"]}
            ran = broken.run(scene.spark, [table], **roots)
            assert ran.exit_code == 1
            assert said in ran.errors[name]
            assert "\n" not in ran.errors[name]
            hashes |= {(mode, failed.stack_hash) for failed in ran.of(TableFailed)}
    assert len(hashes) == 2 * len(wrong), "each fault has a hash of its own"
    assert nothing_is_made(scene, *roots.values())


@ONE_SERVER
def test_a_missing_secret_and_an_unknown_table_are_told_before_anything_is_opened(scene: Scene) -> None:
    name = small(scene)

    with pytest.raises(Misconfigured, match="The environment variable SOURCE_PASSWORD is not set"):
        replace(scene.pipeline, environment={}).run(scene.spark, [full(name)])
    with pytest.raises(Misconfigured, match=f"The configuration has no table nowhere. It has: {name}."):
        scene.run(full(name), only=f"{name},nowhere")
    assert not scene.pipeline.exists(f"raw.{name}")


@ONE_SERVER
def test_only_the_tables_that_are_named_are_loaded(scene: Scene) -> None:
    one, other = small(scene), small(scene)

    ran = scene.run(full(one), full(other), only=other)

    assert {told.table for told in ran.told if told.table} == {other}
    assert not scene.pipeline.exists(f"raw.{one}")


def test_every_event_of_a_run_is_in_the_state_when_it_ends(on_sqlite: Scene) -> None:
    name = small(on_sqlite)

    ran = on_sqlite.run(full(name), full("nowhere"))

    with open_state(f"sqlite:///{on_sqlite.pipeline.folder}/state.sqlite", SystemClock(), RandomIds()) as state:
        kept = state.history.events()
    assert {event.kind for event in kept} >= {"run_start", "table_start", "phase", "table_done", "table_failed"}
    assert {event.id for event in kept} == {told.id for told in ran.told if not isinstance(told.event, TableStep)}
    assert {event.run for event in kept} == {ran.told[0].run}
