"""How often a run loads a table's metadata: on an object store each load is two requests, one after the other."""

from collections import Counter
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import Kept, add, numbers, scd1

pytest_plugins = (
    "tests.support.state_fixtures",
    "tests.support.source_fixtures",
    "tests.integration.pipeline_fixtures",
    "tests.integration.sink_fixtures",
)
pytestmark = pytest.mark.timeout(300)

MOST = 4


def test_a_steady_run_with_one_slice_loads_each_tables_metadata_at_most_four_times(
    on_sqlite: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, loads, committing = Kept(on_sqlite, "iceberg"), Counter[str](), list[bool]()
    name = numbers(kept, 1, 2)
    kept.run(scd1(name))
    add(kept, name, 3)
    load_table, commit_table = SqlCatalog.load_table, SqlCatalog.commit_table

    def load(self: SqlCatalog, identifier: Any) -> Any:
        if not committing:  # the catalog's own affair
            loads[str(identifier)] += 1
        return load_table(self, identifier)

    def commit(self: SqlCatalog, *args: Any) -> Any:
        committing.append(True)
        try:
            return commit_table(self, *args)
        finally:
            committing.pop()

    monkeypatch.setattr(SqlCatalog, "load_table", load)
    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    ran = kept.run(scd1(name))

    assert ran.errors == {}
    assert kept.rows("mirror", name, "id") == [(1,), (2,), (3,)]
    assert set(loads) == {f"raw.{name}", f"mirror.{name}"}
    assert max(loads.values()) <= MOST, loads
