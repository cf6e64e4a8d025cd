"""The token that an agent sends with, and the pause after a gateway refused it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from lakehead.agent.alerts import AlertKind, Alerts
from lakehead.agent.counts import AgentCounts
from lakehead.agent.gateway_connection import checked_token
from lakehead.clock import Clock
from lakehead.errors import LakeheadError


@dataclass(slots=True, kw_only=True)
class TokenPause:
    """The token, read again when it is refused. Making one reads it, and raises what that raises or `Misconfigured`."""

    token: str | Callable[[], str]
    seconds: float
    """For how long nothing is sent."""

    clock: Clock
    alerts: Alerts
    counts: AgentCounts
    _current: str = field(init=False, repr=False)
    _reason: str = field(default="", init=False)
    """Why the token does not count as good; empty if it does."""

    _ends: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self._current = self._read()

    @property
    def seconds_left(self) -> float:
        """For how long nothing is to be sent; 0 if there is no pause."""
        return max(0.0, self._ends - self.clock.monotonic())

    @property
    def reason(self) -> str:
        """Why there is a pause; empty if there is none."""
        return self._reason if self.seconds_left else ""

    def to_send_with(self) -> str:
        """Return the token. After a pause it is read again."""
        if self._reason:
            self._read_again()
        return self._current

    def refused(self, token: str, reason: str) -> None:
        """Note that a gateway refused a token, or its agent: pause, unless there is a pause or another token."""
        if token != self._current or self.seconds_left or self._read_again():
            return
        self._ends = self.clock.monotonic() + self.seconds
        self._reason = reason
        self.counts.pauses += 1
        self.alerts.tell(AlertKind.PAUSED, f"{reason} Nothing is sent for {self.seconds:g} s.")

    def worked(self) -> None:
        """Note that a gateway took the token."""
        if self._reason:
            self._reason, self._ends = "", float("-inf")
            self.alerts.is_over(AlertKind.PAUSED)

    def _read_again(self) -> bool:
        """Read the token, and return whether it is another than before. If it cannot be read, it stays the same."""
        try:
            found = self._read()
        except (LakeheadError, OSError) as error:
            self.alerts.tell(AlertKind.PAUSED, f"The token cannot be read again ({error}).")
            return False
        is_new, self._current = found != self._current, found
        return is_new

    def _read(self) -> str:
        return checked_token(self.token if isinstance(self.token, str) else self.token())
