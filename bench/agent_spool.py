"""Parts of the agent's benchmark about its spool: how fast samples get there, by OTLP and by the Python API."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import uvloop

from bench.agent_floor import FloorFile, parse, read
from bench.agent_processes import AgentBench, Receiver, Turn, disk_folder
from bench.agent_samples import RECORDS, GivenSamples, given_samples
from bench.buffer_support import percentile
from bench.kept_results import KeptResults
from bench.server_process import idle_seconds, idle_share, spread
from lakehead.agent.agent import Agent
from lakehead.agent.deps import AgentDeps
from lakehead.agent.settings import AgentSettings

TURNS = 5
CONNECTIONS, BODIES = 8, 300
NEW_BODIES, NEW_TURNS = 100, 3
CALLERS, CALLS = 8, 200
TARGET = 0.5


def otlp(bench: AgentBench, results: KeptResults) -> None:
    """Samples a second by OTLP, of an agent and of floors in turns."""
    servers: dict[str, Receiver] = {
        "agent": bench.agent(),
        "floor that reads each point": bench.floor("read"),
        "floor that only parses": bench.floor("parse"),
    }
    agent, floor, bare = servers
    turns = _turns(bench, servers, TURNS, bodies=BODIES)
    for name in servers:
        results.tell(f"OTLP, {name}: {_told([turn[name] for turn in turns])}")
    results.judge("agent.vs_floor.otlp", _ratio(turns, agent, floor), ">=", TARGET)
    results.tell(f"OTLP, beside the floor that only parses: {_ratio(turns, agent, bare):.2f} of its rate")
    known = {name: servers[name] for name in (agent, floor)}
    turns = _turns(bench, known, NEW_TURNS, bodies=NEW_BODIES, new_series=True)
    for name in known:
        results.tell(f"OTLP, only series that were never seen, {name}: {_told([turn[name] for turn in turns])}")
    results.tell(f"OTLP, only series that were never seen: {_ratio(turns, agent, floor):.2f} of the floor's rate")


def _turns(
    bench: AgentBench, servers: dict[str, Receiver], count: int, *, bodies: int, new_series: bool = False
) -> list[dict[str, Turn]]:
    """Turns of each server, the order of which changes; the first, which warms up, is left out."""
    return [
        {
            name: bench.turn(server, connections=CONNECTIONS, bodies=bodies, new_series=new_series)
            for name, server in (servers.items() if number % 2 else reversed(servers.items()))
        }
        for number in range(count + 1)
    ][1:]


def _told(turns: Sequence[Turn]) -> str:
    answers = [seconds for turn in turns for seconds in turn.loaded.latencies]
    answered = statistics.median(turn.samples / turn.loaded.seconds for turn in turns)
    return (
        f"{spread([turn.rate for turn in turns])} samples/s, {answered:,.0f} up to the last answer; answers p50 "
        f"{percentile(answers, 50) * 1e3:,.0f} ms, p99 {percentile(answers, 99) * 1e3:,.0f} ms; "
        f"{statistics.median(turn.cpu_us for turn in turns):.2f} µs CPU a sample, the clients at "
        f"{max(turn.loaded.client_cpu for turn in turns):.0%} of a core, the machine "
        f"{statistics.median(turn.loaded.idle for turn in turns):.0%} idle"
    )


def _ratio(turns: Sequence[Mapping[str, "Turn | _Calls"]], one: str, other: str) -> float:
    return statistics.median(turn[one].rate / turn[other].rate for turn in turns)


@dataclass(frozen=True, slots=True)
class _Calls:
    """What calls in this process cost."""

    seconds: float
    cpu_seconds: float
    idle: float

    @property
    def rate(self) -> float:
        """Samples a second."""
        return CALLS * RECORDS / self.seconds


def python(results: KeptResults) -> None:
    """Samples a second by the Python API, and of floors in the same process, in turns."""
    with disk_folder() as folder:
        settings = AgentSettings(
            agent_id="bench", gateways=("http://127.0.0.1:9",), spool_folder=str(folder / "spool"), pause_seconds=600
        )
        file = FloorFile(folder / "floor")
        turns = uvloop.run(_python_turns(Agent(settings, AgentDeps(token="none")), file))
        file.close()
    for name in turns[0]:
        results.tell(f"Python, {name}: {_told_calls([turn[name] for turn in turns])}")
    for name, how in (("python", "tuples"), ("python_arrow", "Arrow")):
        ratio = _ratio(turns, f"agent, {how}", "floor that reads each point")
        results.judge(f"agent.vs_floor.{name}", ratio, ">=", TARGET)
        bare = _ratio(turns, f"agent, {how}", "floor that only parses")
        packed = _ratio(turns, f"agent, {how}", "floor that only packs tuples")
        results.tell(f"Python, {how}: {bare:.2f} of a floor that only parses, {packed:.2f} of one that only packs")


async def _python_turns(agent: Agent, file: FloorFile) -> list[dict[str, _Calls]]:
    pack = msgspec.msgpack.Encoder().encode

    async def read_and_append(given: GivenSamples) -> None:
        read(given.otlp)
        await file.append(given.otlp)

    async def parse_and_append(given: GivenSamples) -> None:
        parse(given.otlp)
        await file.append(given.otlp)

    async def seal() -> None:
        await agent.spool.seal_now()

    async with agent:
        ways: dict[str, tuple[Callable[[GivenSamples], Awaitable[object]], Callable[[], Awaitable[object]]]] = {
            "agent, tuples": (lambda given: agent.add_samples(given.plain), seal),
            "agent, Arrow": (lambda given: agent.add_samples(given.arrow), seal),
            "floor that reads each point": (read_and_append, file.empty),
            "floor that only parses": (parse_and_append, file.empty),
            "floor that only packs tuples": (lambda given: file.append(pack(given.plain)), file.empty),
        }
        samples = given_samples()
        return [
            {
                name: await _calls(samples, *way)
                for name, way in (ways.items() if number % 2 else reversed(ways.items()))
            }
            for number in range(TURNS + 1)
        ][1:]  # the first one warms up


async def _calls(
    samples: Sequence[GivenSamples],
    give: Callable[[GivenSamples], Awaitable[object]],
    settle: Callable[[], Awaitable[object]],
) -> _Calls:
    """So many calls by some tasks, each of which waits for its own."""
    left = iter(range(CALLS))

    async def call_in_turn(numbers: Iterator[int]) -> None:
        for number in numbers:
            await give(samples[number % len(samples)])

    idle, cpu, began = idle_seconds(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(call_in_turn(left) for _ in range(CALLERS)))
    await settle()
    took = time.perf_counter() - began
    return _Calls(took, time.process_time() - cpu, idle_share(idle, took))


def _told_calls(turns: Sequence[_Calls]) -> str:
    each = statistics.median(turn.cpu_seconds for turn in turns) / (CALLS * RECORDS) * 1e6
    idle = statistics.median(turn.idle for turn in turns)
    return f"{spread([turn.rate for turn in turns])} samples/s; {each:.2f} µs CPU a sample, the machine {idle:.0%} idle"
