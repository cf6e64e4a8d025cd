"""Which tests a run leaves out, what they share, and fixtures that more than one kind of them needs."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.seaweed import Seaweed
from tests.support import spark
from tests.support.effort import SOAKING
from tests.support.folders import folder_in_memory

pytest_plugins = ["tests.support.cost_report", "tests.support.hypothesis_profiles", "tests.support.schedule"]

NEEDS_SPARK = ("tests/chaos/", "tests/integration/", "tests/unit/test_docs.py::test_a_snippet")
"""Whoever runs none of these needs no Java and no network: `make check` does not."""


def pytest_configure() -> None:
    # Whatever a shell starts in the background ignores Ctrl-C, and so do its children: tests send it all the same.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = {item for item in items if item.get_closest_marker("soak") and not SOAKING}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
    # First, so that no shared JVM is stopped for them and started again.
    items[:] = sorted((item for item in items if item not in left_out), key=lambda item: not _has_own_jvm(item))


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(item.nodeid.startswith(NEEDS_SPARK) for item in session.items) and not session.config.option.collectonly:
        spark.prepare()
    # What is imported and collected stays to the end: no collection has to look at it again. A full one takes a fifth
    # of a second otherwise, and tests that ask for one, or leave many objects, have it many times.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    spark.stop_shared()


@pytest.fixture(autouse=True, scope="module")
def _own_jvm(request: pytest.FixtureRequest) -> None:
    """A process has one JVM at a time: a module that starts its own finds none."""
    if _has_own_jvm(request.node):
        spark.stop_shared()


def _has_own_jvm(node: pytest.Item | pytest.Collector) -> bool:
    return node.get_closest_marker("own_jvm") is not None


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """An empty folder in memory, where the system has such a place."""
    with folder_in_memory() as folder:
        yield folder


@pytest.fixture(scope="session")
def seaweed() -> Iterator[Seaweed]:
    """A real S3 server for the whole run. It is never stopped or broken by a test; those start their own.

    In memory: the server takes no objects while less than a hundredth of its disk is free.
    """
    with folder_in_memory() as folder:
        server = Seaweed(folder)
        server.start()
        yield server
        server.stop()
