"""What is done to an agent's process before it starts: faults that a checker must see, and a death at a bad moment."""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Sequence
from itertools import count
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa

from lakehead.agent.framed_batch import FramedBatch
from lakehead.agent.seen_requests import SeenRequests
from lakehead.agent.spool import Spool
from lakehead.agent.spool_entry import ParkReason, Spooled, SpoolEntry
from lakehead.ids import RandomIds
from lakehead.wire.frame import decode_frame, encode_frame
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId
from tests.faults.failpoints import die

LATE_SECONDS = 60.0
"""Longer than the agent lives."""


_later: set["asyncio.Task[object]"] = set()


def answers_early() -> None:
    """The agent answers before records are on disk."""
    append = Spool.append

    async def answered_early(
        self: Spool, kind: FrameKind, records: pa.RecordBatch, request: RequestId | None = None
    ) -> Spooled:
        async def late() -> None:
            await asyncio.sleep(LATE_SECONDS)
            await append(self, kind, records, request)

        _later.add(asyncio.create_task(late()))
        return Spooled(duplicate=False)

    setattr(Spool, "append", answered_early)  # noqa: B010 - a method is replaced, which mypy would not have


def forgets_requests() -> None:
    """The agent knows requests again until it is started again."""

    async def saved_in_memory(self: SeenRequests, requests: Sequence[RequestId]) -> None:
        del self, requests

    setattr(SeenRequests, "save", saved_in_memory)  # noqa: B010 - as above


def deletes_before_the_answer() -> None:
    """The agent removes a batch when it reads it, to send it."""
    read = Spool.read

    async def read_and_removed(self: Spool, entry: SpoolEntry) -> FramedBatch | None:
        batch = await read(self, entry)
        await self.accepted(entry)
        return batch

    setattr(Spool, "read", read_and_removed)  # noqa: B010 - as above


def changes_resends() -> None:
    """The agent sends the records of a batch in another order each time."""
    read = Spool.read
    times: Counter[int] = Counter()

    async def read_otherwise(self: Spool, entry: SpoolEntry) -> FramedBatch | None:
        batch = await read(self, entry)
        if batch is None:
            return None
        frame = decode_frame(batch.body)
        order = deque(range(len(frame.records)))
        order.rotate(times[entry.number])
        times[entry.number] += 1
        return FramedBatch(batch.identity, encode_frame(frame.identity, entry.kind, frame.records.take(list(order))))

    setattr(Spool, "read", read_otherwise)  # noqa: B010 - as above


def uses_its_boot_again() -> None:
    """The agent has the same boot after each start, and so the same sequence numbers."""
    setattr(RandomIds, "uuid", lambda _: str(uuid5(NAMESPACE_URL, sys.argv[-1])))  # noqa: B010 - as above


def drops_conflicts() -> None:
    """The agent has the same boot after each start, and forgets what is a conflict."""
    uses_its_boot_again()

    async def forgotten(self: Spool, entry: SpoolEntry, why: ParkReason) -> SpoolEntry | None:
        del why
        await self.accepted(entry)
        return None

    setattr(Spool, "park", forgotten)  # noqa: B010 - as above


def dies_before_it_answers(what: str, after: int) -> None:
    """The agent dies when so many requests, and then one with this text, are on disk, and before it is told."""
    append = Spool.append
    taken = count()

    async def unanswered(
        self: Spool, kind: FrameKind, records: pa.RecordBatch, request: RequestId | None = None
    ) -> Spooled:
        spooled = await append(self, kind, records, request)
        name = "metric" if kind is FrameKind.SAMPLES else "body"
        if next(taken) >= after and any(what in (each or "") for each in records.column(name).to_pylist()):
            die()
        return spooled

    setattr(Spool, "append", unanswered)  # noqa: B010 - as above
