"""How large a gateway's spool may become."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """How large a spool may become."""

    most_bytes: int = 10 << 30
    most_batches: int = 200_000
    """Each takes some memory while it waits."""
