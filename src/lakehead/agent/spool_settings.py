"""How an agent's spool collects batches, and how large it may become."""

from dataclasses import dataclass

from lakehead.errors import Misconfigured
from lakehead.wire.frame_limits import FrameLimits

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolSettings:
    """Settings of a spool."""

    batch_seconds: float = 1.0
    """For how long a batch collects records, from its first."""

    batch_records: int = 100_000
    """A batch that has as many records is closed."""

    batch_bytes: int = 8 * MIB
    """A batch that has as many bytes before compression is closed."""

    request_records: int = 500_000
    """The most records of one request: all of them are in one batch."""

    request_bytes: int = 15 * MIB
    """The most bytes of one request as Arrow. Gateways take frames of 16 MiB, and not all can be compressed."""

    append_bytes: int = 64 * MIB
    """The most bytes of requests that wait for the disk."""

    spool_bytes: int = 4 * GIB
    """The most bytes of batches that wait to be sent."""

    spool_entries: int = 50_000
    """The most batches that wait to be sent."""

    parked_bytes: int = 1 * GIB
    """The most bytes of batches that were refused, or are conflicts."""

    reserve_bytes: int = 32 * MIB
    """Kept free on the disk, so that what it holds can be sent when it is full: more than two batches need. 0: none."""

    dedupe_seconds: float = 3600.0
    """For how many seconds of the agent's uptime a request that comes again is recognised."""

    dedupe_requests: int = 200_000
    """The most requests that are recognised: beyond that the oldest are forgotten."""

    def __post_init__(self) -> None:
        """Raise `Misconfigured` for settings with which nothing could be spooled, or sent."""
        for name in self.__slots__:
            value = getattr(self, name)
            if value < 0 or (not value and name not in _MAY_BE_ZERO):
                raise Misconfigured(f"{name} is {value}. It must be above 0.")
        most = FrameLimits()
        for name in ("batch_records", "request_records"):
            if getattr(self, name) > most.records:
                raise Misconfigured(
                    f"{name} is {getattr(self, name):,}. No frame has more than {most.records:,} records."
                )
        for name in ("batch_bytes", "request_bytes"):
            if getattr(self, name) > most.frame_bytes:
                raise Misconfigured(f"{name} is {getattr(self, name):,}. No frame has more than {most.frame_bytes:,}.")


_MAY_BE_ZERO = frozenset({"parked_bytes", "reserve_bytes", "dedupe_seconds"})
