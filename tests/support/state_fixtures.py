"""Every server that can hold the state, for the one suite that all of them must pass."""

import os
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from lakehead.ids import RandomIds
from lakehead.state.opening import open_state
from lakehead.state.state import State
from tests.servers.mariadb import MariaDB
from tests.servers.postgres import Postgres
from tests.support.state_tools import PATIENT, HandClock

SERVERS = ("sqlite", "postgresql", "mariadb")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL for the whole run. It is never stopped or broken by a test; those start their own."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """A real MariaDB for the whole run. It is never stopped or broken by a test; those start their own."""
    server = MariaDB()
    try:
        try:
            server.start()
        except FileNotFoundError as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(error))  # on a laptop; CI installs it, and fails without
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session", params=SERVERS)
def state_server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def new_state_url(
    state_server: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], str]:
    """Makes new, empty databases."""
    makers: dict[str, Callable[[], Callable[[], str]]] = {
        "sqlite": lambda: lambda: f"sqlite:///{tmp_path_factory.mktemp('state') / 'state.db'}",
        "postgresql": lambda: request.getfixturevalue("postgres").database,
        "mariadb": lambda: request.getfixturevalue("mariadb").database,
    }
    return makers[state_server]()


@pytest.fixture(scope="session")
def state_url(new_state_url: Callable[[], str]) -> str:
    """One database for most tests, which keep apart by their tables."""
    return new_state_url()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def state(state_url: str, clock: HandClock) -> Iterator[State]:
    with open_state(state_url, clock, RandomIds(), settings=PATIENT) as opened:
        yield opened


@pytest.fixture
def table() -> str:
    """A table that no other test knows."""
    return str(uuid4())
