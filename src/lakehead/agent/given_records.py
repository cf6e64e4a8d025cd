"""Records as a program gives them: plain Python values, or Arrow."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

import pyarrow as pa

from lakehead.agent.plain_records import PlainRecord, record_batch
from lakehead.errors import Misconfigured
from lakehead.wire.frame import one_batch
from lakehead.wire.ipc_payload import read_batch, write_batch
from lakehead.wire.record_schemas import RECORD_SCHEMAS, FrameKind, as_newest, as_oldest
from lakehead.wire.request_id import DIGEST_BYTES, RequestId

GivenRecords: TypeAlias = Sequence[PlainRecord] | pa.RecordBatch | pa.Table


def checked_records(kind: FrameKind, records: GivenRecords) -> pa.RecordBatch:
    """Return records as Arrow in the newest schema of their kind, checked as gateways check them.

    The forms of plain records are those of `record_batch`; Arrow must have a schema of its kind. Raises `BadRecord` for
    a plain record, `BadFrame` for Arrow that is not of the kind, and `Misconfigured` if there are no records.
    """
    if not len(records):
        raise Misconfigured("There are no records to send. Send at least one.")
    if not isinstance(records, pa.RecordBatch | pa.Table):
        return record_batch(kind, records)
    version, batch = as_oldest(kind, one_batch(records))
    schema = RECORD_SCHEMAS[kind][version]
    batch = read_batch(write_batch(batch), schema, len(batch))  # a copy, which nobody changes, without slices
    schema.check(batch)
    return as_newest(kind, batch)


def keyed_request(kind: FrameKind, idempotency_key: str | None, records: pa.RecordBatch) -> RequestId | None:
    """Return by what a call with an idempotency key is known again; None without one. Raises `Misconfigured`."""
    if idempotency_key is None:
        return None
    if not idempotency_key:
        raise Misconfigured("The idempotency key is empty. Give one that is used for these records alone, or none.")
    name = f"python {kind.name} {idempotency_key}".encode(errors="surrogatepass")
    return RequestId(_digest(name), _digest(write_batch(records)))


def _digest(content: bytes | pa.Buffer) -> bytes:
    return blake2b(content, digest_size=DIGEST_BYTES).digest()
