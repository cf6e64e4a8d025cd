"""A child of a test: decodes many mutated frames. It ends with 0 unless an error is not typed, or Arrow crashes."""

import sys
from random import Random

from lakehead.wire.errors import BadFrame, NewerFormat, TooLarge
from lakehead.wire.frame import decode_frame, encode_frame
from lakehead.wire.record_schemas import FrameKind
from tests.unit.wire.frames import frame, mutated, same


def decode_mutated_frames(seed: int, count: int) -> tuple[int, int]:
    """Decode so many; return how many were valid all the same, and how many were refused."""
    random = Random(seed)
    valid = refused = 0
    frames = [frame(kind) for kind in FrameKind]
    for _ in range(count):
        body = mutated(random.choice(frames), random)
        try:
            decoded = decode_frame(body)
        except (BadFrame, NewerFormat, TooLarge):
            refused += 1
            continue
        valid += 1
        decoded.records.to_pylist()
        again = encode_frame(decoded.identity, decoded.header.kind, decoded.records)
        assert same(decode_frame(again).records, decoded.records)
    return valid, refused


if __name__ == "__main__":
    print(*decode_mutated_frames(int(sys.argv[1]), int(sys.argv[2])))
