"""Tables kept in each kind of sink."""

from collections.abc import Callable

import pytest

from tests.integration.pipeline_support import Scene
from tests.integration.sink_support import KINDS, Kept
from tests.support.source_support import Database


@pytest.fixture
def in_files(sqlite: Database, scene_of: Callable[[Database], Scene]) -> Kept:
    made = Kept(scene_of(sqlite), "files")
    return made.changed(sinks={"kept": {"type": "files", "root": str(made.root)}})


@pytest.fixture(params=KINDS)
def kept(
    request: pytest.FixtureRequest, sqlite: Database, scene_of: Callable[[Database], Scene], in_files: Kept
) -> Kept:
    return in_files if request.param == "files" else Kept(scene_of(sqlite), request.param)
