"""Where the time of a test run went is added up over its processes, and told beside its budget."""

import pytest

from tests.support.cost_report import COSTS, CostReport
from tests.support.costs import Mechanism


def report(name: str, seconds: float, **spent: tuple[int, float]) -> pytest.TestReport:
    costs = [(COSTS, {str(Mechanism[name]): list(cost) for name, cost in spent.items()})]
    return pytest.TestReport(
        nodeid=name,
        location=(name, 0, name),
        keywords={},
        outcome="passed",
        longrepr=None,
        when="call",
        duration=seconds,
        user_properties=costs,
    )


def test_seconds_and_counts_are_added_up_by_folder_and_mechanism() -> None:
    told = CostReport({"chaos": 100})

    told.pytest_runtest_logreport(report("tests/chaos/test_a.py::test", 40, KILLS=(3, 0.0), JVM=(1, 5.0)))
    told.pytest_runtest_logreport(report("tests/chaos/test_b.py::test", 20, KILLS=(4, 0.0)))
    told.pytest_runtest_logreport(report("tests/unit/test_c.py::test", 1))

    assert [(line.split(), over) for line, over in told.lines()] == [
        (["chaos", "2", "60", "100"], False),
        (["unit", "1", "1"], False),
        (["JVM", "starts", "1", "5"], False),
        (["kills", "7", "0"], False),
    ]


def test_what_is_over_its_budget_says_so() -> None:
    told = CostReport({"chaos": 30, Mechanism.JVM: 3})

    told.pytest_runtest_logreport(report("tests/chaos/test_a.py::test", 40, JVM=(1, 5.0)))

    assert [(line.endswith("over budget"), over) for line, over in told.lines()] == [(True, True), (True, True)]
