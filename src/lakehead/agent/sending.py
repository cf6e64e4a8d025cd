"""All that sends an agent's spool, put together."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lakehead.agent.alerts import LOG, AlertKind, Alerts
from lakehead.agent.batch_attempts import BatchAttempts
from lakehead.agent.batch_delivery import BatchDelivery
from lakehead.agent.counts import AgentCounts
from lakehead.agent.deps import AgentDeps
from lakehead.agent.entry_sender import EntrySender
from lakehead.agent.gateway_choice import GatewayChoice
from lakehead.agent.parked import ParkedBatches
from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool import Spool
from lakehead.agent.token_pause import TokenPause
from lakehead.to_its_end import to_its_end

AFTER_ERROR_SECONDS = 5.0


@dataclass(slots=True)
class Sending:
    """Sends what waits and what is parked, and tells what an operator should know."""

    attempts: BatchAttempts
    sender: EntrySender
    parked: ParkedBatches

    @classmethod
    def of(
        cls, spool: Spool, settings: AgentSettings, deps: AgentDeps, *, alerts: Alerts, counts: AgentCounts
    ) -> "Sending":
        """Return what sends a spool. Raises `Misconfigured` for URLs, certificates or a token that cannot be right."""
        clock = deps.clock
        attempts = BatchAttempts(
            spool=spool,
            gateways=GatewayChoice(
                connections=[deps.connect(url, settings) for url in settings.gateways],
                agent_id=settings.agent_id,
                clock=clock,
                random=deps.random,
                backoff=settings.gateway_backoff,
                longest_seconds=settings.retry_after_seconds,
            ),
            token=TokenPause(
                token=deps.token, seconds=settings.pause_seconds, clock=clock, alerts=alerts, counts=counts
            ),
            authority=settings.authority,
            clock=clock,
            alerts=alerts,
            counts=counts,
        )
        delivery = BatchDelivery(spool=spool, attempts=attempts, alerts=alerts, counts=counts)
        return cls(
            attempts,
            EntrySender(delivery=delivery, settings=settings, random=deps.random),
            ParkedBatches(
                delivery=delivery,
                every_seconds=settings.offer_again_seconds,
                backoff=settings.batch_backoff,
                random=deps.random,
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send as long as the block runs, in the background. Then attempts without an answer are given up: the next
        start makes them again.
        """
        tasks = [
            asyncio.create_task(self._for_ever(self.sender.run), name="lakehead-agent-sender"),
            asyncio.create_task(self._for_ever(self.parked.run), name="lakehead-agent-parked"),
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await to_its_end(asyncio.gather(*tasks, return_exceptions=True))
            for connection in self.attempts.gateways.connections:
                await to_its_end(connection.close())

    async def _for_ever(self, run: Callable[[], Awaitable[None]]) -> None:
        """Run something that never ends, and again after an error that nobody foresaw."""
        while True:
            try:
                await run()
            except Exception as error:  # noqa: BLE001 - records must be sent all the same
                self.attempts.counts.unexpected_errors += 1
                self.attempts.alerts.tell(
                    AlertKind.UNEXPECTED_ERROR, f"Sending begins again. Please report this: {error!r}"
                )
                LOG.debug("Sending begins again.", exc_info=error)
            await self.attempts.clock.sleep(AFTER_ERROR_SECONDS)
