"""How much a gateway takes on at once: requests, and bytes of their bodies."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lakehead.gateway.error_codes import ErrorCode, Refusal
from lakehead.gateway.settings import IngestSettings


@dataclass(slots=True)
class Admitted:
    """A request that is under way, and the bytes that are reserved for its body."""

    agent_id: str
    reserved: int
    _admission: "Admission"

    def shrink(self, size: int) -> None:
        """Give back what the body turned out not to need."""
        if size < self.reserved:
            self._admission.give_back(self.agent_id, self.reserved - size)
            self.reserved = size


@dataclass(slots=True)
class Admission:
    """Admits requests as long as the limits are not reached."""

    settings: IngestSettings
    requests: int = field(default=0, init=False)
    """Requests under way."""

    bytes_held: int = field(default=0, init=False)
    """Bytes reserved for their bodies."""

    _by_agent: Counter[str] = field(default_factory=Counter, init=False)
    _bytes_by_agent: Counter[str] = field(default_factory=Counter, init=False)

    @contextmanager
    def admit(self, agent_id: str, body_bytes: int) -> Iterator[Admitted]:
        """Admit a request until the end of the `with`. Raises `Refusal` if there are too many, or too many bytes."""
        self._check(agent_id, body_bytes)
        admitted = Admitted(agent_id, body_bytes, self)
        self.requests += 1
        self.bytes_held += body_bytes
        self._by_agent[agent_id] += 1
        self._bytes_by_agent[agent_id] += body_bytes
        try:
            yield admitted
        finally:
            self.requests -= 1
            self.give_back(agent_id, admitted.reserved)
            self._by_agent[agent_id] -= 1
            if not self._by_agent[agent_id]:
                del self._by_agent[agent_id], self._bytes_by_agent[agent_id]

    def give_back(self, agent_id: str, size: int) -> None:
        """Hold so many bytes less for an agent."""
        self.bytes_held -= size
        self._bytes_by_agent[agent_id] -= size

    def _check(self, agent_id: str, body_bytes: int) -> None:
        settings = self.settings
        if self._by_agent[agent_id] >= settings.agent_requests:
            raise Refusal(
                ErrorCode.RATE_LIMITED,
                f"{settings.agent_requests} requests of this agent are under way. Wait until one is answered.",
                retry_after=1,
            )
        if self.requests >= settings.requests_in_flight or self.bytes_held + body_bytes > settings.bytes_in_flight:
            raise Refusal(
                ErrorCode.OVERLOADED,
                "The gateway is busy with other requests. Send the batch again later.",
                retry_after=settings.retry_after_seconds,
            )
        if self._bytes_by_agent[agent_id] + body_bytes > settings.agent_bytes:
            raise Refusal(
                ErrorCode.RATE_LIMITED,
                f"Requests of this agent with up to {settings.agent_bytes:,} bytes are under way. Wait until one is "
                "answered, and send Content-Length: a body without it counts as the largest.",
                retry_after=1,
            )
