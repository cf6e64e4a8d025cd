"""How tests are shared out among processes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_tests_of_a_file_run_in_one_process() -> None:
    files = ["tests/unit/wire/test_queue_manifests.py", "tests/unit/storage/test_opening.py"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    places = {(line.split()[0], line.split()[-1].partition("::")[0]) for line in _passed(ran)}

    assert sorted(file for _, file in places) == sorted(files), "each file has one process"


def _passed(ran: "subprocess.CompletedProcess[str]") -> list[str]:
    """Lines of the form `[gw0] [ 10%] PASSED file::test`, of tests whose names have no space."""
    lines = [line.strip() for line in ran.stdout.splitlines() if line.startswith("[gw") and " PASSED " in line]
    return [line for line in lines if "::" in line.split()[-1]]
