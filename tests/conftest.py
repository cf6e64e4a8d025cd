"""Fixtures that more than one kind of test needs."""

from collections.abc import Iterator

import pytest

from tests.servers.seaweed import Seaweed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, a file's tests share one: they share its sessions and servers."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server for the whole run. It is never stopped or broken by a test; those start their own."""
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.stop()
