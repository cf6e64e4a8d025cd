"""A local store in a folder of its own."""

from pathlib import Path

import pytest

from lakehead.storage.local_store import LocalStore
from tests.unit.storage.local_folder import open_local


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return open_local(root)
