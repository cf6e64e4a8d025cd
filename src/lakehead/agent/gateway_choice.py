"""Which of several gateways a batch is sent to: one that works until it fails, and then the next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from lakehead.agent.gateway_connection import Connection
from lakehead.clock import Clock
from lakehead.ids import Random
from lakehead.retry import PollInterval


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """How sending to a gateway goes."""

    name: str
    is_used: bool
    """Whether the next batch goes there, unless it is avoided."""

    avoided_seconds: float
    """For how long it is still avoided; 0 if it is not."""

    last_error: str
    """Why it failed last; empty if it answered since."""


@dataclass(slots=True, eq=False)
class ChosenGateway:
    """A gateway, and when it failed."""

    connection: Connection
    pauses: Iterator[float] | None = None
    """The next times for which it is avoided; None unless it failed and did not answer since."""

    failed_at: float = float("-inf")
    """The monotonic time at which its last failure was counted."""

    backs_off_until: float = float("-inf")
    told_until: float = float("-inf")
    """Until when it said that it wants nothing."""

    last_error: str = ""

    @property
    def avoided_until(self) -> float:
        """The monotonic time until which nothing is sent there."""
        return max(self.backs_off_until, self.told_until)


@dataclass(slots=True, kw_only=True)
class GatewayChoice:
    """Chooses gateways, and avoids those that failed for growing, jittered times."""

    connections: Sequence[Connection]
    agent_id: str
    """Agents begin with different gateways, each always with the same: a gateway with a spool knows its agents."""

    clock: Clock
    random: Random
    backoff: PollInterval
    longest_seconds: float
    """The longest that a gateway's own word (a Retry-After) is believed."""

    _gateways: list[ChosenGateway] = field(init=False)
    _used: int = field(init=False)

    def __post_init__(self) -> None:
        self._gateways = [ChosenGateway(each) for each in self.connections]
        self._used = int.from_bytes(sha256(self.agent_id.encode()).digest()[:8]) % len(self._gateways)

    @property
    def seconds_left(self) -> float:
        """How long every gateway is still avoided; 0 if one is not."""
        return max(0.0, min(each.avoided_until for each in self._gateways) - self.clock.monotonic())

    def choose(self, *, rather_not: ChosenGateway | None = None) -> ChosenGateway | None:
        """Return the gateway to send to, another than `rather_not` if there is one. None: all of them are avoided."""
        now = self.clock.monotonic()
        in_turn = self._gateways[self._used :] + self._gateways[: self._used]
        found = [each for each in in_turn if each.avoided_until <= now]
        others = [each for each in found if each is not rather_not]
        return next(iter(others or found), None)

    def answered(self, gateway: ChosenGateway) -> None:
        """Note that a gateway works. If it said before that it wants nothing for a while, that still holds."""
        gateway.pauses, gateway.last_error, gateway.backs_off_until = None, "", float("-inf")
        if self._gateways[self._used].pauses is not None:
            self._used = self._gateways.index(gateway)

    def failed(self, gateway: ChosenGateway, reason: str, *, begun: float, after_seconds: float = 0.0) -> None:
        """Avoid a gateway for a while, `after_seconds` at least, and use the next one.

        `begun` is the monotonic time of the attempt: several that were under way together count once.
        """
        gateway.last_error = reason
        now = self.clock.monotonic()
        if begun >= gateway.failed_at:
            gateway.failed_at = now
            gateway.pauses = gateway.pauses or self.backoff.pauses(self.random)
            gateway.backs_off_until = now + next(gateway.pauses)
        self.told_to_wait(gateway, after_seconds)
        if self._gateways[self._used] is gateway:
            self._used = (self._used + 1) % len(self._gateways)

    def told_to_wait(self, gateway: ChosenGateway, after_seconds: float) -> None:
        """Avoid a gateway for as long as it says, without holding anything against it."""
        if after_seconds > 0:
            wait = min(after_seconds, self.longest_seconds) + self.random.uniform(0, self.backoff.first_seconds)
            gateway.told_until = max(gateway.told_until, self.clock.monotonic() + wait)

    def status(self) -> tuple[GatewayStatus, ...]:
        """Return how sending to each of them goes."""
        now = self.clock.monotonic()
        return tuple(
            GatewayStatus(
                each.connection.name, number == self._used, max(0.0, each.avoided_until - now), each.last_error
            )
            for number, each in enumerate(self._gateways)
        )
