"""The agent for programs without asyncio."""

from lakehead.agent.agent import Agent
from lakehead.agent.deps import AgentDeps
from lakehead.agent.given_records import GivenRecords, checked_records, keyed_request
from lakehead.agent.settings import AgentSettings
from lakehead.agent.spool_entry import Spooled
from lakehead.agent.status import AgentStatus, Flushed
from lakehead.buffer.blocking_calls import BlockingCalls
from lakehead.wire.record_schemas import FrameKind


class BlockingAgent(BlockingCalls[Agent]):
    """An `Agent` with blocking calls. Use it in a `with` block.

    Several threads may use it at once. After a fork, make a new one.
    """

    def __init__(self, settings: AgentSettings, deps: AgentDeps) -> None:
        super().__init__(Agent(settings, deps), "lakehead-agent")

    def add_samples(self, records: GivenRecords, *, idempotency_key: str | None = None) -> Spooled:
        """Take samples, and return when they are on disk. Raises what `Agent.add_samples` does."""
        return self._add(FrameKind.SAMPLES, records, idempotency_key)

    def add_logs(self, records: GivenRecords, *, idempotency_key: str | None = None) -> Spooled:
        """Take log records, and return when they are on disk. Raises what `Agent.add_logs` does."""
        return self._add(FrameKind.LOGS, records, idempotency_key)

    def flush(self, timeout_seconds: float | None = None) -> Flushed:
        """Wait until all that was given before is accepted or parked. Raises what `Agent.flush` does."""
        return self._loop.call(self._wrapped.flush(timeout_seconds))

    def status(self) -> AgentStatus:
        """Return how the agent is."""
        return self._loop.call(self._status())  # on the loop, which may be changing it

    async def _status(self) -> AgentStatus:
        return self._wrapped.status()

    def _add(self, kind: FrameKind, records: GivenRecords, idempotency_key: str | None) -> Spooled:
        batch = checked_records(kind, records)  # in this thread, so that the loop goes on meanwhile
        return self._loop.call(self._wrapped.append(kind, batch, keyed_request(kind, idempotency_key, batch)))
