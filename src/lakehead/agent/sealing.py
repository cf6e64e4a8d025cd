"""How the records of a journal become a frame: once, over the journal's own name, and before anything is sent."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from lakehead.agent.seen_requests import SeenRequests
from lakehead.agent.spool_disk import SpoolDisk
from lakehead.agent.spool_entry import SpoolEntry
from lakehead.agent.spool_reserve import Reserve
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.wire.agent_journal import JournalHead, JournalItem, joined_records
from lakehead.wire.agent_spool_records import ENTRIES, numbered
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import encode_frame
from lakehead.wire.record_schemas import FrameKind

T = TypeVar("T")

ATTEMPTS = 3
"""How often a file is replaced by the same content before it stays unknown what it holds."""


class RunInThread(Protocol):
    """Runs a function that takes long, while others go on, and returns what it returns."""

    def __call__(self, function: Callable[[], T], /) -> Awaitable[T]:
        """Run it."""
        ...


@dataclass(frozen=True, slots=True)
class Sealing:
    """Writes frames into a spool."""

    disk: SpoolDisk
    seen: SeenRequests
    reserve: Reserve
    run_in_thread: RunInThread

    async def seal(self, number: int, head: JournalHead, items: Sequence[JournalItem]) -> SpoolEntry:
        """Make a frame of items whose numbers follow each other, and give it the name of the entry.

        First the digests of the requests are saved, which a frame has not. Raises `Unavailable` and `OutcomeUnknown`:
        then repeat it. Raises `BadFrame` if the records are not valid.
        """
        requests = [item.request for item in items if item.request is not None]
        await self.reserve.use(partial(self.seen.save, requests))
        identity = head.identity(items[0].first_seq, items[-1].end_seq - 1)
        body = await self.run_in_thread(partial(_frame, identity, head.kind, items))
        await self.replace(numbered(ENTRIES, number), body)
        return SpoolEntry(number, head.kind, identity, len(body), self.seen.uptime)

    async def replace(self, name: str, body: bytes) -> None:
        """Give a file this content in one step, with the reserve if need be.

        Raises `Unavailable` if it is as it was, and `OutcomeUnknown` if it may have either content.
        """
        doubt: OutcomeUnknown | None = None
        for _ in range(ATTEMPTS):
            try:
                await self.reserve.use(partial(self.disk.replace, name, body))
                return
            except OutcomeUnknown as error:
                doubt = error
            except Unavailable:
                if doubt is None:
                    raise
        if doubt is not None:
            raise doubt


def _frame(identity: BatchIdentity, kind: FrameKind, items: Sequence[JournalItem]) -> bytes:
    return encode_frame(identity, kind, joined_records(kind, [item.encoded for item in items]))
