"""The part of the agent's benchmark that is about memory: a soak in which the gateway is down half of the time."""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bench.agent_processes import AgentBench
from bench.agent_samples import RECORDS
from bench.kept_results import KeptResults
from bench.server_process import Server, watched_memory

PER_SECOND, CONNECTIONS = 20, 4
UP_SECONDS = DOWN_SECONDS = 6.0
WARM_UP_SECONDS, HALF_SECONDS = 24, 60
"""Whole numbers of times that the gateway is down and up."""

LOAD_SECONDS = 6
"""What clients make at once: their requests are in memory."""


def memory(bench: AgentBench, results: KeptResults) -> None:
    """What an agent holds while it takes samples and its gateway comes and goes: in the second half, and the first."""
    bench.authority()
    agent = bench.agent()
    most_waiting = 0.0

    def load(seconds: int) -> None:
        nonlocal most_waiting
        for _ in range(seconds // LOAD_SECONDS):
            bench.turn(agent, connections=CONNECTIONS, bodies=PER_SECOND * LOAD_SECONDS, per_second=PER_SECOND)
            most_waiting = max(most_waiting, agent.counts()["spool_batches"])

    with _coming_and_going(bench) as gateway:
        load(WARM_UP_SECONDS)
        with watched_memory(agent) as held:
            halves, peaks = [], []
            for _ in range(2):
                held.clear()
                load(HALF_SECONDS)
                halves.append(statistics.median(held))
                peaks.append(max(held))
    accepted = agent.counts()["accepted_batches_total"]
    first, second = halves
    results.tell(
        f"{2 * HALF_SECONDS} s with {PER_SECOND * RECORDS:,} samples/s, the gateway down for {gateway.down_share:.0%}: "
        f"{first:.0f} MiB in the first half, {second:.0f} MiB in the second (PSS), at most {max(peaks):.0f} MiB; "
        f"{accepted:,.0f} batches were accepted, {most_waiting:,.0f} waited at most"
    )
    if not accepted or not most_waiting:
        raise RuntimeError("The gateway was never up, or never down.")
    results.judge("agent.memory_growth", second / first, "<=", 1.1)


@dataclass
class _ComingAndGoing:
    """A gateway that is up, and down, for some seconds each."""

    bench: AgentBench
    ended: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    _up_seconds: float = 0.0
    _down_seconds: float = 0.0

    @property
    def down_share(self) -> float:
        return self._down_seconds / (self._up_seconds + self._down_seconds)

    def run(self) -> None:
        """Go on until the end. To stop and to start takes a second or two, in which it is down too."""
        gateway: Server | None = None
        went_down = time.monotonic()
        start_seconds = 0.0
        try:
            while not self.ended.is_set():
                self.ended.wait(max(0.0, DOWN_SECONDS - (time.monotonic() - went_down) - start_seconds))
                starts = time.monotonic()
                gateway = self.bench.gateway()
                came_up = time.monotonic()
                start_seconds = came_up - starts
                self._down_seconds += came_up - went_down
                self.ended.wait(UP_SECONDS)
                went_down = time.monotonic()
                self._up_seconds += went_down - came_up
                gateway.end()
        except Exception as error:  # noqa: BLE001 - told by the thread that measures
            self.error = error
        finally:
            if gateway is not None:
                gateway.end()


@contextmanager
def _coming_and_going(bench: AgentBench) -> Iterator[_ComingAndGoing]:
    gateway = _ComingAndGoing(bench)
    thread = threading.Thread(target=gateway.run)
    thread.start()
    try:
        yield gateway
    finally:
        gateway.ended.set()
        thread.join()
    if gateway.error is not None:
        raise gateway.error
