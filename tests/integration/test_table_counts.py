"""The rows that a run tells of: those that it has read, and those that it has written for readers."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from typing import Any

import pytest

from lakehead.telemetry.events import PhaseMarked, TableDone, TableSkipped
from tests.integration.increment_support import broken_at
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, full, numbers, scd1
from tests.pipeline import Ran

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("mode", [pytest.param("full", marks=pytest.mark.soak), "scd1"])
def test_a_run_that_only_finishes_what_an_earlier_one_has_read_is_done_with_its_rows(kept: Kept, mode: str) -> None:
    name = numbers(kept, 1, 2, 3)
    table, step = {"full": (full(name), "finalize_full"), "scd1": (scd1(name), "commit_incremental")}[mode]
    cut = kept.run(table, wiring=broken_at(step))
    assert cut.errors == {name: f"{step} was cut short"}

    ran, idle = kept.run(table), kept.run(table)

    assert [(event.rows, event.published) for event in ran.of(TableDone)] == [(0, 3)]
    assert ran.of(TableSkipped) == []
    assert len(idle.of(TableSkipped)) == 1


def merged(ran: Ran) -> tuple[int | None, dict[str, Any]]:
    assert ran.errors == {}
    [event] = [event for event in ran.of(PhaseMarked) if event.phase == "intermediate"]
    return event.rows, dict(event.detail)


def test_a_merge_tells_no_rows_that_readers_do_not_see(on_sqlite: Scene) -> None:
    scene, name = on_sqlite, on_sqlite.name()
    scene.sql(
        f"CREATE TABLE {name} (id integer primary key, at integer)",
        f"INSERT INTO {name} VALUES (1, 1), (2, 2), (3, 3)",
    )
    assert merged(scene.run(scd1(name))) == (3, {"total": 3})

    scene.sql(f"UPDATE {name} SET at = 4 WHERE id = 1", f"INSERT INTO {name} VALUES (4, 4)")
    # What is read again at the watermark is merged again.
    assert merged(scene.run(scd1(name))) == (3, {"inserted": 1, "updated": 2})

    scene.spark.sql(f"ALTER TABLE lake.mirror.{name} SET TBLPROPERTIES ('write.merge.mode' = 'copy-on-write')")
    scene.sql(f"INSERT INTO {name} VALUES (5, 5)")
    # The rows at 4 are read again. Rows that are copied with them are not merged.
    rows, detail = merged(scene.run(scd1(name)))
    assert (rows, detail["inserted"], detail["updated"]) == (3, 1, 2)
    assert detail.get("total") in (None, scene.rows(f"mirror.{name}").num_rows)
