"""What an agent takes from its surroundings."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from lakehead.agent.gateway_connection import Connection, HttpConnection
from lakehead.agent.sealing import RunInThread
from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool_disk import SpoolDisk, open_local_spool_disk
from lakehead.clock import Clock, SystemClock
from lakehead.ids import Ids, Random, RandomIds, system_random


def connect(url: str, settings: AgentSettings) -> Connection:
    """Return the way to a gateway over the network. Raises `Misconfigured`."""
    return HttpConnection(url, attempt_seconds=settings.attempt_seconds, tls=settings.tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDeps:
    """What an agent takes from its surroundings."""

    token: str | Callable[[], str]
    """The agent's token at the gateways, or what reads it: it is read again after a gateway refused it."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    random: Random = field(default_factory=system_random)
    connect: Callable[[str, AgentSettings], Connection] = connect
    """Makes the way to the gateway with a URL."""

    open_disk: Callable[[Path], AbstractContextManager[SpoolDisk]] = open_local_spool_disk
    """Opens the folder of the spool."""

    run_in_thread: RunInThread = asyncio.to_thread
    """Runs what takes long, while others go on."""
