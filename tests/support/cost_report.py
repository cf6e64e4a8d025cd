"""Tells at the end of a run where its time went: by folder, and by what tests do besides their own work.

Each process adds up what its tests cost and sends it along with their reports; the one that prints has a budget beside
each figure. Over budget is a warning: a machine may be slow, but a suite that grows is seen to grow.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.costs import Mechanism, taken
from tests.support.effort import SOAKING

COSTS = "costs"
FEW_SECONDS = 60
"""A run of less than this has no budget: it is of some tests only."""

BUDGETS: dict[str, int] = {
    "unit": 180,
    "contract": 180,
    "sim": 290,
    "integration": 790,
    "chaos": 210,
    # Part of the folders' seconds:
    Mechanism.JVM: 60,
    Mechanism.SERVER: 50,
    Mechanism.COMMAND: 40,
    Mechanism.SEEDS: 280,
}
"""Seconds that `make test` may spend, added over its processes.

The folders have 1,650 together: on two cores that is less than 14 minutes, and installation, jars, lint and types take
the rest of the quarter of an hour.
"""


class CostReport:
    """Adds up what the tests of all processes cost."""

    def __init__(self, budgets: Mapping[str, int]) -> None:
        self._budgets = budgets
        self._folders: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        self._mechanisms: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = report.nodeid.split("/")[1] if report.nodeid.startswith("tests/") else "others"
        self._folders[folder][0] += report.when == "call"
        self._folders[folder][1] += report.duration
        for name, spent in report.user_properties:
            if name == COSTS:
                costs: dict[str, tuple[int, float]] = dict(spent)  # type: ignore[call-overload] # ours, as it was sent
                for mechanism, (count, seconds) in costs.items():
                    self._mechanisms[mechanism][0] += count
                    self._mechanisms[mechanism][1] += seconds

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if config.option.costs_file:
            config.option.costs_file.write_text(json.dumps({**self._folders, **self._mechanisms}))
        if self.seconds < FEW_SECONDS:
            return
        terminalreporter.section("where the time went")
        terminalreporter.write_line(f"{'':16}{'count':>10}{'seconds':>10}{'budget':>10}")
        for line, over in self.lines():
            terminalreporter.write_line(line, yellow=over)

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self._folders.values())

    def lines(self) -> Iterator[tuple[str, bool]]:
        """A line for each folder and mechanism, and whether it is over its budget."""
        for name, (count, seconds) in [*sorted(self._folders.items()), *sorted(self._mechanisms.items())]:
            budget = self._budgets.get(name)
            over = budget is not None and seconds > budget
            line = f"{name:16}{count:>10,.0f}{seconds:>10,.0f}{'' if budget is None else budget:>10}"
            yield line + ("  over budget" if over else ""), over


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs-file", type=Path, help="write count and seconds of each folder and mechanism, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CostReport({} if SOAKING else BUDGETS))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Send along what was spent since the last report."""
    item.user_properties[:] = [(name, value) for name, value in item.user_properties if name != COSTS]
    if spent := taken():
        item.user_properties.append((COSTS, {str(mechanism): list(cost) for mechanism, cost in spent.items()}))
    yield
