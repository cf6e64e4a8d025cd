"""Samples or log records in JSON lines: one object in each line, with the columns of docs/frames.md."""

import re
from codecs import BOM_UTF8
from collections.abc import Iterator

import msgspec

from lakehead.agent.errors import BadRecord
from lakehead.agent.plain_records import record_batch
from lakehead.agent.receive.decoded import BadBody, BodyTooLarge, Decoded
from lakehead.agent.receive.sample_columns import RecordLimits
from lakehead.wire.record_schemas import FrameKind

_DEFAULT_LIMITS = RecordLimits()
_IN_LINE = re.compile(rb"[^\s][^\n]*")
"""What is in a line, from the first character on that is no space."""


def decode_json_lines(kind: FrameKind, body: bytes, *, now_ns: int, limits: RecordLimits = _DEFAULT_LIMITS) -> Decoded:
    """Decode the lines of a body, all or none. Empty lines are left out.

    A record without a time has that of the request, a log record the one at which it was observed if it has that.
    Raises `BadBody` with the number of the first line that is no record, and `BodyTooLarge`.
    """
    records: list[dict[str, object]] = []
    numbers: list[int] = []
    have_own_times = True
    for number, line in _lines(body):
        record = _decoded(number, line)
        if record.get("time") is None:
            observed = record.get("observed_time") if kind == FrameKind.LOGS else None
            have_own_times = have_own_times and observed is not None
            record["time"] = now_ns if observed is None else observed
        if len(records) == limits.records:
            raise BodyTooLarge(f"The body has more than {limits.records:,} records. Send fewer in one request.")
        records.append(record)
        numbers.append(number)
    try:
        batch = record_batch(kind, records)
    except BadRecord as error:
        raise _bad_line(numbers[error.index], error.reason) from None
    return Decoded(batch, have_own_times=have_own_times)


def _lines(body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield what is in each line that is not empty, with its number from 1. A body may be nothing but line ends."""
    number, counted = 1, 0
    for found in _IN_LINE.finditer(body):
        number += body.count(b"\n", counted, found.start())
        counted = found.start()
        yield number, found.group()


def _decoded(number: int, line: bytes) -> dict[str, object]:
    if line.startswith(BOM_UTF8):
        raise _bad_line(number, "It begins with a byte order mark. Send UTF-8 without one.")
    try:
        record = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_line(number, f"{error}.") from None
    if not isinstance(record, dict):
        raise _bad_line(number, "It is not a JSON object.")
    return record


def _bad_line(number: int, reason: str) -> BadBody:
    return BadBody(f"Line {number:,}: {reason} Nothing of the request was kept.")
