"""Four agents and two gateways on an S3 server that fails, each killed and stopped at random while callers push."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.chaos.agent_checker import Given, faults, read_stored
from tests.faults.proxy import Fault, Proxy, Request, Silence, Weather, served
from tests.servers.ports import free_ports
from tests.servers.seaweed import Seaweed
from tests.support.agent_requests import FORMS, AgentRequest
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

MOST_RECORDS = 12
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


class Sky(Proxy):
    """Between the gateways and their store. It is calm while a gateway starts: then nothing that it waits for fails."""

    starting = 0

    async def handle(self, request: Request) -> bytes | Silence:
        return await (self._forward(request) if self.starting else super().handle(request))


@dataclass
class Calls:
    """What callers push, and how many answers they got."""

    given: Given
    answers: int = 0
    _more: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def answered(self, request: AgentRequest) -> None:
        self.given.answered |= request.ids
        self.answers += 1
        async with self._more:
            self._more.notify_all()

    async def until_more(self, answers: int) -> None:
        """Wait for so many more answers."""
        enough = self.answers + answers
        async with self._more:
            await self._more.wait_for(lambda: self.answers >= enough)


@dataclass
class Caller:
    """Pushes requests in all forms to one agent, each until it is told that it is on disk."""

    agent: AgentProcess
    name: str
    random: Random
    numbers: Iterator[int] = field(default_factory=count)
    recent: list[AgentRequest] = field(default_factory=list)

    async def push(self, calls: Calls, stop: asyncio.Event) -> None:
        async with self.agent.client() as http:
            while not stop.is_set():
                request = self._request()
                calls.given.given |= request.ids
                await self._until_answered(http, request, calls)
                if self.recent and self.random.random() < 0.1:  # an answer that did not arrive
                    await self._until_answered(http, self.random.choice(self.recent[-50:]), calls)

    def _request(self) -> AgentRequest:
        number = next(self.numbers)
        ids = [f"{self.name}.{number}.{each}" for each in range(self.random.randint(1, MOST_RECORDS))]
        request = self.random.choice(FORMS)(ids)
        if request.may_be_sent_again:
            self.recent.append(request)
        return request

    async def _until_answered(self, http: httpx.AsyncClient, request: AgentRequest, calls: Calls) -> None:
        while True:
            try:
                response = await self.agent.post(http, request, seconds=self.random.choice([0.3, 5, 60]))
            except httpx.TransportError:
                if not request.may_be_sent_again:
                    return
                await asyncio.sleep(0.02)
                continue
            if response.is_success:
                await calls.answered(request)
                return
            assert response.status_code == 503, response.text
            assert response.headers["retry-after"]
            await asyncio.sleep(0.02)


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
