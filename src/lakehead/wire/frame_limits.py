"""Limits on frames. Settings of agents and gateways import them, so this imports nothing."""

from dataclasses import dataclass

MIB = 1 << 20
MAX_RATIO = 1_000
"""Payloads that would compress by more than this are stored as they are, or readers would take them for a bomb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameLimits:
    """Limits on the frames that are read, to bound a reader's memory. Checked before anything is allocated."""

    frame_bytes: int = 64 * MIB
    """Size of the whole frame."""

    payload_bytes: int = 256 * MIB
    """Size of the payload, decompressed."""

    records: int = 1_000_000
    ratio: int = MAX_RATIO
    """How many times larger than its compressed form a payload of more than 1 MiB may be."""
