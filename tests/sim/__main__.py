"""Run scenarios under many seeds: `python -m tests.sim --seeds 20000`, or replay one: `--scenario name --replay 7`."""

import argparse
import gc
import sys
import time
import traceback

from tests.sim.scenarios import BROKEN, SOUND
from tests.sim.world import Report, Scenario, simulate

COLLECT_EVERY = 500
PROGRESS_SECONDS = 2.0


def hunt(name: str, scenario: Scenario, seeds: range) -> Report | None:
    """The first seed that breaks the scenario, telling how far it has got meanwhile."""
    began = told = time.monotonic()
    gc.disable()  # a seed leaves little behind; collecting now and then is faster
    try:
        for done, seed in enumerate(seeds, 1):
            report = simulate(scenario, seed)
            if report.failure is not None:
                return report
            if done % COLLECT_EVERY == 0:
                gc.collect()
                if (now := time.monotonic()) - told > PROGRESS_SECONDS:
                    told = now
                    print(f"  {name}: {done:,} of {len(seeds):,} seeds", file=sys.stderr)
    finally:
        gc.enable()
    rate = len(seeds) / (time.monotonic() - began)
    print(f"{name}: {len(seeds):,} seeds, nothing found ({rate:,.0f} seeds a second)")
    return None


def tell(report: Report) -> None:
    """The story of a seed."""
    print("\n".join(report.story))
    print(f"seed {report.seed}: trace {report.trace}, {report.steps} steps, {report.seconds:.3f} simulated seconds")
    if report.failure is not None:
        print("".join(traceback.format_exception(report.failure)), end="")


def main() -> int:
    """Exit 0 if nothing was found, 1 if something was."""
    known = {**SOUND, **BROKEN}
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds, from 0 on")
    parser.add_argument("--scenario", choices=sorted(known), help="one scenario (default: all that must hold)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this seed alone and tell its story")
    wanted = parser.parse_args()
    chosen = {wanted.scenario: known[wanted.scenario]} if wanted.scenario else SOUND
    if wanted.replay is not None:
        replayed = [simulate(scenario, wanted.replay) for scenario in chosen.values()]
        for each in replayed:
            tell(each)
        return int(any(each.failure for each in replayed))
    found = 0
    for name, scenario in chosen.items():
        if (report := hunt(name, scenario, range(wanted.seeds))) is not None:
            found += 1
            print(f"{name}: seed {report.seed} breaks it: {report.failure!r}")
            print(f"  replay: make sim SCENARIO={name} SEED={report.seed}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
