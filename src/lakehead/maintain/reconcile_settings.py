"""Settings of the reconciler, each with its default and its unit."""

from dataclasses import dataclass
from typing import Literal

from lakehead.errors import Misconfigured

VerifyMode = Literal["hash", "size"]

FAST_CLOCKS_SECONDS = 600.0
"""How far a gateway's clock may be ahead of the reconciler's. The time of a batch from later than that says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileSettings:
    """How accepted batches are looked for, and what is looked at. Raises `Misconfigured`."""

    verify: VerifyMode = "hash"
    """How frames are checked: `hash` reads each and compares its SHA-256, `size` asks for its size alone."""

    look_back_seconds: float = 7200.0
    """How far before the checkpoint hours are listed: for lost events, skewed clocks, retries and unclean stops."""

    grace_seconds: float = 60.0
    """Batches that were accepted less than this ago are left to their gateway, which queues them in the background."""

    pass_seconds: float = 30.0
    """The pause between two passes over the newest hours."""

    cold_scan_seconds: float = 24 * 3600.0
    """The time between two scans of everything."""

    heartbeat_seconds: float = 30.0
    at_once: int = 8
    """Batches that are looked at concurrently. Each holds at most 8 MiB of its frame in memory."""

    def __post_init__(self) -> None:
        """Check all settings."""
        names = ("look_back_seconds", "pass_seconds", "cold_scan_seconds", "heartbeat_seconds", "at_once")
        wrong = [f"{name} must be positive" for name in names if getattr(self, name) <= 0]
        if self.grace_seconds < 0:
            wrong.append("grace_seconds must not be negative")
        if wrong:
            raise Misconfigured(f"Invalid settings of the reconciler: {'; '.join(wrong)}.")
