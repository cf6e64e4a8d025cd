"""What every receiver makes of the body of a request: records, or an error."""

import struct
from dataclasses import dataclass

import pyarrow as pa

from lakehead.errors import Misconfigured

STALE_MARKER: float = struct.unpack("<d", (0x7FF0000000000002).to_bytes(8, "little"))[0]
"""Prometheus's mark that a series has ended: a NaN of its own, whose bits are kept."""

MAX_TIME_NS = 2**63 - 1
"""The last time that a record can have, in the year 2262."""

MAX_RECORD_BYTES = 128 << 20
"""The most that the records of one request may take. A body of some kilobytes can ask for gigabytes, because what it
says once about a resource or a metric stands in each record."""


@dataclass(frozen=True)
class Decoded:
    """The records of one request, and what was wrong with those that are not among them."""

    records: pa.RecordBatch
    """They have the newest schema of their kind and pass its check. There may be none."""

    rejected: int = 0
    """How many records of the request cannot be kept. Sending them again would not help."""

    reason: str = ""
    """Why one of them was rejected, for people; empty if there are none."""

    have_own_times: bool = True
    """Whether each record came with its own time. If not, the same bytes sent again may well be other records."""


class BadBody(Misconfigured):
    """Fix the sender: the body is not what its content type and route say. Nothing of it was kept."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """What is wrong with it, for the answer."""


class BodyTooLarge(BadBody):
    """Send less at once: the records of the body would take more memory than one request may have."""
