"""Every kind of store, for the one suite that all of them must pass; and servers of queues."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from lakehead.storage.open_store import open_store
from lakehead.storage.port import Store
from tests.servers.azurite import CONTAINER, Azurite
from tests.servers.nats import NatsServer
from tests.servers.seaweed import BUCKET
from tests.servers.sqs import SqsServer

REMOTE_KINDS = ("seaweed", pytest.param("azurite", marks=pytest.mark.soak))
KINDS = ("memory", "local", *REMOTE_KINDS)


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    """A real server of Azure's blob storage for the whole run."""
    server = Azurite(tmp_path_factory.mktemp("azurite"))
    try:
        try:
            server.start()
        except FileNotFoundError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))  # on a laptop; CI has Node, and fails without
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def sqs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    """A real server of SQS for the whole run."""
    server = SqsServer(tmp_path_factory.mktemp("sqs"))
    try:
        try:
            server.start()
        except RuntimeError as error:  # it could not be installed
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A real NATS server for the whole run."""
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


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
        "azurite": lambda: open_store(f"az://{CONTAINER}/{uuid4()}", request.getfixturevalue("azurite").settings()),
    }
    return openers[kind]()
