"""What is given to an agent's spool, from the call until it is on disk or refused."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from lakehead.agent.journal_writer import JournalWriter, PendingAppend, fail
from lakehead.agent.sealing import RunInThread
from lakehead.agent.seen_requests import SeenRequests
from lakehead.agent.spool_contents import SpoolContents
from lakehead.agent.spool_entry import Spooled
from lakehead.agent.spool_errors import KeyReused, RecordsTooLarge, SpoolFull, SpoolUnusable
from lakehead.agent.spool_reserve import Reserve
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.wire.agent_journal import EncodedRecords, encode_records
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId

INLINE_BYTES = 512 << 10
"""Records up to this size are encoded without a thread: that takes less than to start one."""


@dataclass(slots=True, kw_only=True)
class SpoolAppends:
    """Takes requests: each once, if there is room. `Spool` says what each of these does."""

    settings: SpoolSettings
    contents: SpoolContents
    seen: SeenRequests
    reserve: Reserve
    writers: Mapping[FrameKind, JournalWriter]
    run_in_thread: RunInThread
    is_closed: bool = field(default=True, init=False)
    _under_way: dict[bytes, "asyncio.Future[None]"] = field(default_factory=dict, init=False)
    """The outcomes of requests that are not on disk yet, by their ids."""

    _encoding: set["asyncio.Task[None]"] = field(default_factory=set, init=False)

    async def append(self, kind: FrameKind, records: pa.RecordBatch, request: RequestId | None) -> Spooled:
        """Put records on disk, unless they are known."""
        if request is not None and await self._is_known(request):
            return Spooled(duplicate=True)
        if not len(records):
            return Spooled(duplicate=False)
        self._check_open()
        if len(records) > self.settings.request_records:
            raise _too_large(f"{len(records):,} records", self.settings.request_records)
        # The first is fast, and counts what a slice is cut from too.
        if records.get_total_buffer_size() <= INLINE_BYTES or records.nbytes <= INLINE_BYTES:
            encoded = self._encode(kind, records)
            outcome = self._begin(kind, request, encoded.size)
            self.writers[kind].add(PendingAppend(request, encoded, outcome))
        else:
            outcome = self._begin(kind, request, records.nbytes)
            task = asyncio.create_task(self._encode_and_add(kind, records, request, outcome), name="lakehead-encode")
            self._encoding.add(task)
            task.add_done_callback(self._encoding.discard)
        await asyncio.shield(outcome)  # which comes also if nobody waits for it any more
        return Spooled(duplicate=False)

    def check(self) -> None:
        """Raise `SpoolFull` or `SpoolUnusable` if nothing is taken now."""
        self._check_open()
        waiting = self.contents.append_bytes
        has_journal = any(each.has_open_journal for each in self.writers.values())
        self.contents.check_room(size=waiting + 1, entries=0 if has_journal or waiting else 1)

    async def close(self) -> None:
        """Take nothing more, and hand over what is under way."""
        self.is_closed = True
        await asyncio.gather(*self._encoding)

    async def _is_known(self, request: RequestId) -> bool:
        """Return whether a request is on disk. If it is under way, this waits for it, and fails as it does.

        Raises `KeyReused` if it was with another body.
        """
        if (first := self._under_way.get(request.dedupe_id)) is not None:
            await asyncio.shield(first)
        digest = self.seen.find(request.dedupe_id)
        if digest is not None and digest != request.body_digest:
            raise KeyReused(
                "Another request came with this Idempotency-Key. Use a new one for each request, and the same one only "
                "to send it again."
            )
        return digest is not None

    def _check_open(self) -> None:
        if self.is_closed:
            raise SpoolUnusable("The agent is stopping, or not started. Try again later.")
        self.contents.check_usable()
        self.reserve.check()
        self.contents.check_flushed()

    def _begin(self, kind: FrameKind, request: RequestId | None, size: int) -> "asyncio.Future[None]":
        """Count a request that waits for the disk until its outcome is known, and return that. Raises `SpoolFull`."""
        waiting, limit = self.contents.append_bytes, self.settings.append_bytes
        has_journal = self.writers[kind].has_open_journal
        self.contents.check_room(size=waiting + size, entries=0 if has_journal or waiting else 1)
        if waiting and waiting + size > limit:
            raise SpoolFull(
                f"Requests with {waiting:,} bytes wait for the disk of the spool, and {limit:,} may. It is slower than "
                "what comes: try again later."
            )
        self.contents.append_bytes += size
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if request is not None:
            self._under_way[request.dedupe_id] = outcome
        outcome.add_done_callback(partial(self._end, request, size))
        return outcome

    def _end(self, request: RequestId | None, size: int, outcome: "asyncio.Future[None]") -> None:
        self.contents.append_bytes -= size
        if request is not None and self._under_way.get(request.dedupe_id) is outcome:
            del self._under_way[request.dedupe_id]

    async def _encode_and_add(
        self, kind: FrameKind, records: pa.RecordBatch, request: RequestId | None, outcome: "asyncio.Future[None]"
    ) -> None:
        try:
            encoded = await self.run_in_thread(partial(self._encode, kind, records))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's
            fail(outcome, error)
        else:
            self.writers[kind].add(PendingAppend(request, encoded, outcome))

    def _encode(self, kind: FrameKind, records: pa.RecordBatch) -> EncodedRecords:
        encoded = encode_records(kind, records)
        if encoded.size > self.settings.request_bytes:
            raise _too_large(f"{encoded.size:,} bytes as Arrow", self.settings.request_bytes)
        return encoded


def _too_large(found: str, limit: int) -> RecordsTooLarge:
    return RecordsTooLarge(f"The request has {found}, and at most {limit:,} are allowed. Send it in several parts.")
