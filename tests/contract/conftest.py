"""Every kind of store, for the one suite that all of them must pass."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from lakehead.storage.opening import open_store
from lakehead.storage.port import Store
from tests.servers.seaweed import BUCKET

KINDS = ("memory", "local", "seaweed")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store of each kind, empty, that no other test sees."""
    openers: dict[str, Callable[[], Store]] = {
        "memory": lambda: open_store(f"memory://{uuid4()}"),
        "local": lambda: open_store(f"file://{tmp_path}/store"),
        "seaweed": lambda: open_store(
            f"s3://{BUCKET}/{uuid4()}", request.getfixturevalue("seaweed").settings(request_timeout=60)
        ),
    }
    return openers[kind]()
