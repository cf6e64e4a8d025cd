"""Scenarios that must hold do, and those that are broken on purpose are caught."""

import os
import subprocess
import sys

import pytest

from tests.sim.buffer_scenarios import BUFFER_BROKEN
from tests.sim.hunt import hunt
from tests.sim.landing_scenarios import LANDING_BROKEN
from tests.sim.scenarios import CAUGHT_WITH, KNOWN, SOUND
from tests.sim.storage_scenarios import STORAGE_BROKEN
from tests.sim.world import simulate

CATCH_WITHIN = 1_000
SAMPLE = 25


@pytest.mark.timeout(600)  # 20,000 seeds keep every core busy for a minute or more: how long is the machine's affair
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_scenario_holds_under_every_seed(name: str, seeds: range) -> None:
    report = hunt(name, seeds)

    assert report is None, f"make sim SCENARIO={name} SEED={report.seed}: {report.failure!r}"


@pytest.mark.parametrize("name", STORAGE_BROKEN)
def test_a_broken_scenario_is_caught(name: str) -> None:
    report = hunt(name, range(CATCH_WITHIN))

    assert report is not None
    assert isinstance(report.failure, CAUGHT_WITH)


@pytest.mark.slow
@pytest.mark.parametrize("name", LANDING_BROKEN)
def test_a_shorter_landing_protocol_is_caught(name: str) -> None:
    report = hunt(name, range(20 * CATCH_WITHIN))

    assert report is not None
    assert isinstance(report.failure, CAUGHT_WITH)


@pytest.mark.parametrize("name", BUFFER_BROKEN)
def test_a_shorter_queue_protocol_is_caught(name: str) -> None:
    report = hunt(name, range(CATCH_WITHIN))

    assert report is not None
    assert isinstance(report.failure, CAUGHT_WITH)


@pytest.mark.parametrize("name", KNOWN)
def test_a_seed_replays_to_the_same_trace_in_another_process(name: str) -> None:
    here = [simulate(KNOWN[name], seed).trace for seed in range(SAMPLE)]

    # Another hash seed: whatever depends on the order of a set shows.
    there = subprocess.run(
        [sys.executable, "-c", _PRINT_TRACES, name, str(SAMPLE)],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.split()

    assert here == there
    assert len(set(here)) > SAMPLE // 2, "different seeds should differ"


_PRINT_TRACES = """
import sys
from tests.sim.scenarios import KNOWN
from tests.sim.world import simulate
for seed in range(int(sys.argv[2])):
    print(simulate(KNOWN[sys.argv[1]], seed).trace)
"""
