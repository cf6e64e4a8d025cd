"""What an operator of an agent should know: logged now and then, and shown for as long as it is so."""

import logging
from dataclasses import dataclass, field
from enum import StrEnum

from lakehead.clock import Clock
from lakehead.telemetry.limited_log import LimitedLog

LOG = logging.getLogger("lakehead.agent")


class AlertKind(StrEnum):
    """What happened."""

    PARKED = "parked"
    PAUSED = "paused"
    NO_GATEWAY = "no_gateway"
    DAMAGED = "damaged"
    SPOOL_FULL = "spool_full"
    SPOOL_UNUSABLE = "spool_unusable"
    DISK_FAILED = "disk_failed"
    FOREIGN_AUTHORITY = "foreign_authority"
    BOOT_QUARANTINED = "boot_quarantined"
    UNEXPECTED_ERROR = "unexpected_error"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that an operator should know."""

    kind: AlertKind
    text: str
    """What happened last, to what, and what to do."""

    times: int
    """How often it happened since it was last over, or since the start."""

    last_unix_ns: int
    """When it happened last, by the agent's clock."""


@dataclass(slots=True)
class Alerts:
    """The alerts of one agent."""

    clock: Clock
    _open: dict[AlertKind, Alert] = field(default_factory=dict, init=False)
    _log: LimitedLog = field(init=False)

    def __post_init__(self) -> None:
        self._log = LimitedLog(log=LOG, clock=self.clock, every_seconds=60.0)

    def tell(self, kind: AlertKind, text: str) -> None:
        """Show it, and log it unless another of its kind was logged within a minute."""
        before = self._open.get(kind)
        self._open[kind] = Alert(kind, text, before.times + 1 if before else 1, self.clock.now_ns())
        self._log.warning(_LOGGED[kind], text)

    def is_over(self, kind: AlertKind) -> None:
        """Do not show it any more, and log that it is over if it was so."""
        if self._open.pop(kind, None) is not None:
            LOG.info("%s: over.", _named(kind))

    def shown(self) -> tuple[Alert, ...]:
        """Return what is so now, or was so at any time if it can never be over."""
        return tuple(self._open.values())


def _named(kind: AlertKind) -> str:
    return kind.replace("_", " ").capitalize()


_LOGGED = {kind: f"{_named(kind)}: %s" for kind in AlertKind}
"""One text a kind, by which the log is limited."""
