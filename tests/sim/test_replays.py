"""A seed tells the same story wherever it is run."""

import json
import os
import subprocess
import sys

import pytest

from tests.sim.scenarios import KNOWN
from tests.support.effort import effort
from tests.support.simulation import simulate

SAMPLE = effort(10, soak=25)


@pytest.fixture(scope="module")
def traces_elsewhere() -> dict[str, list[str]]:
    """The traces of every scenario in a process with another hash seed: what depends on a set's order shows."""
    printed = subprocess.run(
        [sys.executable, "-c", _PRINT_TRACES, str(SAMPLE)],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    traces: dict[str, list[str]] = json.loads(printed)
    return traces


@pytest.mark.slow
@pytest.mark.timeout(300)  # the first waits for all of them
@pytest.mark.parametrize("name", KNOWN)
def test_a_seed_replays_to_the_same_trace_in_another_process(name: str, traces_elsewhere: dict[str, list[str]]) -> None:
    here = [simulate(KNOWN[name], seed).trace for seed in range(SAMPLE)]

    assert here == traces_elsewhere[name]
    assert len(set(here)) > SAMPLE // 2, "different seeds should differ"


_PRINT_TRACES = """
import json, sys
from tests.sim.scenarios import KNOWN
from tests.support.simulation import simulate
seeds = range(int(sys.argv[1]))
print(json.dumps({name: [simulate(scenario, seed).trace for seed in seeds] for name, scenario in KNOWN.items()}))
"""
