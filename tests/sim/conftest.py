"""How many seeds the simulation tests run."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sim-seeds", type=int, help="seeds for each scenario that must hold")
