"""Everything at full length: `python -m tests.soak --hours 1`.

First the whole suite with all that `make test` leaves out: 20,000 seeds a scenario, kill loops at full length, every
matrix on every server, the JIT that users have, random examples. Then, until the time is over, round after round of
seeds that no round before has had and of the kill loops. What it did is printed, and kept in bench/RESULTS.md.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.servers import azurite
from tests.sim.hunt import hunt
from tests.sim.scenarios import SOUND
from tests.support.costs import Mechanism

SUITE_SEEDS = 20_000
ROUND_SEEDS = 2_000
KILL_LOOPS = (
    "tests/chaos/test_buffer_crashes.py",
    "tests/chaos/test_landing_races.py",
    "tests/chaos/test_consume_kills.py",
    "tests/chaos/test_agents.py",
    "tests/chaos/test_agent_spool.py",
)
RESULTS = Path(__file__).parents[1] / "bench" / "RESULTS.md"
HEADING = "# Soaks\n\nWhat `make soak` did and found, newest first.\n\n"


def main() -> int:
    """Exit 0 if nothing was found, 1 if something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="about how long; the suite itself takes most of one")
    parser.add_argument("--jobs", default="2", help="processes that run tests side by side")
    wanted = parser.parse_args()
    began = time.monotonic()
    with suppress(FileNotFoundError):  # without Node its tests skip, or fail in CI
        azurite.installed()  # here, for a test has no time for it
    done, findings = tested(["tests", "-n", wanted.jobs])
    seeds = SUITE_SEEDS
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        while time.monotonic() - began < wanted.hours * 3_600:
            for name in SOUND:
                broken = hunt(name, range(seeds, seeds + ROUND_SEEDS), pool)
                if broken is None:
                    done[Mechanism.SEEDS] += ROUND_SEEDS
                else:
                    findings.append(f"make sim SCENARIO={name} SEED={broken}")
            seeds += ROUND_SEEDS
            more, found = tested([*KILL_LOOPS])
            done += more
            findings += found
    line = summary(done, seeds, minutes=(time.monotonic() - began) / 60, findings=findings)
    print(line)
    keep(line)
    return int(bool(findings))


def tested(arguments: list[str]) -> tuple[Counter[str], list[str]]:
    """Run tests at full length: what was done how often, and the findings."""
    with TemporaryDirectory() as folder:
        costs = Path(folder) / "costs.json"
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", f"--costs-file={costs}", *arguments],
            env={**os.environ, "LAKEHEAD_SOAK": "1"},
            check=False,
        )
        spent: dict[str, tuple[int, float]] = json.loads(costs.read_text()) if costs.exists() else {}
    findings = [] if ran.returncode == 0 else [f"pytest {' '.join(arguments)}: exit code {ran.returncode}"]
    return Counter({name: int(count) for name, (count, _) in spent.items()}), findings


def summary(done: Counter[str], seeds: int, *, minutes: float, findings: list[str]) -> str:
    """One line of what was done, and of what was found."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    tests = sum(count for name, count in done.items() if name not in set(Mechanism))
    found = "; ".join(findings) or "nothing"
    return (
        f"- {when}, {os.cpu_count()} cores, {minutes:.0f} minutes: {tests:,} tests, {seeds:,} seeds a scenario "
        f"({done[Mechanism.SEEDS]:,} schedules), {done[Mechanism.KILLS]:,} kills, {done[Mechanism.LANDINGS]:,} "
        f"landings, {done[Mechanism.JVM]:,} JVMs, {done[Mechanism.SERVER]:,} servers; found: {found}"
    )


def keep(line: str) -> None:
    """Write it down, newest first, below the heading that stands last in the file."""
    before, heading, earlier = RESULTS.read_text().partition(HEADING)
    RESULTS.write_text(f"{before}{heading}{line}\n{earlier}")


if __name__ == "__main__":
    sys.exit(main())
