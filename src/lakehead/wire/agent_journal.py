"""Journals of an agent's spool: the records of one batch that is still collecting, request by request.

A journal is an append log (`append_log`) with the magic `89 4C 4D 4A 52 4E 41 4C`, that is `\\x89LMJRNAL`. Its fields:

| bytes | content |
|---|---|
| 2 | kind of records, as in a frame |
| 8 | sequence number of the first record |
| 2, 2 | lengths of `agent_id` and `boot_id` |
| … | both, in UTF-8 |

The content of each item:

| bytes | content |
|---|---|
| 8 | sequence number of its first record |
| 4 | number of records |
| 2 | version of their schema |
| 2 | flags. Bit 0: the two digests count |
| 16, 16 | by what the request is known again: its id, and the digest of its body; else zeros |
| … | the records: a record batch message of Arrow IPC, as in the payload of a frame, without its schema |
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakehead.wire.append_log import ITEM_HEAD_BYTES, AppendLog, LogItem, encode_head, encode_item, read_log
from lakehead.wire.batch_identity import MAX_SEQUENCE, BatchIdentity, check_id
from lakehead.wire.errors import BadFrame, InvalidIdentity, NewerFormat, Unreadable
from lakehead.wire.ipc_payload import END_OF_STREAM, read_batch
from lakehead.wire.record_schemas import RECORD_SCHEMAS, FrameKind, as_newest, as_oldest
from lakehead.wire.request_id import DIGEST_BYTES, RequestId

MAGIC = b"\x89LMJRNAL"
VERSION = 1

_FIELDS = struct.Struct("<HQHH")
_ITEM = struct.Struct(f"<QIHH{DIGEST_BYTES}s{DIGEST_BYTES}s")
_HAS_REQUEST = 1
_NO_DIGEST = bytes(DIGEST_BYTES)
ITEM_OVERHEAD = ITEM_HEAD_BYTES + _ITEM.size
"""The bytes of an item besides its records."""

_KINDS = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """Records as they stand in an item."""

    count: int
    schema_version: int
    message: pa.Buffer

    @property
    def size(self) -> int:
        """The bytes of an item with them."""
        return ITEM_OVERHEAD + len(self.message)


@dataclass(frozen=True, slots=True)
class JournalHead:
    """What is true of all records of a journal."""

    kind: FrameKind
    agent_id: str
    boot_id: str
    seq_start: int

    def encode(self) -> bytes:
        """Encode what stands at the beginning of the file."""
        agent_id, boot_id = self.agent_id.encode(), self.boot_id.encode()
        fields = _FIELDS.pack(self.kind, self.seq_start, len(agent_id), len(boot_id))
        return encode_head(MAGIC, VERSION, fields + agent_id + boot_id)

    def identity(self, seq_start: int, seq_end: int) -> BatchIdentity:
        """The identity of a batch with some of its records."""
        return BatchIdentity(self.agent_id, self.boot_id, seq_start, seq_end)


@dataclass(frozen=True, slots=True)
class JournalItem:
    """The records of one request."""

    first_seq: int
    encoded: EncodedRecords
    request: RequestId | None

    @property
    def end_seq(self) -> int:
        """The sequence number after its last."""
        return self.first_seq + self.encoded.count


@dataclass(frozen=True, slots=True)
class JournalContent:
    """What a reader found in a journal."""

    head: JournalHead
    items: Sequence[JournalItem]
    """Those that are as they were written. Their numbers ascend."""

    log: AppendLog
    """Which bytes are damaged or torn."""

    def runs(self) -> list[list[JournalItem]]:
        """Return the items in groups whose numbers follow each other without a gap."""
        found: list[list[JournalItem]] = []
        for item in self.items:
            if found and found[-1][-1].end_seq == item.first_seq:
                found[-1].append(item)
            else:
                found.append([item])
        return found


def encode_records(kind: FrameKind, records: pa.RecordBatch) -> EncodedRecords:
    """Encode records in the first version of their schema that holds them. Raises `BadFrame` if none does."""
    version, oldest = as_oldest(kind, records if records.schema.metadata is None else _without_metadata(records))
    return EncodedRecords(len(oldest), version, oldest.serialize())


def encode_journal_item(head: bytes, item: JournalItem) -> list[bytes | pa.Buffer]:
    """Encode an item of the journal with this head, in pieces that are to be written one after the other."""
    records, request = item.encoded, item.request
    told = (_HAS_REQUEST, request.dedupe_id, request.body_digest) if request else (0, _NO_DIGEST, _NO_DIGEST)
    first = _ITEM.pack(item.first_seq, records.count, records.schema_version, *told)
    return encode_item(head, first, records.message)


def joined_records(kind: FrameKind, items: Iterable[EncodedRecords]) -> pa.RecordBatch:
    """Return the records of several items as one batch. Raises `BadFrame` if what they hold is none of their kind."""
    batches = [decode_records(kind, item) for item in items]
    if any(each.schema is not batches[0].schema and not each.schema.equals(batches[0].schema) for each in batches):
        batches = [as_newest(kind, each) for each in batches]
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def decode_records(kind: FrameKind, encoded: EncodedRecords) -> pa.RecordBatch:
    """Return the records of an item, which share its memory. Their rules are not checked. Raises `BadFrame`."""
    schema = RECORD_SCHEMAS[kind][encoded.schema_version].schema
    try:
        records = pa.ipc.read_record_batch(encoded.message, schema)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise BadFrame("bad_payload", f"The records of an item cannot be read ({error}).") from None
    return records


def read_journal(body: bytes) -> JournalContent | None:
    """Read a journal, whatever became of it. None if it ends within its head: then it never held a record.

    Records that are returned are valid, and follow the rules of their kind. Raises `Unreadable` if the head is damaged,
    and `NewerFormat` if a newer Lakehead wrote it.
    """
    log = read_log(body, MAGIC, VERSION)
    if log is None:
        return None
    head = _decode_fields(log.fields)
    items: list[JournalItem] = []
    sound: list[LogItem] = []
    lost: list[tuple[int, int]] = []
    next_seq = head.seq_start
    for each in log.items:
        item = _decode_item(head.kind, each.content)
        if item is None or item.first_seq < next_seq:
            lost.append((each.start, each.end))
            continue
        items.append(item)
        sound.append(each)
        next_seq = item.end_seq
    if lost:
        log = AppendLog(log.fields, sound, _merged([*log.damaged, *lost]), log.torn_at, log.size)
    return JournalContent(head, items, log)


def _decode_fields(fields: bytes) -> JournalHead:
    try:
        kind, seq_start, agent_bytes, boot_bytes = _FIELDS.unpack_from(fields)
        agent_id, boot_id = fields[_FIELDS.size :][:agent_bytes], fields[_FIELDS.size + agent_bytes :]
        if len(agent_id) != agent_bytes or len(boot_id) != boot_bytes or seq_start > MAX_SEQUENCE:
            raise Unreadable("The head of the journal contradicts itself.")
        head = JournalHead(_KINDS[kind], agent_id.decode(), boot_id.decode(), seq_start)
        check_id("agent_id", head.agent_id)
        check_id("boot_id", head.boot_id)
    except (struct.error, UnicodeDecodeError, InvalidIdentity) as error:
        raise Unreadable(f"The head of the journal names no agent and boot ({error}).") from None
    except KeyError as error:
        raise NewerFormat(f"The journal was written by a newer Lakehead (its kind is {error}). Update it.") from None
    return head


def _decode_item(kind: FrameKind, content: memoryview) -> JournalItem | None:
    """Return an item; None if it contradicts itself."""
    if len(content) < _ITEM.size:
        return None
    first_seq, count, version, flags, dedupe_id, body_digest = _ITEM.unpack_from(content)
    if flags & ~_HAS_REQUEST or version not in RECORD_SCHEMAS[kind]:
        raise NewerFormat("The journal was written by a newer Lakehead: it has items that are not known here.")
    if not count or first_seq + count - 1 > MAX_SEQUENCE:
        return None
    known = RECORD_SCHEMAS[kind][version]
    try:
        # As the payload of a frame, which is looked at before Arrow reads it.
        payload = b"".join([known.message, content[_ITEM.size :], END_OF_STREAM])
        known.check(read_batch(pa.py_buffer(payload), known, count))
    except BadFrame:
        return None
    message = pa.py_buffer(payload).slice(len(known.message), len(payload) - len(known.message) - len(END_OF_STREAM))
    request = RequestId(dedupe_id, body_digest) if flags & _HAS_REQUEST else None
    return JournalItem(first_seq, EncodedRecords(count, version, message), request)


def _merged(parts: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return parts of a file in their order, and those that touch as one."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(parts):
        if found and found[-1][1] == start:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found


def _without_metadata(records: pa.RecordBatch) -> pa.RecordBatch:
    return records.replace_schema_metadata(None)
