"""Agents over gateways that a test scripts, with short times."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import httpx

from lakehead.agent.agent import Agent
from lakehead.agent.deps import AgentDeps
from lakehead.agent.gateway_connection import Connection, HttpConnection
from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.clock import Clock, SystemClock
from lakehead.retry import PollInterval
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame, peek_frame
from tests.unit.agent.support import AGENT, TOKEN

QUICK = PollInterval(first_seconds=0.001, cap_seconds=0.002)
QUICK_SPOOL = SpoolSettings(batch_seconds=0.005, reserve_bytes=4096)
FLUSH_SECONDS = 60.0


def agent(
    folder: Path,
    *gateways: httpx.AsyncBaseTransport,
    token: str | Callable[[], str] = TOKEN,
    clock: Clock | None = None,
    spool: SpoolSettings = QUICK_SPOOL,
    **changed: object,
) -> Agent:
    """An agent with a spool below a folder, and gateways that answer as they are told."""
    ways = {f"http://gateway-{number}": way for number, way in enumerate(gateways)}

    def connect(url: str, settings: AgentSettings) -> Connection:
        return HttpConnection(url, attempt_seconds=settings.attempt_seconds, transport=ways[url])

    times = {"gateway_backoff": QUICK, "batch_backoff": QUICK, "pause_seconds": 0.005}
    settings = AgentSettings(
        agent_id=AGENT,
        gateways=tuple(ways),
        spool_folder=str(folder / "spool"),
        spool=spool,
        **(times | changed),  # type: ignore[arg-type]  # whichever a test changes
    )
    return Agent(settings, AgentDeps(token=token, clock=clock or SystemClock(), random=Random(1), connect=connect))


def sample(value: float, metric: str = "up") -> tuple[int, str, dict[str, str], float]:
    return (1, metric, {}, value)


def values(body: bytes) -> list[float]:
    """The values of the samples in a frame."""
    found: list[float] = decode_frame(body).records.column("value").to_pylist()
    return found


def identities(bodies: Sequence[bytes]) -> list[BatchIdentity]:
    """The identities of frames, each once, in their order."""
    return list(dict.fromkeys(peek_frame(body).identity for body in bodies))


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that nothing tells of."""
    async with asyncio.timeout(FLUSH_SECONDS):
        while not holds():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.001)
