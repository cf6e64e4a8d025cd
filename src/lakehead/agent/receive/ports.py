"""What the receivers need of the agent."""

from typing import Protocol

import pyarrow as pa

from lakehead.agent.spool_entry import Spooled
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId


class Recorder(Protocol):
    """Puts records on disk."""

    def check(self) -> None:
        """Raise `SpoolFull` or `SpoolUnusable` if nothing is taken now: so that a body need not be read."""
        ...

    async def append(self, kind: FrameKind, records: pa.RecordBatch, request: RequestId | None = None) -> Spooled:
        """Put checked records on disk, once for each request, and return when they are there.

        Raises `SpoolFull` and `SpoolUnusable` (try again later), `KeyReused` and `RecordsTooLarge` (do not).
        """
        ...
