"""Four agents and two gateways on an S3 server that fails, each killed and stopped at random while callers push."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.chaos.agent_callers import Caller, Calls, Sky
from tests.chaos.agent_checker import Given, faults, read_stored
from tests.faults.proxy import Fault, Weather, served
from tests.servers.ports import free_ports
from tests.servers.seaweed import Seaweed
from tests.support.agents import AgentProcess, agent_config
from tests.support.async_tests import run_bounded
from tests.support.costs import Mechanism, add
from tests.support.effort import effort
from tests.support.gateways import GatewayAuthority, GatewayProcess, gateway_config
from tests.support.serving import ServingProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(effort(300, soak=5_400))]

AGENTS, GATEWAYS = 4, 2
ROUNDS = effort(4, soak=150)
"""In each, every agent and every gateway is killed once, and stopped once."""

CALLERS = 2
"""Of each agent."""

STORE_SECONDS, ATTEMPT_SECONDS = 5.0, 8.0
"""How long a gateway waits for one answer of the store, and an agent for one of a gateway."""

WEATHER = Weather(
    seed=18,
    chances={
        Fault.UNAVAILABLE: 0.02,
        Fault.UNAVAILABLE_APPLIED: 0.02,
        Fault.RESET: 0.02,
        Fault.RESET_APPLIED: 0.02,
        Fault.CONFLICT: 0.01,
        Fault.TIMEOUT_APPLIED: 0.002,
        Fault.TIMEOUT_APPLIED_LATER: 0.002,
    },
)


@dataclass
class Deployment:
    """Agents and gateways, and the proxy in front of the store."""

    authority: GatewayAuthority
    sky: Sky
    gateways: list[GatewayProcess]
    agents: list[AgentProcess]

    def start(self, process: ServingProcess) -> None:
        if isinstance(process, GatewayProcess):
            self.sky.starting += 1
        try:
            process.start()
        finally:
            if isinstance(process, GatewayProcess):
                self.sky.starting -= 1

    async def kill(self, victim: ServingProcess, random: Random) -> None:
        await asyncio.to_thread(victim.kill)
        add(Mechanism.KILLS)
        await asyncio.sleep(random.choice([0, 0, 0.3]))
        await asyncio.to_thread(self.start, victim)

    async def disturb(self, victims: list[ServingProcess], calls: Calls, random: Random) -> None:
        """Kill each once, and stop each once, in any order. When, goes by how much callers were told meanwhile."""
        blows = [(victim, is_killed) for victim in victims for is_killed in (True, False)]
        random.shuffle(blows)
        for victim, is_killed in blows:
            await calls.until_more(random.randrange(1, 25))
            if is_killed:
                await self.kill(victim, random)
            else:
                victim.pause()
                await asyncio.sleep(random.choice([0.1, 0.4, 1.0]))
                victim.resume()

    def stop(self) -> None:
        """Let the agents send all that they have, and stop them. Nothing is left then."""
        self.sky.starting += 1
        for agent in self.agents:
            told = agent.flush()
            assert told["accepted"], told
            assert agent.terminate() == 0, agent.said
            assert set(agent.left().values()) == {0}, agent.left()


@contextmanager
def deployed(folder: Path, seaweed: Seaweed) -> Iterator[Deployment]:
    sky = Sky(seaweed.endpoint, WEATHER)
    with served(sky.handle) as endpoint:
        authority = GatewayAuthority(folder, seaweed)
        env = {**authority.env, "AWS_ENDPOINT_URL": endpoint}
        made = Deployment(authority, sky, [], [])
        ports = free_ports(GATEWAYS)
        try:
            for number, port in enumerate(ports):
                config = gateway_config(
                    folder / f"gateway-{number}",
                    authority.url,
                    ingest={"requests_per_second": None},
                    ingest_listener={"port": port},
                    store_seconds=STORE_SECONDS,
                )
                made.gateways.append(GatewayProcess(config, env, folder / f"gateway-{number}.log"))
                made.start(made.gateways[-1])
            for number in range(AGENTS):
                place = folder / f"agent-{number}"
                listener = {"port": None, "unix_socket": str(place / "s")} if number == 3 else {"port": 0}
                config = agent_config(
                    place,
                    f"agent-{number}",
                    authority.add_token(f"agent-{number}"),
                    [f"http://127.0.0.1:{port}" for port in ports],
                    listener=listener,
                    batch_seconds=0.2,
                    attempt_seconds=ATTEMPT_SECONDS,
                )
                made.agents.append(AgentProcess(config, {}, folder / f"agent-{number}.log").start())
            yield made
        finally:
            sky.starting += 1
            for process in (*made.agents, *made.gateways):
                process.kill()


def test_what_agents_answered_is_accepted_once_though_they_and_gateways_are_killed(
    tmp_path: Path, seaweed: Seaweed
) -> None:
    random = Random(18)
    with deployed(tmp_path, seaweed) as deployment:
        callers = [
            Caller(agent, f"{number}-{each}", random)
            for number, agent in enumerate(deployment.agents)
            for each in range(CALLERS)
        ]
        given = Given()

        async def disturbed() -> None:
            stop, calls = asyncio.Event(), Calls(given)
            pushing = [asyncio.create_task(caller.push(calls, stop)) for caller in callers]
            await asyncio.gather(
                deployment.disturb([*deployment.agents], calls, random),
                deployment.disturb([*deployment.gateways], calls, random),
            )
            stop.set()
            await asyncio.gather(*pushing)

        async def check() -> None:
            assert faults(given, await read_stored(deployment.authority.store())) == []

        for _ in range(ROUNDS):
            run_bounded(disturbed())
        deployment.stop()
        run_bounded(check())
