"""Journals for tests."""

from collections.abc import Sequence

import pyarrow as pa

from lakehead.wire.agent_journal import (
    EncodedRecords,
    JournalHead,
    JournalItem,
    encode_journal_item,
    encode_records,
)
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.request_id import RequestId
from tests.unit.wire.frames import NUMBERS, SAMPLES, logs, samples

HEAD = JournalHead(FrameKind.SAMPLES, "agent-a", "boot-uuid", 10)


def request(number: int) -> RequestId:
    return RequestId(number.to_bytes(16, "big"), (number + 1).to_bytes(16, "big"))


def item(first_seq: int, records: pa.RecordBatch, request: RequestId | None = None) -> JournalItem:
    kind = FrameKind.LOGS if "body" in records.schema.names else FrameKind.SAMPLES
    return JournalItem(first_seq, encode_records(kind, records), request)


ITEMS = [
    item(10, samples(NUMBERS[:2]), request(1)),
    item(12, samples(SAMPLES[3:5]), request(2)),
    item(14, samples(NUMBERS[2:3])),
    item(15, samples(NUMBERS[:3]), request(3)),
]
"""Of both versions of samples, with and without a request."""

LOG_HEAD = JournalHead(FrameKind.LOGS, "agent-a", "boot-of-logs", 0)
LOG_ITEMS = [item(0, logs()), item(7, logs(), request(4))]


def pieces_of(items: Sequence[JournalItem], head: JournalHead = HEAD) -> list[bytes]:
    """The head of a journal, and each of its items."""
    first = head.encode()
    return [first, *(b"".join(encode_journal_item(first, each)) for each in items)]


def journal(items: Sequence[JournalItem], head: JournalHead = HEAD) -> bytes:
    return b"".join(pieces_of(items, head))


def told(items: Sequence[JournalItem]) -> list[tuple[int, int, bytes, RequestId | None]]:
    """Items in a form that can be compared."""
    return [(each.first_seq, each.encoded.count, message(each.encoded), each.request) for each in items]


def message(encoded: EncodedRecords) -> bytes:
    found: bytes = encoded.message.to_pybytes()
    return found
