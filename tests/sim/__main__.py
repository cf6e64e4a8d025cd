"""Run scenarios with many seeds: `python -m tests.sim --seeds 20000`, or replay one: `--scenario name --replay 7`."""

import argparse
import multiprocessing
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor

from tests.sim.hunt import hunt
from tests.sim.scenarios import KNOWN, SOUND
from tests.support.simulation import Report, simulate


def print_report(report: Report) -> None:
    """Print the log of a seed."""
    print("\n".join(report.log))
    print(f"seed {report.seed}: trace {report.trace}, {report.steps} steps, {report.seconds:.3f} simulated seconds")
    if report.failure is not None:
        print("".join(traceback.format_exception(report.failure)), end="")


def main() -> int:
    """Return 0 if no seed breaks a scenario, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--scenario", choices=sorted(KNOWN), help="one scenario (default: all that must hold)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run only this seed and print its log")
    args = parser.parse_args()
    names = [args.scenario] if args.scenario else list(SOUND)
    if args.replay is not None:
        replayed = [simulate(KNOWN[name], args.replay) for name in names]
        for each in replayed:
            print_report(each)
        return int(any(each.failure for each in replayed))
    found = 0
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for name in names:
            if (seed := hunt(name, range(args.first, args.first + args.seeds), pool)) is not None:
                found += 1
                print(f"{name}: seed {seed} breaks it: {simulate(KNOWN[name], seed).failure!r}")
                print(f"  replay: make sim SCENARIO={name} SEED={seed}")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
