"""Fixtures that more than one kind of test needs, and which tests a run leaves out."""

from collections.abc import Iterator

import pytest

from tests.servers.seaweed import Seaweed
from tests.support.effort import SOAKING


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, a file's tests share one: they share its sessions and servers."""
    left_out = [item for item in items if item.get_closest_marker("soak") and not SOAKING]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server for the whole run. It is never stopped or broken by a test; those start their own."""
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.stop()
