"""Tells at the end of a run where its time went: by folder, and by what tests do besides their own work.

Each process adds up what its tests cost and sends it along with their reports; the one that prints has a budget beside
each figure. Over budget is a warning: a machine may be slow, but a suite that grows is seen to grow.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.costs import Mechanism, taken
from tests.support.effort import SOAKING

COSTS = "costs"

BUDGETS: dict[str, int] = {
    "unit": 70,
    "contract": 160,
    "sim": 130,
    "integration": 700,
    "chaos": 300,
    # Part of the folders' seconds:
    Mechanism.JVM: 120,
    Mechanism.SERVER: 60,
    Mechanism.SEEDS: 110,
}
"""Seconds that `make test` may spend, added over its processes."""

_folders: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
_mechanisms: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs-file", type=Path, help="write count and seconds of each folder and mechanism, as JSON")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Send along what was spent since the last report."""
    item.user_properties[:] = [(name, value) for name, value in item.user_properties if name != COSTS]
    if spent := taken():
        item.user_properties.append((COSTS, {str(mechanism): list(cost) for mechanism, cost in spent.items()}))
    yield


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    folder = report.nodeid.split("/")[1] if report.nodeid.startswith("tests/") else "others"
    _folders[folder][0] += report.when == "call"
    _folders[folder][1] += report.duration
    for name, spent in report.user_properties:
        if name == COSTS:
            costs: dict[str, tuple[int, float]] = dict(spent)  # type: ignore[call-overload] # our own, as it was sent
            for mechanism, (count, seconds) in costs.items():
                _mechanisms[mechanism][0] += count
                _mechanisms[mechanism][1] += seconds


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.option.costs_file:
        config.option.costs_file.write_text(json.dumps({**_folders, **_mechanisms}))
    if sum(seconds for _, seconds in _folders.values()) < 60:
        return  # a few tests have no budget
    terminalreporter.section("where the time went")
    terminalreporter.write_line(f"{'':16}{'count':>10}{'seconds':>10}{'budget':>10}")
    for name, (count, seconds) in [*sorted(_folders.items()), *sorted(_mechanisms.items())]:
        budget = None if SOAKING else BUDGETS.get(name)
        over = budget is not None and seconds > budget
        line = f"{name:16}{count:>10,.0f}{seconds:>10,.0f}{budget if budget is not None else '':>10}"
        terminalreporter.write_line(line + ("  over budget" if over else ""), yellow=over)
