"""How many seeds the simulation tests run."""

import pytest

from tests.support.effort import effort


def pytest_addoption(parser: pytest.Parser) -> None:
    seeds = effort(2_000, soak=20_000)
    parser.addoption("--sim-seeds", type=int, default=seeds, help="seeds for each scenario that must hold")


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    return range(int(request.config.getoption("--sim-seeds")))
