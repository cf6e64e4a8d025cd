"""Files of requests that an agent has seen: by what it knows them again, in blocks that were flushed together.

Such a file is an append log (`append_log`) with the magic `89 4C 4D 53 45 45 4E 0A`, that is `\\x89LMSEEN\\n`, and
without fields. The content of each item:

| bytes | content |
|---|---|
| 8 | the agent's uptime when it was written, in milliseconds, all starts together |
| 32 each | requests: the id, then the digest of the body, 16 bytes each |
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.wire.append_log import encode_head, encode_item, read_log
from lakehead.wire.request_id import DIGEST_BYTES, RequestId

MAGIC = b"\x89LMSEEN\n"
VERSION = 1
HEAD = encode_head(MAGIC, VERSION, b"")
REQUEST_BYTES = 2 * DIGEST_BYTES

_UPTIME_BYTES = 8
_MOST_UPTIME = 2 ** (8 * _UPTIME_BYTES) - 1


@dataclass(frozen=True, slots=True)
class SeenBlock:
    """Requests that were written together."""

    uptime_ms: int
    requests: bytes
    """32 bytes each: the id, then the digest of the body."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """What a reader found in a file."""

    blocks: Sequence[SeenBlock]
    is_damaged: bool
    """Whether some of it is not as it was written. A block that the file ends within is not damage."""


def encode_seen_block(uptime_ms: int, requests: Sequence[RequestId]) -> bytes:
    """Encode requests that were seen. The first block of a file follows `HEAD`."""
    uptime = min(max(0, uptime_ms), _MOST_UPTIME).to_bytes(_UPTIME_BYTES, "little")
    pieces = [piece for each in requests for piece in (each.dedupe_id, each.body_digest)]
    return b"".join(encode_item(HEAD, uptime, b"".join(pieces)))


def read_seen_file(body: bytes) -> SeenFile:
    """Read a file, whatever became of it. Raises `Unreadable` if it is none, and `NewerFormat`."""
    log = read_log(body, MAGIC, VERSION)
    if log is None:
        return SeenFile([], is_damaged=False)
    blocks: list[SeenBlock] = []
    is_damaged = bool(log.damaged)
    for item in log.items:
        requests = bytes(item.content[_UPTIME_BYTES:])
        if len(item.content) < _UPTIME_BYTES or len(requests) % REQUEST_BYTES:
            is_damaged = True
            continue
        blocks.append(SeenBlock(int.from_bytes(item.content[:_UPTIME_BYTES], "little"), requests))
    return SeenFile(blocks, is_damaged)
