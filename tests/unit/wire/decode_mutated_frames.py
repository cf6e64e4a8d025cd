"""A child of a test: decodes many mutated frames. It ends with 0 unless an error is not typed, or Arrow crashes."""

import struct
import sys
from collections import Counter
from collections.abc import Iterator
from random import Random

from lakehead.wire.errors import BadFrame, NewerFormat, TooLarge
from lakehead.wire.frame import decode_frame, encode_frame, peek_frame
from lakehead.wire.record_schemas import RECORD_SCHEMAS, FrameKind
from tests.unit.wire.frames import EVIL, frame, mutated, same, sealed


def random_frames(seed: int, count: int) -> Iterator[bytes]:
    """So many mutated frames."""
    random = Random(seed)
    frames = [frame(kind) for kind in FrameKind]
    for _ in range(count):
        yield mutated(random.choice(frames), random)


def frames_with_evil_descriptions(values: list[int]) -> Iterator[bytes]:
    """Each number that describes a record batch replaced by each value: lengths, null counts, positions of buffers."""
    for kind in FrameKind:
        body = frame(kind)
        batch = peek_frame(body).payload_at + RECORD_SCHEMAS[kind][1].message.size
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


if __name__ == "__main__":
    count, values = int(sys.argv[1]), EVIL[:: int(sys.argv[2])]
    at_random = Counter(map(decoded, random_frames(1, count)))
    described = Counter(map(decoded, frames_with_evil_descriptions(values)))
    print(at_random["valid"], at_random["refused"], described["refused"])
