"""Tables that are run with `runtime.merge_lane`: the lane is chosen by the configuration alone."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from typing import Any

import pytest

from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Head
from lakehead.lake.ports import Staged
from lakehead.telemetry.events import PhaseMarked
from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, numbers, scd1

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("lane", "filters", "by"),
    [
        ("arrow", [], "MergedFiles"),
        ("arrow", ["id > 0"], "Branch"),
        pytest.param("spark", [], "Branch", marks=pytest.mark.soak),
        pytest.param(None, [], "MergedFiles", marks=pytest.mark.soak),
    ],
)
def test_the_configuration_chooses_how_rows_are_merged(
    on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch, lane: str | None, filters: list[str], by: str
) -> None:
    kept, published = Kept(on_sqlite, "iceberg"), list[str]()
    name = numbers(kept, 1, 2, 3)
    table = scd1(name, merge_filters=filters)
    chosen: dict[str, Any] = {} if lane is None else {"merge_lane": lane}
    assert kept.run(table, **chosen).errors == {}
    kept.scene.sql(f"UPDATE {name} SET at = 5, v = 'new' WHERE id = 2")
    add(kept, name, 6)
    publish = IcebergTable.publish

    async def seen(self: IcebergTable, staged: Staged[object], at: Head) -> Head:
        published.append(type(staged.rows).__name__)
        return await publish(self, staged, at)  # type: ignore[arg-type] # whatever is staged

    monkeypatch.setattr(IcebergTable, "publish", seen)
    ran = kept.run(table, **chosen)

    assert ran.errors == {}
    assert published == ["NewFiles", by]
    assert kept.rows("mirror", name, "id", "v") == [(1, "x"), (2, "new"), (3, "x"), (6, "x")]
    [merged] = [event for event in ran.of(PhaseMarked) if event.phase == "intermediate"]
    assert {name: merged.detail[name] for name in ("inserted", "updated")} == {"inserted": 1, "updated": 2}
