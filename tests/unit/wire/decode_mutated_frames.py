"""A child of a test: decodes many mutated frames.

It ends with 0 unless an error is not typed, Arrow crashes, or records are valid to us and not to Arrow, or the reverse.
"""

import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import pyarrow as pa

from lakehead.wire import ipc_payload, valid_arrow
from lakehead.wire.errors import BadFrame, NewerFormat, TooLarge
from lakehead.wire.frame import decode_frame, encode_frame, peek_frame
from tests.unit.wire.frames import EVIL, FORMS, form_frame, mutated, same, sealed


def random_frames(seed: int, count: int) -> Iterator[bytes]:
    """So many mutated frames."""
    random = Random(seed)
    frames = [form_frame(form) for form in FORMS]
    for _ in range(count):
        yield mutated(random.choice(frames), random)


def frames_with_evil_descriptions(values: list[int]) -> Iterator[bytes]:
    """Each number that describes a record batch replaced by each value: lengths, null counts, positions of buffers."""
    for form in FORMS:
        body = form_frame(form)
        header = peek_frame(body)
        batch = header.payload_at + header.record_schema.message.size
        [size] = struct.unpack_from("<i", body, batch + 4)
        for at in range(batch, batch + 8 + size, 8):
            for value in values:
                yield sealed(body[:at] + value.to_bytes(8, "little") + body[at + 8 :])


def decoded(body: bytes) -> str:
    """Decode a frame, and encode and decode it again if it is valid. Return whether it was `valid` or `refused`."""
    try:
        found = decode_frame(body)
    except (BadFrame, NewerFormat, TooLarge):
        return "refused"
    found.records.to_pylist()
    again = encode_frame(found.identity, found.header.kind, found.records)
    assert same(decode_frame(again).records, found.records)
    return "valid"


def check_valid_as_arrow_does(records: pa.RecordBatch, with_bytes: pa.RecordBatch, maps: Sequence[int]) -> None:
    """Check records in our way and in Arrow's, which must agree."""
    refusals: list[pa.ArrowInvalid | None] = []
    for check in (
        lambda found: valid_arrow.check_valid(found, with_bytes, maps),
        lambda found: found.validate(full=True),
    ):
        try:
            check(records)
            refusals.append(None)
        except pa.ArrowInvalid as error:
            refusals.append(error)
    ours, arrows = refusals
    assert (ours is None) == (arrows is None), refusals
    if ours is not None:
        raise ours


if __name__ == "__main__":
    vars(ipc_payload)["check_valid"] = check_valid_as_arrow_does
    count, values = int(sys.argv[1]), EVIL[:: int(sys.argv[2])]
    at_random = Counter(map(decoded, random_frames(1, count)))
    described = Counter(map(decoded, frames_with_evil_descriptions(values)))
    print(at_random["valid"], at_random["refused"], described["refused"])
