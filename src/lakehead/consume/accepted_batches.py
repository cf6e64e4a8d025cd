"""Messages of a queue of accepted batches: each is a batch of entries, and each entry names one accepted batch.

The entries are fetched before the messages are read. Each becomes a unit of its own, named by its identity manifest,
with the numbers of its records: so a record lands once, whatever batches it comes in.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakehead.accept.batch_kind import head_kind
from lakehead.buffer.layout import object_key
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.decode.frames import AcceptedFrame
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.messages import uri_in_store
from lakehead.consume.objects import NotUnderstood, ObjectRef
from lakehead.consume.queue import Message
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.storage.object_keys import is_valid_key
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch import BatchLimits, KeyValueEntry
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.compact import decode_batch
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.frame_header import MAX_HEAD_BYTES
from lakehead.wire.landing_entries import LandingEntry
from lakehead.wire.record_schemas import FrameKind

LOG = logging.getLogger(__name__)

AT_ONCE = 16
"""Batches of entries, and beginnings of frames, that are fetched concurrently."""

SECONDS = 30.0
"""How long fetching one of them may take."""

_LIMITS = BatchLimits()


@dataclass(frozen=True, slots=True)
class AcceptedEntry:
    """An accepted batch that is to be landed, as an entry of the queue names it."""

    key: str
    """The key of its identity manifest."""

    identity: BatchIdentity
    kind: FrameKind | None
    """What its records are; None if neither the entry nor the frame tells, because it is missing or damaged."""

    sha256: str
    size: int


Found = Sequence[AcceptedEntry] | LakeheadError
"""The entries of a message, or why they are not known."""


@dataclass(slots=True, kw_only=True)
class AcceptedLookup:
    """Knows the entries of the messages that were received last."""

    store: Store
    """The store of the queue, which also has the accepted batches."""

    max_tries: int
    """How often a message is delivered whose batch does not exist, before it is a dead letter. It may have been landed,
    acknowledged and removed by another consumer a moment ago: then it does not come again."""

    known: dict[bytes, Found] = field(default_factory=dict)
    """By the body of the message."""

    _silent: Unavailable | None = None
    """Why the store did not answer for one of them: others would only wait as long."""

    async def look_up(self, messages: Sequence[Message]) -> None:
        """Fetch the entries of messages, and forget those that were fetched before."""
        self.known.clear()
        self._silent = None
        limit = asyncio.Semaphore(AT_ONCE)
        newest = {message.body: message for message in messages}
        await asyncio.gather(*(self._look_up(message, limit) for message in newest.values()))
        silent = [each for each in self.known.values() if isinstance(each, Unavailable)]
        if silent:
            LOG.warning("%d batches of accepted keys could not be read, and come again: %s", len(silent), silent[0])

    async def _look_up(self, message: Message, limit: asyncio.Semaphore) -> None:
        try:
            self.known[message.body] = await self._entries(message, limit)
        except Misconfigured as error:
            self.known[message.body] = Unavailable(str(error))
        except LakeheadError as error:
            self.known[message.body] = error

    async def _entries(self, message: Message, limit: asyncio.Semaphore) -> Sequence[AcceptedEntry]:
        """Fetch the entries of a message. Raises `NotUnderstood`, `NewerFormat`, `Unavailable` and `Misconfigured`."""
        key = _batch_key(message)
        async with limit:  # also while it is decoded, so that few of them are held in memory
            body = await self._get(key, end=_LIMITS.stored_bytes + 1)
            entries = None if body is None else await asyncio.to_thread(_decoded, body, key)
        if entries is None:
            missing = f"The batch {key} of accepted keys does not exist."
            raise Unavailable(missing) if message.deliveries < self.max_tries else NotUnderstood(missing)
        unknown = [number for number, entry in enumerate(entries) if entry.kind is None]
        kinds = await asyncio.gather(*(self._kind(entries[number], limit) for number in unknown))
        for number, kind in zip(unknown, kinds, strict=True):
            found = entries[number]
            entries[number] = AcceptedEntry(found.key, found.identity, kind, found.sha256, found.size)
        return entries

    async def _kind(self, entry: AcceptedEntry, limit: asyncio.Semaphore) -> FrameKind | None:
        """What the frame's own header says. If there is none to read, whoever reads the frame says what is wrong."""
        async with limit:
            head = await self._get(keys.raw_blob(entry.sha256), end=MAX_HEAD_BYTES)
        return head_kind(head)

    async def _get(self, key: str, *, end: int) -> bytes | None:
        if self._silent is not None:
            raise Unavailable(str(self._silent))
        try:
            async with asyncio.timeout(SECONDS):
                found = await self.store.get(key, end=end)
        except (Unavailable, TimeoutError) as error:
            self._silent = Unavailable(str(error) or f"{key} could not be read within {SECONDS:.0f} s.")
            raise self._silent from None
        return None if found is None else found.body


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedReader:
    """Turns messages into units of work: one for each accepted batch."""

    tables: Mapping[FrameKind, str]
    """Which table takes which kind, at least one."""

    store_url: str
    """The URL of the queue's store."""

    known: Mapping[bytes, Found]
    """What was looked up, by the body of the message."""

    def __call__(self, message: Message, counts: ConsumeCounts) -> Sequence[Work]:
        """Return the units of a message; none if no table takes what it announces.

        Raises `NotUnderstood`, `Unavailable` if its entries could not be fetched, and `NewerFormat` if only a newer
        Lakehead understands them.
        """
        found = self.known.get(message.body)
        if found is None:
            raise Unavailable(f"The message {message.id} was not looked up.")
        if isinstance(found, LakeheadError):
            raise type(found)(str(found))
        works: dict[UnitKey, Work] = {}
        for entry in found:
            # A frame that cannot be read fails like others, in any of the tables.
            kind = next(iter(self.tables)) if entry.kind is None else entry.kind
            if kind not in self.tables:
                counts.filtered += 1
                continue
            work = self._work(entry, kind, message)
            works.setdefault(work.key, work)
        return list(works.values())

    def _work(self, entry: AcceptedEntry, kind: FrameKind, message: Message) -> Work:
        return Work(
            key=UnitKey(self.tables[kind], uri_in_store(self.store_url, entry.key)),
            object=ObjectRef(uri=uri_in_store(self.store_url, keys.raw_blob(entry.sha256)), size=entry.size),
            frame=AcceptedFrame(identity=entry.identity, kind=kind, sha256=entry.sha256),
            message=message,
        )


def _batch_key(message: Message) -> str:
    """The key of the batch of entries. Raises `NotUnderstood` if the message is no location."""
    try:
        key = object_key(message.body.decode())
    except UnicodeDecodeError:
        key = ""
    if not is_valid_key(key):
        raise NotUnderstood(f"The message {message.body[:80]!r} is not the location of a batch in the queue's store.")
    return key


def _decoded(body: bytes, key: str) -> list[AcceptedEntry]:
    try:
        return [_entry(entry) for entry in decode_batch(body, _LIMITS)]
    except NewerFormat as error:
        raise NewerFormat(f"{key}: {error}") from None
    except Unreadable as error:
        raise NotUnderstood(f"The batch {key} of accepted keys cannot be read. {error}") from None


def _entry(entry: KeyValueEntry) -> AcceptedEntry:
    key = entry.key.decode(errors="replace")
    identity = keys.parse_accepted(key)
    if identity is None:
        raise Unreadable(f"Its entry {key[:200]!r} is not the key of an accepted batch.")
    value = LandingEntry.decode(entry.value, key)
    kind = FrameKind.named(value.kind)
    if value.kind and kind is None:
        raise NewerFormat(f"{key} has records of the kind {value.kind[:40]!r}, which is not known. Update Lakehead.")
    return AcceptedEntry(key, identity, kind, value.frame_sha256, value.frame_bytes)
