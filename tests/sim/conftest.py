"""How many seeds the simulation tests run."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sim-seeds", type=int, default=20_000, help="seeds for each scenario that must hold")


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    return range(int(request.config.getoption("--sim-seeds")))
