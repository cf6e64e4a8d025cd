"""Opens an agent by its configuration, with its receivers. Nothing here starts a JVM."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from lakehead.agent.agent import Agent
from lakehead.agent.deps import AgentDeps
from lakehead.agent.metrics import AgentMetrics
from lakehead.agent.receive.http_app import ReceiverApp
from lakehead.agent.receive.http_server import ReceiverServer
from lakehead.agent.receive.receiver_settings import ListenerSettings, ReceiverSettings
from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.agent.tls_files import TlsFiles
from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured
from lakehead.run.config.agent_config import AgentConfig


@dataclass(frozen=True)
class AgentWiring:
    """An agent by its configuration."""

    config: AgentConfig
    environment: Mapping[str, str] = field(repr=False)
    clock: Clock = field(default_factory=SystemClock)

    async def serve(self, stop: asyncio.Event, ready: Callable[[Agent, ReceiverServer], None]) -> None:
        """Take records and send them until `stop` is set; `ready` is called when the agent listens.

        At the end requests under way are answered; what was not accepted stays in the spool. Raises `Misconfigured`
        if the agent cannot run as it is configured, and `Unavailable` if the disk does not let it.
        """
        async with AsyncExitStack() as opened:
            agent = await opened.enter_async_context(self.agent())
            metrics = AgentMetrics()
            metrics.watch_agent(agent.counts, agent.status)
            app = ReceiverApp(
                recorder=agent, agent=agent, metrics=metrics, clock=self.clock, settings=self.receiver_settings()
            )
            opened.callback(app.close)
            server = await opened.enter_async_context(ReceiverServer(app, self.listener_settings()))
            ready(agent, server)
            ended, stopped = asyncio.create_task(server.wait()), asyncio.create_task(stop.wait())
            try:
                await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    ended.result()
            finally:
                for task in (ended, stopped):
                    task.cancel()
                await asyncio.gather(ended, stopped, return_exceptions=True)

    def agent(self) -> Agent:
        """Return the agent. Raises `Misconfigured`, also if there is no token: better now than when records wait."""
        try:
            self.config.token.resolve(self.environment)
        except Misconfigured as error:
            raise Misconfigured(
                f"{error} Make one at the gateway: lakehead gateway token add CONFIG --agent {self.config.agent_id}"
            ) from None
        return Agent(
            self.agent_settings(),
            AgentDeps(token=partial(self.config.token.resolve, self.environment), clock=self.clock),
        )

    def agent_settings(self) -> AgentSettings:
        """What is kept on disk, and how it is sent."""
        config = self.config
        return AgentSettings(
            agent_id=config.agent_id,
            gateways=config.gateways,
            spool_folder=config.spool_folder,
            authority=config.authority,
            tls=TlsFiles(ca_file=config.tls.ca_file, cert_file=config.tls.cert_file, key_file=config.tls.key_file),
            spool=SpoolSettings(
                spool_bytes=config.spool_bytes,
                spool_entries=config.spool_entries,
                parked_bytes=config.parked_bytes,
                batch_seconds=config.batch_seconds,
                batch_records=config.batch_records,
                batch_bytes=config.batch_bytes,
                dedupe_seconds=config.dedupe_seconds,
                dedupe_requests=config.dedupe_requests,
            ),
            in_flight=config.in_flight,
            attempt_seconds=config.attempt_seconds,
            pause_seconds=config.pause_seconds,
            offer_again_seconds=config.offer_again_seconds,
        )

    def listener_settings(self) -> ListenerSettings:
        """Where programs send to."""
        config = self.config.listener
        return ListenerSettings(
            host=config.host, port=config.port, unix_socket=config.unix_socket, allow_remote=config.allow_remote
        )

    def receiver_settings(self) -> ReceiverSettings:
        """Whose requests are taken."""
        config = self.config.listener
        return ReceiverSettings(
            hosts=(config.host, *config.hosts),
            origins=config.origins,
            body_bytes=config.body_bytes,
            bytes_in_flight=config.bytes_in_flight,
        )
