"""How tests are shared out among processes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = """
import time
import pytest

@pytest.mark.parametrize("number", range(8))
def test_something(number):
    time.sleep(0.02)  # so that the other process has time to take the next test, if it may
"""


@pytest.mark.slow
def test_the_tests_of_a_file_run_in_one_process(tmp_path: Path) -> None:
    files = ["test_one.py", "test_two.py"]
    for file in files:
        (tmp_path / file).write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # none of our own settings, or they would start much more
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "tests.support.schedule", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    places = {(line.split()[0], line.split()[-1].partition("::")[0]) for line in _passed(ran)}

    assert sorted(file for _, file in places) == files, "each file has one process"


def _passed(ran: "subprocess.CompletedProcess[str]") -> list[str]:
    """Lines of the form `[gw0] [ 10%] PASSED file::test`."""
    return [line.strip() for line in ran.stdout.splitlines() if line.startswith("[gw") and " PASSED " in line]
