"""Frames for tests: records of every form, and what somebody sends who means harm."""

import struct
from random import Random

import google_crc32c
import pyarrow as pa

from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import encode_frame, peek_frame
from lakehead.wire.frame_header import encode_head
from lakehead.wire.ipc_payload import write_batch
from lakehead.wire.record_schemas import LOGS_V1, SAMPLES_V2, FrameKind

IDENTITY = BatchIdentity("agent-a", "boot-uuid", 10, 16)
STALE = struct.unpack("<d", (0x7FF0000000000002).to_bytes(8, "little"))[0]
"""Prometheus's mark that a series has ended: a NaN of its own."""

NOON = 1_760_000_000_000_000_000

SAMPLES: list[dict[str, object]] = [
    {"time": NOON, "metric": "up", "labels": [], "type": "unknown", "value": 1.0},
    {"time": NOON, "metric": "up", "labels": [("host", "a"), ("zone", "é")], "type": "unknown", "value": STALE},
    {
        "time": -1,
        "start_time": NOON - 60_000_000_000,
        "metric": "http.requests",
        "labels": [("", "empty"), ("code", "200")],
        "type": "sum",
        "unit": "1",
        "temporality": "delta",
        "monotonic": True,
        "value": float("-inf"),
    },
    {
        "time": NOON,
        "metric": "latency",
        "labels": [("host", "a")],
        "type": "histogram",
        "temporality": "cumulative",
        "distribution": {
            "count": 6.0,
            "sum": 12.5,
            "min": 0.1,
            "max": 9.0,
            "bounds": [1.0, 5.0],
            "counts": [1.0, 2.0, 3.0],
        },
    },
    {
        "time": NOON,
        "metric": "latency",
        "labels": [("host", "b")],
        "type": "exponential_histogram",
        "distribution": {
            "count": 7.5,
            "sum": STALE,
            "scale": -3,
            "zero_count": 1.5,
            "zero_threshold": 1e-9,
            "reset_hint": "no",
            "positive_indexes": [-2, 7],
            "positive_counts": [1.0, 2.0],
            "negative_indexes": [2_147_483_647],
            "negative_counts": [3.0],
        },
    },
    {
        "time": NOON,
        "metric": "rpc",
        "labels": [],
        "type": "summary",
        "distribution": {"count": 2.0, "sum": 3.0, "quantiles": [0.5, 0.99], "quantile_values": [1.0, 2.0]},
    },
    {"time": NOON, "metric": "bare", "labels": [], "type": "histogram", "distribution": {"count": 0.0, "counts": []}},
]

NUMBERS = [*SAMPLES[:3], {**SAMPLES[2], "temporality": None, "start_time": None}, *SAMPLES[:3]]
"""As many samples, without a distribution: they are stored in the first version of the schema."""

LOGS: list[dict[str, object]] = [
    {
        "time": NOON,
        "observed_time": NOON + 1,
        "severity_number": 9,
        "severity_text": "INFO",
        "event_name": "login",
        "body": "hello, wörld",
        "attributes": [("a", "1"), ("user", "ann")],
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
        "flags": 2**32 - 1,
        "resource_attributes": [("service.name", "shop")],
        "scope_name": "lib",
        "scope_version": "1.0",
        "scope_attributes": [("k", "v")],
    },
    *([{"time": 0, "attributes": [], "resource_attributes": [], "scope_attributes": []}] * 6),
]


def samples(rows: list[dict[str, object]] = SAMPLES) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=SAMPLES_V2)


def logs(rows: list[dict[str, object]] = LOGS) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=LOGS_V1)


RECORDS = {FrameKind.SAMPLES: samples(), FrameKind.LOGS: logs()}
FORMS = {"samples.v1": samples(NUMBERS), "samples.v2": samples(), "logs.v1": logs()}
"""Records of every version of every kind."""


def kind_of(form: str) -> FrameKind:
    return FrameKind[form.partition(".")[0].upper()]


def form_frame(form: str, *, compress: bool = False) -> bytes:
    return encode_frame(IDENTITY, kind_of(form), FORMS[form], compress=compress)


def frame(kind: FrameKind = FrameKind.SAMPLES, *, compress: bool = False) -> bytes:
    return encode_frame(IDENTITY, kind, RECORDS[kind], compress=compress)


def payload_of(body: bytes) -> bytes:
    return body[peek_frame(body).payload_at :]


def around(
    payload: bytes,
    *,
    kind: FrameKind = FrameKind.SAMPLES,
    identity: BatchIdentity = IDENTITY,
    version: int | None = None,
    payload_bytes: int | None = None,
    zstd: bool = False,
) -> bytes:
    """A frame around any payload, with the right checksum. The version of its schema is the one of `RECORDS`."""
    version = version or peek_frame(frame(kind)).schema_version
    stored = pa.py_buffer(payload)
    size = len(payload) if payload_bytes is None else payload_bytes
    return encode_head(identity, kind, version, payload_bytes=size, stored=stored, zstd=zstd) + payload


def sealed(body: bytes | bytearray) -> bytes:
    """The frame with the checksum that it should have."""
    crc = google_crc32c.extend(google_crc32c.value(bytes(body[:36])), bytes(body[40:]))
    return bytes(body[:36]) + struct.pack("<I", crc) + bytes(body[40:])


def with_number(body: bytes, at: int, size: int, number: int) -> bytes:
    """The frame with another number in its prefix or header, and the checksum for it."""
    return sealed(body[:at] + number.to_bytes(size, "little") + body[at + size :])


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether both have the same records, to the last bit of each NaN."""
    is_same_schema = one.schema.equals(other.schema, check_metadata=True)
    return bool(is_same_schema and write_batch(_told(one)).equals(write_batch(_told(other))))


def _told(records: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that are not null everywhere: what lies below nulls is nobody's."""
    return records.select([each for each in records.schema.names if records.column(each).null_count < len(records)])


EVIL = [0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]


def mutated(body: bytes, random: Random) -> bytes:
    """The frame with some numbers of its payload changed, where that hurts, and the checksum for it."""
    changed = bytearray(body)
    start = peek_frame(body).payload_at
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        size = random.choice([1, 2, 4, 8])
        at = start + random.randrange((len(body) - start) // size) * size
        number = int.from_bytes(changed[at : at + size], "little")
        match random.randrange(4):
            case 0:
                number ^= 1 << random.randrange(8 * size)
            case 1:
                number += random.choice([-64, -8, -1, 1, 8, 64])
            case _:
                number = random.choice(EVIL)
        changed[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")
    return sealed(changed)
