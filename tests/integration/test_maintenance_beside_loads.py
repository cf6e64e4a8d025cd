"""Loads and maintenance of one table beside each other: nothing is lost, nothing comes twice."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.maintenance_modes import all_rows, maintained
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, numbers, scd1
from tests.integration.test_raw_and_mirror import meanwhile
from tests.pipeline import in_folder
from tests.support.effort import effort

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def test_loads_and_maintenance_beside_each_other_lose_and_double_nothing(on_sqlite: Scene) -> None:
    kept = Kept(on_sqlite, "iceberg")
    name, rounds = numbers(kept, 1), effort(2, soak=60)
    table = scd1(name)
    kept.run(table)
    aside = kept.scene.pipeline.folder / "aside"
    aside.mkdir()
    # A configuration file of its own with the same state: both write theirs anew.
    state = {"url": f"sqlite:///{kept.scene.pipeline.folder}/state.sqlite"}
    upkeep = kept.changed(**vars(in_folder(kept.scene.pipeline, aside)))
    settings = {"min_input_files": 2, "max_snapshots": 2}

    def load() -> list[dict[str | None, str]]:
        errors = []
        for number in range(2, 2 + rounds):
            meanwhile(kept, f"INSERT INTO {name} VALUES ({number}, {number}, 'x')")
            meanwhile(kept, f"UPDATE {name} SET at = {number}, v = 'v{number}' WHERE id = 1")
            errors.append(kept.run(table).errors)
        return errors

    with ThreadPoolExecutor(1) as other:
        loads = other.submit(load)
        done: list[object] = []
        while not loads.done():
            done += [
                maintained(upkeep, mode, table, maintenance=settings, state=state)
                for mode in ("apply", "rebuild-from-raw")
            ]

    assert loads.result() == [{}] * rounds
    assert done
    last = 1 + rounds
    expected = [(1, f"v{last}"), *((number, "x") for number in range(2, last + 1))]
    assert sorted((row["id"], row["v"]) for row in all_rows(kept, f"mirror.{name}")) == expected
    mirror = all_rows(kept, f"mirror.{name}")
    rebuilt, ended = maintained(upkeep, "rebuild-from-raw", table, state=state)
    assert ended, rebuilt
    assert all_rows(kept, f"mirror.{name}") == mirror
