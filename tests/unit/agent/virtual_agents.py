"""Agents in virtual time, on a disk that forgets what was not flushed when the power is lost."""

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from lakehead.agent.agent import Agent
from lakehead.agent.deps import AgentDeps
from lakehead.agent.gateway_answers import Answered, TryAgain
from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import frame_sha256, peek_frame
from tests.sim.agent_disk import SimulatedSpoolDisk
from tests.support.simulation import World, simulate
from tests.unit.agent.agents import values
from tests.unit.agent.support import AGENT, TOKEN, accepted, error

T = TypeVar("T")

HOUR = 3600.0
VIRTUAL_SPOOL = SpoolSettings(batch_seconds=1.0, reserve_bytes=0)


def in_virtual_time(scenario: Callable[[World], Coroutine[Any, Any, None]], *, seed: int = 1) -> None:
    """Run a scenario, in which hours take no time."""
    report = simulate(scenario, seed)
    if report.failure is not None:
        raise report.failure


class VirtualGateway:
    """A gateway that accepts, unless a test has said something else about an identity."""

    def __init__(self, world: World, name: str = "gateway") -> None:
        self.name = name
        self.world = world
        self.asked: list[tuple[float, BatchIdentity]] = []
        """When it was asked, and about what."""

        self.accepted: dict[BatchIdentity, bytes] = {}
        self.answer: Callable[[BatchIdentity, bytes], httpx.Response | None] = lambda _, __: None
        """What it answers to a batch; None: that it is accepted."""

    async def post(self, body: bytes, token: str) -> Answered | TryAgain:
        assert token == TOKEN
        await self.world.clock.sleep(0.01)
        identity = peek_frame(body).identity
        self.asked.append((self.world.clock.monotonic(), identity))
        told = self.answer(identity, body)
        if told is None:
            told = accepted(httpx.Request("POST", "http://gateway", content=body))
            self.accepted[identity] = body
        return Answered(told.status_code, told.content, told.headers.get("Retry-After", ""))

    async def close(self) -> None:
        pass

    def values(self) -> list[float]:
        """The values of all samples that it accepted."""
        return sorted(value for body in self.accepted.values() for value in values(body))


def virtual_agent(
    world: World, disk: SimulatedSpoolDisk, *gateways: VirtualGateway, spool: SpoolSettings = VIRTUAL_SPOOL
) -> Agent:
    ways = {f"http://{each.name}": each for each in gateways}
    settings = AgentSettings(agent_id=AGENT, gateways=tuple(ways), spool=spool)
    deps = AgentDeps(
        token=TOKEN,
        clock=world.clock,
        ids=world.ids,
        random=world.random,
        connect=lambda url, _: ways[url],
        open_disk=lambda _: _opened(disk),
        run_in_thread=_at_once,
    )
    return Agent(settings, deps)


@contextmanager
def _opened(disk: SimulatedSpoolDisk) -> Iterator[SimulatedSpoolDisk]:
    disk.flush_names()  # as whoever opens a spool's folder does
    yield disk


async def _at_once(function: Callable[[], T], /) -> T:
    return function()


def conflict(body: bytes, resolution: str = "") -> httpx.Response:
    """What a gateway answers if another frame was accepted under the identity."""
    return error(409, "identity_conflict", submitted_frame_sha256=frame_sha256(body), resolution=resolution)
