"""The requests that an agent knows again: their digests, for a window of its uptime, on disk and in memory.

A request is added when its records are on disk: its digests are there with them, in the journal. Before the journal
becomes a frame, which has none, they are saved here. Time is the uptime of the agent, all starts together: what a start
has not seen saved it does not count, which makes the window longer and never shorter.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from lakehead.agent.spool_disk import AppendFile, SpoolDisk
from lakehead.clock import Clock
from lakehead.errors import LakeheadError, OutcomeUnknown
from lakehead.wire.agent_spool_records import SEEN, damaged, number_of, numbered
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.request_id import DIGEST_BYTES, RequestId
from lakehead.wire.seen_requests import HEAD, REQUEST_BYTES, encode_seen_block, read_seen_file

LOG = logging.getLogger("lakehead.agent")

FILES = 8
"""The window is kept in about so many files, of which the oldest is forgotten as a whole."""


@dataclass(slots=True)
class _File:
    """The requests of one file."""

    number: int
    newest: float
    """The uptime at which the last of them were saved."""

    sorted: bytes = b""
    """Those that are not in `added`: 32 bytes each, in their order."""

    added: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.sorted) // REQUEST_BYTES + len(self.added)

    def find(self, dedupe_id: bytes) -> bytes | None:
        found = self.added.get(dedupe_id)
        if found is not None or not self.sorted:
            return found
        every = range(len(self.sorted) // REQUEST_BYTES)
        at = REQUEST_BYTES * bisect_left(every, dedupe_id, key=lambda one: self._id_at(REQUEST_BYTES * one))
        return self.sorted[at + DIGEST_BYTES : at + REQUEST_BYTES] if self._id_at(at) == dedupe_id else None

    def pack(self) -> None:
        """Take less memory: nothing more is added."""
        pieces = [self.sorted[at : at + REQUEST_BYTES] for at in range(0, len(self.sorted), REQUEST_BYTES)]
        self.sorted = b"".join(sorted([*pieces, *map(bytes.__add__, self.added.keys(), self.added.values())]))
        self.added = {}

    def _id_at(self, at: int) -> bytes:
        return self.sorted[at : at + DIGEST_BYTES]


class SeenRequests:
    """The requests that would be recognised if they came again."""

    def __init__(self, disk: SpoolDisk, *, clock: Clock, seconds: float, requests: int) -> None:
        """They are kept for `seconds` of uptime at least, unless they become more than `requests`."""
        self._disk = disk
        self._clock = clock
        self._seconds = seconds
        self._most = requests
        self._unsaved: dict[bytes, bytes] = {}
        self._files: list[_File] = []
        """The oldest first."""

        self._open: AppendFile | None = None
        """The last of the files, if it was made since the start."""

        self._opened = 0.0
        self._saving = asyncio.Lock()
        self._next_number = 0
        self._uptime_at_start = 0.0
        self._started = clock.monotonic()

    @property
    def uptime(self) -> float:
        """Seconds for which agents have had this spool open, all starts together."""
        return self._uptime_at_start + self._clock.monotonic() - self._started

    @property
    def count(self) -> int:
        """How many requests are remembered."""
        return len(self._unsaved) + sum(each.count for each in self._files)

    async def load(self) -> int:
        """Read what earlier starts have saved. Returns how many files are damaged; they were copied to be looked at.

        Raises `Unavailable`, and `NewerFormat` if a newer Lakehead wrote a file.
        """
        bad = 0
        for stored in await self._disk.list(SEEN):
            number = number_of(stored.name)
            if number is None:
                continue
            body = await self._disk.read(stored.name) or b""
            bad += await self._load(number, body)
        self._uptime_at_start = max((each.newest for each in self._files), default=0.0)
        self._started = self._clock.monotonic()
        await self._forget_old()
        return bad

    async def _load(self, number: int, body: bytes) -> bool:
        file = _File(number, 0.0)
        self._next_number = number + 1
        is_damaged = False
        try:
            found = read_seen_file(body)
        except NewerFormat:
            raise
        except Unreadable:
            is_damaged = True
        else:
            is_damaged = found.is_damaged
            file.sorted = b"".join(block.requests for block in found.blocks)
            file.newest = max((block.uptime_ms for block in found.blocks), default=0) / 1000
        file.pack()
        self._files.append(file)
        if is_damaged:
            await self._disk.replace(damaged(number, SEEN), body)
            LOG.warning("%s is damaged: requests may be taken again that were taken before.", numbered(SEEN, number))
            if not file.sorted:
                await self._drop(file)
        return is_damaged

    def find(self, dedupe_id: bytes) -> bytes | None:
        """Return the digest of the body of a request that is known; None if it is not."""
        found = self._unsaved.get(dedupe_id)
        for each in reversed(self._files):
            if found is not None:
                break
            found = each.find(dedupe_id)
        return found

    def add(self, request: RequestId) -> None:
        """Remember a request whose records are on disk, with its digests."""
        self._unsaved[request.dedupe_id] = request.body_digest

    async def save(self, requests: Sequence[RequestId]) -> None:
        """Keep requests apart from their records, also if they are known: what was read may not be on disk yet.

        Raises `Unavailable` and `OutcomeUnknown`: repeat it then, before anything else is done with the records.
        """
        if not requests:
            return
        async with self._saving:
            await self._append(requests)
            for each in requests:
                self._files[-1].added[each.dedupe_id] = each.body_digest
                self._unsaved.pop(each.dedupe_id, None)
            await self._forget_old()

    async def close(self) -> None:
        """Note the uptime, if the disk lets it."""
        async with self._saving:
            try:
                await self._append([])
            except LakeheadError as error:
                LOG.warning("The agent's uptime was not noted: requests are recognised for longer. %s", error)
            if self._open is not None:
                await self._open.close()
                self._open = None

    async def _append(self, requests: Sequence[RequestId]) -> None:
        uptime = self.uptime
        block = encode_seen_block(round(uptime * 1000), requests)
        if self._open is not None and self._is_full(uptime):
            await self._open.close()
            self._open = None
            self._files[-1].pack()
        if self._open is None:
            number = self._next_number
            self._next_number += 1  # a file that may or may not be there has a name of its own
            self._open = await self._disk.create(numbered(SEEN, number), HEAD + block)
            self._files.append(_File(number, uptime))
            self._opened = uptime
        else:
            try:
                await self._open.append(block)
            except OutcomeUnknown:
                await self._open.close()
                self._open = None  # nothing can be appended any more; what is in it stays
                self._files[-1].pack()
                raise
        self._files[-1].newest = uptime

    def _is_full(self, uptime: float) -> bool:
        return uptime - self._opened > self._seconds / FILES or self._files[-1].count >= self._most / FILES

    async def _forget_old(self) -> None:
        """Forget the oldest files, if all of their requests are older than the window, or there are too many."""
        while self._files and (self._open is None or len(self._files) > 1):
            oldest = self._files[0]
            if self.uptime - oldest.newest <= self._seconds and self.count <= self._most:
                break
            await self._drop(oldest)

    async def _drop(self, file: _File) -> None:
        self._files.remove(file)
        try:
            await self._disk.delete(numbered(SEEN, file.number))
        except LakeheadError as error:
            LOG.warning("%s is not needed any more, and stays on the disk: %s", numbered(SEEN, file.number), error)
