"""Fixtures that more than one kind of test needs."""

from collections.abc import Iterator

import pytest

from tests.servers.seaweed import Seaweed


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server for the whole run. It is never stopped or broken by a test; those start their own."""
    server = Seaweed(tmp_path_factory.mktemp("seaweed"))
    server.start()
    yield server
    server.stop()
